from __future__ import annotations

import csv
import json
import math
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import _build, tiny_codec
from PIL import Image
from typer.testing import CliRunner

from diffmark.attacks import ATTACKS
from diffmark.attacks.adversarial import against_margins, against_vae
from diffmark.attacks.regeneration import compression_attack, diffusion_attacks
from diffmark.baselines.base import Method
from diffmark.baselines.diffmark import DiffMark
from diffmark.cli import app
from diffmark.detection.latent import Detector
from diffmark.evaluation import names
from diffmark.evaluation.batches import batches
from diffmark.evaluation.choice import load_methods
from diffmark.evaluation.experiments import EXPERIMENTS
from diffmark.evaluation.experiments.robustness import applies, in_turn
from diffmark.evaluation.experiments.signal import radial_profile, spectrum
from diffmark.evaluation.figures import FIGURES
from diffmark.evaluation.harness import Extent, Harness
from diffmark.evaluation.image_model import ImageModel, unseen_specs
from diffmark.evaluation.negatives import negatives, sources, unmarked
from diffmark.evaluation.report import write_report
from diffmark.evaluation.results import count_work, run
from diffmark.evaluation.rows import WAVES
from diffmark.evaluation.sources import crop, find_photographs
from diffmark.evaluation.timing import Cost, Costs, WorkCounter, WorkTimer, estimate
from diffmark.latent.injection import Injection
from diffmark.mark.generation import Sampling
from diffmark.mark.loading import load_pipeline

SMALL = Extent(
    marked=3,
    repainted=2,
    compared=3,
    pool=2,
    siblings=2,
    scenes=2,
    photographs=4,
    attacked=2,
    compared_attacked=2,
    adversarial=1,
    strengths=(1.0,),
    more_strengths=(1.0,),
    victims=2,
    keys=(2, 10),
    timed=3,
)
FEW = ("rotation", "caption", "gamma", "flip", "jpeg", "noise", "resized_crop")


class LastRow(Method):
    """A method that writes its bits into the last row of pixels: perfect on clean images, gone after any change."""

    name, bits = "last-row", 16

    def embed(self, image, secret):
        pixels = np.asarray(image).copy()
        pixels[-1, : self.bits] = 255 * secret[:, None]
        return Image.fromarray(pixels)

    def decode(self, images):
        rows = np.stack(
            [np.asarray(image.resize((64, 64)), float)[-1, : self.bits].mean(-1) for image in images]
        )
        return rows - 127.5


class Presence(LastRow):
    """Tells only that the last row is striped black and white."""

    name, bits, costly = "presence", 0, True

    def embed(self, image, secret):
        pixels = np.asarray(image).copy()
        pixels[-1, :16] = 255 * np.resize([0, 1], 16)[:, None]
        return Image.fromarray(pixels)

    def score(self, images, secrets):
        rows = [np.asarray(image.resize((64, 64)), float)[-1, :16].mean(-1) for image in images]
        return np.array([row.std() for row in rows])


class Slow(Presence):
    """Reads from the row itself, which it says takes long to find."""

    looked = 0

    def __init__(self, bits):
        self.name, self.bits = f"slow-{bits}", bits

    def state(self, images):
        Slow.looked += len(images)
        rows = [np.asarray(image.resize((64, 64)), np.float32)[-1, :16].mean(-1) for image in images]
        return torch.from_numpy(np.stack(rows))

    def state_recipe(self):
        return {"row": -1}

    def read_state(self, state, secrets):
        rows = state.numpy().astype(float) - 127.5
        return rows[:, : self.bits], rows.std(axis=1)


@pytest.fixture
def image():
    return Image.fromarray(np.random.default_rng(5).integers(0, 255, (64, 64, 3)).astype(np.uint8))


@pytest.fixture(scope="module")
def harness(tmp_path_factory, model_folder):
    pipe = load_pipeline(str(model_folder))
    pipe.set_progress_bar_config(disable=True)
    sampling = Sampling(steps=2, guidance=2.0)
    photographs = tmp_path_factory.mktemp("photographs")
    for name in "ab":
        noise = np.random.default_rng(ord(name)).integers(0, 255, (90, 120, 3)).astype(np.uint8)
        Image.fromarray(noise).save(photographs / f"{name}.jpg")
    model = ImageModel(tmp_path_factory.mktemp("pictures"), pipe, "tiny", sampling)
    own = DiffMark(pipe, Detector(tiny_codec(injection=Injection("final")), _build("sd").pipe.vae), sampling)
    return Harness(
        model,
        [own, LastRow(), Presence()],
        SMALL,
        photographs,
        {name: ATTACKS[name] for name in FEW},
        {"sibling": replace(model, name="sibling", sampling=replace(sampling, steps=3))},
        results=tmp_path_factory.mktemp("results"),
    )


def test_pictures_are_made_once(harness, monkeypatch):
    specs = unseen_specs(2, first=7)
    method = harness.methods[0]
    first = np.stack([*harness.model.marked(method, specs), *harness.model.plain(specs)])
    monkeypatch.setattr(harness.model, "pipe", None)
    monkeypatch.setattr(method, "pipe", None)
    again = np.stack([*harness.model.marked(method, specs), *harness.model.plain(specs)])
    assert np.array_equal(first, again)
    assert not np.array_equal(first[0], first[2])


def test_a_model_that_was_trained_on_makes_its_pictures_anew(harness, model_folder):
    other = replace(harness.model, pipe=load_pipeline(str(model_folder)))
    assert other.digest == harness.model.digest
    other = replace(harness.model, pipe=load_pipeline(str(model_folder)))
    other.pipe.unet.conv_in.weight.data += 1
    assert other.digest != harness.model.digest


def test_finished_pictures_are_those_that_the_marked_pipeline_makes(harness):
    """Marking kept z0 is a short cut for injection `final`, not another method."""
    method, specs = harness.methods[0], unseen_specs(2, first=20)
    specs = [replace(spec, secret=spec.secret[:64]) for spec in specs]
    assert method.finishes
    short = np.stack(harness.model.marked(method, specs)).astype(int)
    for made in (method.generate_all(specs), [method.generate(spec) for spec in specs]):
        assert np.abs(short - np.stack(made)).max() <= 1
    late = DiffMark(method.pipe, method.detector, method.sampling, Injection("late"))
    assert not late.finishes


def test_orders_are_reproducible_and_unseen():
    first, second = unseen_specs(3), unseen_specs(2, first=1)
    assert [(o.prompt, o.seed) for o in first[1:]] == [(o.prompt, o.seed) for o in second]
    assert all(np.array_equal(a.secret, b.secret) for a, b in zip(first[1:], second, strict=True))
    assert not np.array_equal(first[0].secret, first[1].secret)
    fixed = unseen_specs(2, fixed_secret=True)
    assert np.array_equal(fixed[0].secret, fixed[1].secret)


def test_negatives_come_clean_and_attacked_from_every_source(harness):
    assert sources(harness) == {
        "tiny images": 2,
        "sibling images": 2,
        "painted scenes": 1,
        "photograph crops": 2,
    }
    assert negatives(harness, harness.methods[1]).scores.shape == (14,)
    clean, attacked = (unmarked(harness, harness.methods[1], "photograph crops", a) for a in (False, True))
    assert clean.margins.shape == (2, 16)
    assert not np.array_equal(clean.margins, attacked.margins)
    few = replace(harness, extent=replace(SMALL, compared_negatives=10, photographs=100))
    assert len(unmarked(few, harness.methods[2], "photograph crops", False).scores) == 1
    assert len(negatives(few, harness.methods[2]).scores) == 10
    assert [len(b) for b in batches(range(5), 2)] == [2, 2, 1]


def test_methods_that_repaint_get_fewer_pictures(harness):
    own = harness.methods[0]
    late = DiffMark(harness.model.pipe, own.detector, own.sampling, Injection("late"))
    assert {len(harness.clean_specs(method)) for method in harness.methods} == {SMALL.marked}
    mine, its = (unmarked(harness, method, "tiny images", False) for method in (own, late))
    assert np.array_equal(mine.margins, its.margins)  # unmarked pictures are read once for all modes
    assert len(harness.clean_specs(late)) == SMALL.repainted


def test_what_several_methods_read_from_is_found_once(harness):
    images = [Image.new("RGB", (64, 64), colour) for colour in ("red", "white", "red")]
    secrets = np.ones((3, 16), np.uint8)
    presence = harness.read(Slow(0), images, secrets)
    assert Slow.looked == 3
    again = harness.read(Slow(16), images[::-1], secrets)
    assert Slow.looked == 3
    assert np.array_equal(presence.scores, again.scores[::-1])
    assert (again.margins > 0).tolist() == [[False] * 16, [True] * 16, [False] * 16]


def test_methods_that_the_first_is_compared_with_get_fewer_pictures(harness):
    extent = replace(SMALL, marked=100, compared=20, attacked=30, compared_attacked=6, costly_attacked=4)
    several, first, second, costly = replace(harness, extent=extent), *harness.methods
    assert [len(several.clean_specs(method)) for method in (first, second, costly)] == [100, 20, 20]
    jpeg = ATTACKS["jpeg"]
    assert [several.attacked_count(method, jpeg) for method in (first, second, costly)] == [30, 6, 4]
    gradient = replace(jpeg, kind="adversarial")
    assert {several.attacked_count(method, gradient) for method in (first, second)} == {SMALL.adversarial}


def test_photographs_need_a_folder_with_photographs(tmp_path):
    with pytest.raises(ValueError, match="holds no photographs"):
        find_photographs(tmp_path)
    Image.new("RGB", (50, 40), "olive").save(tmp_path / "a.jpg")
    (path,) = find_photographs(tmp_path)
    assert crop([path], 3).size == (256, 256)
    assert all(path.suffix in (".jpg", ".jpeg", ".png", ".webp") for path in find_photographs(None))


@pytest.fixture(scope="module")
def report(harness, tmp_path_factory):
    """The folder of a run of everything."""
    folder = tmp_path_factory.mktemp("report")
    for name in EXPERIMENTS:
        run(name, harness, folder)
    write_report(folder)
    return folder


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "ablations"])
def test_experiments_write_json_and_csv(report, name):
    document = json.loads((report / f"{name}.json").read_text())
    assert document["config"]["model"] == "tiny"
    assert document["versions"]["torch"]
    with (report / f"{name}.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(document["rows"]) > 0
    assert "diffmark" in {row["method"] for row in document["rows"]}


def test_the_report_shows_every_experiment(report, tmp_path):
    with pytest.raises(ValueError, match="holds no results"):
        write_report(tmp_path)
    page = (report / "index.html").read_text()
    assert page.index('<section id="overview">') < page.index('<section id="clean">')
    for name in EXPERIMENTS:
        assert f'<section id="{name}">' in page
    files = {path.stem for path in report.glob("*.png")}
    assert {"robustness", "signal_pictures", "signal_delta", "identification", "collusion"} <= files
    assert all(f'src="{file}.png"' in page for file in files)
    assert len(page) < 300_000
    assert "diffmark is number" in page
    with Image.open(report / "robustness.png") as figure:
        assert figure.width > 1000
    assert "last-row" in page
    assert "Nothing to show yet" in page  # ablations


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desk", "phone"])
def test_the_report_in_a_browser(report, chromium, width, height):
    page = chromium.new_page(viewport={"width": width, "height": height})
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((report / "index.html").as_uri())
    assert page.title() == "DiffMark evaluation"
    pictures = page.locator("figure img")
    assert pictures.count() == len(list(report.glob("*.png")))
    for picture in pictures.all():
        picture.scroll_into_view_if_needed()
        assert picture.is_visible()
        page.wait_for_function("image => image.complete", arg=picture.element_handle())
        assert picture.evaluate("image => image.naturalWidth") > 500
    # Nothing sticks out of the page; what is wide scrolls in its own box.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table = page.locator("#clean table")
    assert table.evaluate("table => table.scrollWidth > table.parentElement.clientWidth")
    table.locator("th button").first.click()
    names = table.locator("tbody tr td:first-child").all_inner_texts()
    assert names == sorted(names)
    table.locator("th button").first.click()
    assert table.locator("tbody tr td:first-child").all_inner_texts() == names[::-1]
    page.locator("nav a").last.click()
    assert page.url.endswith("#ablations")
    assert said == []


def test_work_is_counted_before_it_is_done_and_not_twice(harness, tmp_path):
    fresh = replace(harness, model=replace(harness.model, folder=tmp_path / "fresh"), siblings={})
    counts = count_work(["clean", "keys", "averaging"], fresh)
    assert counts["clean"]["generate in 2 steps"] == 3  # marked, unmarked and attacked share them
    assert counts["clean"]["finish by diffmark"] == 3
    assert counts["keys"]["generate in 2 steps"] == 0  # the same prompts and seeds
    assert counts["keys"]["finish by diffmark"] == 3  # with another secret
    assert not (tmp_path / "fresh").exists()
    run("clean", fresh, tmp_path)
    assert count_work(["clean"], fresh)["clean"] == {}
    later = count_work(["keys"], fresh)["keys"]
    assert later["finish by diffmark"] == 3


def test_an_estimate_multiplies_counts_by_measured_times(tmp_path):
    costs = Costs(tmp_path / "times.json")
    timer = WorkTimer(costs)
    assert timer.do("sum", 2, lambda: sum(range(1000)), lambda: 0) == 499500
    timer.close()
    again = Costs(tmp_path / "times.json")
    assert again["sum"].items == 2
    costs["sum"] = Cost(items=2, cpu=7200.0, wall=9000.0)
    dry = WorkCounter()
    assert dry.do("sum", 3, lambda: 1 / 0, lambda: 0) == 0
    dry.do("new", 10, lambda: 1, lambda: 0)
    (row,) = estimate({"x": dry.counts}, costs)
    assert row["cpu_hours"] == pytest.approx(3, abs=0.01)
    assert row["mostly"] == "3 x sum"
    assert row["never_timed"] == ["new"]


def test_ablations_are_read_from_results(harness, tmp_path):
    assert list(EXPERIMENTS["ablations"](harness)) == []
    folder = tmp_path / "ablations"
    folder.mkdir()
    for name, accuracy in (("base", 0.95), ("length_48", 0.99)):
        attacks = {"none": {"bit_accuracy": accuracy}, "jpeg_50": {"bit_accuracy": accuracy - 0.1}}
        document = {"results": {"psnr": {"mean": 33.0}, "attacks": attacks}}
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "length_128.json").write_text(json.dumps({"stopped": "step 9: bits are read by chance"}))
    rows = list(EXPERIMENTS["ablations"](replace(harness, results=tmp_path)))
    assert [(row["ablation"], row["answer"]) for row in rows] == [
        ("base", "64"), ("length_128", "128"), ("length_48", "48"),
    ]  # fmt: skip
    assert rows[0]["worst_attack"] == "jpeg_50"
    assert rows[0]["mean_attacked"] == pytest.approx(0.85)
    assert "chance" in rows[1]["stopped"]
    assert FIGURES["ablations"]["ablations"](rows) is not None


def test_clean_tells_the_truth_about_known_methods(harness):
    rows = {row["method"]: row for row in EXPERIMENTS["clean"](harness)}
    row = rows["last-row"]
    assert row["bit_accuracy"] == 1.0
    assert row["tpr_0.001_exact"]["value"] == 1.0
    assert row["negatives"] == 14
    assert math.isfinite(row["psnr"])
    assert row["distance"] > 0
    assert row["frechet_network"] == "Vista scene classifier"
    assert "tpr_0.01_exact" not in rows["presence"]
    assert rows["presence"]["auc"] > 0.9


def test_robustness_tells_the_truth_about_a_known_method(harness):
    alone = replace(harness, methods=[harness.methods[1]])
    rows = {row["attack"]: row for row in EXPERIMENTS["robustness"](alone)}
    compared = {row["attack"] for row in EXPERIMENTS["robustness"](harness) if row["method"] == "last-row"}
    assert compared == set(rows)
    assert rows["caption"]["tpr"]["value"] == 0.0  # the bar covers the last row
    assert rows["gamma"]["tpr"]["value"] == 1.0  # black and white stay what they are
    assert rows["rotation"]["value"] == 45


def test_a_run_out_of_time_uses_what_is_kept_and_the_next_goes_on(harness, tmp_path):
    """The paper's attacks at one strength come first, and cells grow in turns."""
    extent = replace(SMALL, attacked=20, strengths=(0.2, 0.6), more_strengths=(1.0,))
    fresh = replace(
        harness, model=replace(harness.model, folder=tmp_path), methods=[LastRow()], extent=extent
    )
    late = replace(fresh, deadline=time.monotonic() - 1)
    assert not list(EXPERIMENTS["robustness"](late))
    specs = fresh.specs(20)
    assert len(fresh.reading(fresh.methods[0], specs[:8], ATTACKS["jpeg"], 0.6)[0].scores) == 8
    found, _ = late.reading(late.methods[0], specs, ATTACKS["jpeg"], 0.6)
    assert len(found.scores) == 8
    places = [(cell[1].name, cell[2]) for cell in in_turn(fresh)]
    paper = [place for place in places if place[0] in WAVES]
    assert places[: len(paper)] == paper
    assert [strength for _, strength in paper] == sorted((s for _, s in paper), reverse=True)
    assert {row["images"] for row in EXPERIMENTS["robustness"](late)} == {8}


def test_an_attack_on_margins_turns_bits_and_is_only_on_its_method(harness, image):
    own, other = harness.methods[:2]
    attack = against_margins(own, 10)
    assert applies(own, attack)
    assert not applies(other, attack)
    before = own.decode([image])
    after = own.decode([attack(image, 1.0)])
    assert np.mean(after * np.sign(before)) < np.mean(np.abs(before))


def test_averaging_finds_a_mark_that_is_always_the_same(harness):
    rows = [row for row in EXPERIMENTS["averaging"](harness) if row["method"] == "last-row"]
    forged = [row for row in rows if row["space"] == "pixels" and row["aim"] == "forge"]
    same, fresh = (
        np.mean([row["bit_accuracy"] for row in forged if row["secrets"] == secrets])
        for secrets in ("one", "fresh")
    )
    assert same > fresh


def test_colluders_of_one_are_named_and_the_mean_of_two_is_half_of_each(harness):
    class Long(LastRow):
        name, bits = "long", 60

    rows = list(EXPERIMENTS["collusion"](replace(harness, methods=[Long()])))
    one = next(row for row in rows if row["colluders"] == 1 and row["mixed"] == "mean of pixels")
    two = next(row for row in rows if row["colluders"] == 2 and row["mixed"] == "mean of pixels")
    assert one["someone_named"]["value"] == 1.0
    assert one["innocent_named"]["value"] == 0.0
    assert 0.6 < two["best_accuracy"] < 0.95


def test_who_holds_the_codec_can_forge(harness):
    rows = [row for row in EXPERIMENTS["forgery"](harness) if row["method"] == "diffmark"]
    assert {row["way"] for row in rows} == {"copy of fine detail", "read and written with the codec"}


def test_spectrum_and_its_profile_find_a_wave():
    """A cosine of four cycles over the side has all its power at radius four."""
    wave = np.cos(2 * np.pi * 4 * np.arange(32) / 32)[None, :].repeat(32, axis=0)
    power = spectrum(wave[None])
    assert power.sum() == pytest.approx((wave**2).sum())  # Parseval
    assert radial_profile(power)[0].argmax() == 4


def test_the_names_that_are_checked_early_are_those_of_the_experiments():
    assert list(EXPERIMENTS) == list(names.EXPERIMENTS)


def test_unknown_experiment(harness, tmp_path):
    with pytest.raises(ValueError, match="no experiment 'magic'; there are clean"):
        run("magic", harness, tmp_path)


# --- the command -----------------------------------------------------------------------------------------------


@pytest.fixture
def evaluate_command(tmp_path, model_folder, monkeypatch):
    """`diffmark evaluate` of a tiny pipeline and codec, with quick runs that are quicker."""
    codec = tiny_codec(injection=Injection("final")).save_pretrained(tmp_path / "codec")
    _build("sd").pipe.vae.save_pretrained(codec / "vae")
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (80, 90, 3), np.uint8)
    Image.fromarray(noise).save(photographs / "a.png")
    monkeypatch.setattr(Extent, "quick", classmethod(lambda cls: replace(SMALL, strengths=(0.5,))))
    monkeypatch.setattr("sys.argv", ["/bin/diffmark", "evaluate", "clean", "--photographs", str(photographs)])
    options = ["--model", str(model_folder), "--codec", str(codec), "--photographs", str(photographs)]
    folders = ["--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    return ["evaluate", *options, *folders, "--steps", "2", "--quick"]


def test_the_command_estimates_and_runs_and_resumes(tmp_path, evaluate_command):
    printed = CliRunner().invoke(app, [*evaluate_command, "clean", "--estimate"])
    assert printed.exit_code == 0, printed.output
    assert "clean" in printed.output
    assert not (tmp_path / "out").exists()
    for _ in range(2):
        done = CliRunner().invoke(app, [*evaluate_command, "clean"])
        assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "out" / "clean.json").read_text())
    assert document["command"] == "diffmark evaluate clean --photographs PHOTOGRAPHS"
    assert document["config"]["photographs"] == 1
    assert document["config"]["attacks"]["adv_vae"] == "the detector's autoencoder"
    assert (tmp_path / "out" / "index.html").exists()
    again = CliRunner().invoke(app, [*evaluate_command, "clean", "--estimate"])
    assert "0.00 CPU hours" in again.output
    wrong = CliRunner().invoke(app, [*evaluate_command, "colour"])
    assert "no experiment 'colour'" in str(wrong.exception or wrong.output)


def test_attacks_by_models_are_read_through_the_harness(tmp_path, harness):
    """Regeneration and projected gradients, once each, as the robustness table does it."""
    few = replace(harness, methods=[harness.methods[0]], extent=replace(SMALL, attacked=1))
    surrogate = harness.model.pipe
    models = [compression_attack(), *diffusion_attacks(surrogate, "itself"), against_vae(surrogate.vae, 2)]
    models.append(against_margins(harness.methods[0], 2))
    few = replace(few, attacks={attack.name: attack for attack in models})
    rows = list(EXPERIMENTS["robustness"](few))
    names = ["adv_margins", "adv_vae", "regen_diffusion", "regen_vae", "rinse_2x", "rinse_4x"]
    assert [row["attack"] for row in rows] == names
    assert all(row["by"] and row["images"] == 1 for row in rows)


def test_all_methods_are_those_that_are_there(monkeypatch, capsys, model_folder):
    monkeypatch.setattr("diffmark.weights.CLONE", model_folder)  # has no weights of baselines
    monkeypatch.setitem(sys.modules, "imwatermark", None)
    methods = load_methods("all", load_pipeline(str(model_folder)), "vista", Sampling(steps=2))
    names = [method.name for method in methods]
    assert names[:5] == ["diffmark", "diffmark-pixel", "diffmark-both", "tree-ring", "ring-id"]
    assert {"gaussian-shading", "prc"} <= set(names)
    assert not {"stegastamp", "aqualora", "rivaGan"} & set(names)
    assert "stegastamp is left out" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="no trained weights"):
        load_methods("stegastamp", None, "vista", Sampling())
    with pytest.raises(ValueError, match="no method 'magic'"):
        load_methods("magic", None, "vista", Sampling())
