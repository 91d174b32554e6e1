"""What rows say in words, plug-ins, and measures of what is seen."""

from __future__ import annotations

import io
import shutil
import sys
import types

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from diffmark.attacks import ATTACKS
from diffmark.attacks.base import Attack
from diffmark.baselines.base import Method
from diffmark.evaluation import plugins
from diffmark.evaluation.choice import choose_attacks
from diffmark.evaluation.figures.detection import survival
from diffmark.evaluation.names import ATTACK_PLUGINS
from diffmark.evaluation.report import write_report
from diffmark.evaluation.rows import WAVES
from diffmark.evaluation.summary import average, by_attack, comparable, lost, ranking, terminal_tables, words
from diffmark.evaluation.visibility import BUTTERAUGLI, butteraugli, flip, ssimulacra2, visibility_figures


def row(method, attack, value, strength=0.5, images=8):
    rate = {"value": value, "low": value - 0.1, "high": value + 0.1}
    more = {"kind": "distortion", "by": None, "value": 1.0, "unit": "", "images": images}
    return {"method": method, "attack": attack, "strength": strength, "tpr": rate} | more


ROWS = [
    row("diffmark", "jpeg", 0.9),
    row("diffmark", "blur", 0.2),
    row("diffmark", "messenger", 0.5),
    row("rival", "jpeg", 0.6),
    row("rival", "blur", 0.8),
    row("rival", "blur", 0.0, strength=1.0),
    row("rival", "messenger", 0.5),
]


def test_only_strengths_that_all_methods_have_are_averaged():
    table = by_attack(ROWS)
    assert table["rival"]["blur"]["value"] == 0.8  # that at strength 1 has nothing beside it
    assert comparable(table) == ("jpeg", "blur")
    assert average(table["rival"], ("jpeg", "blur")) == pytest.approx(0.7)
    assert average(table["rival"]) is None  # eleven of the paper's attacks are missing
    assert [name for name, _ in ranking(table)] == ["rival", "diffmark"]


def test_ranks_and_lost_cells_come_from_the_rows():
    assert lost(by_attack(ROWS), "diffmark") == [("blur", "rival", 0.8, 0.2)]
    first, second = words(ROWS)
    assert first == "diffmark is number 2 of 2 by the average of 2 attacks: 0.550, behind rival (0.700)."
    assert second.startswith("It loses 1 of 3 attacks")
    assert "blur (0.20; rival 0.80)" in second
    better = [*ROWS[1:], row("diffmark", "jpeg", 1.0), row("diffmark", "blur", 1.0)]
    assert "number 1 of 2" in words([r for r in better if r["tpr"]["value"] != 0.2])[0]
    assert words([]) == []
    assert set(WAVES) <= {*ATTACKS, "regen_vae", "regen_diffusion", "rinse_2x", "adv_vae", "adv_features"}


def test_the_terminal_shows_the_tables():
    clean = [{"method": "rival", "bits": 64, "images": 8, "bit_accuracy": 0.98, "ssimulacra2": 71.3,
              "tpr_0.001_exact": {"value": 1.0, "low": 0.6, "high": 1.0}, "psnr": 33.3}]  # fmt: skip
    written = io.StringIO()
    console = Console(file=written, width=140)
    for part in terminal_tables({"clean": {"rows": clean}, "robustness": {"rows": ROWS}}):
        console.print(part)
    said = written.getvalue()
    assert "Average of 2" in said
    assert "1.000 [0.60, 1.00]" in said
    assert "number 2 of 2" in said


def test_survival_is_drawn_over_visibility():
    clean = [{"method": name, "ssimulacra2": seen} for name, seen in (("diffmark", 50.0), ("rival", 80.0))]
    figure = survival(clean, ROWS)
    labels = {text.get_text() for text in figure.axes[0].texts}
    assert {"diffmark", "rival"} <= labels
    assert survival([], ROWS) is None


class Own(Method):
    name, bits = "own", 8

    def __init__(self, sampling):
        self.sampling = sampling

    def embed(self, image, secret):
        return image

    def decode(self, images):
        return np.zeros((len(images), self.bits))


DARKER = Attack(
    "darker", "everyday", 1, 0.2, "factor", lambda image, value, rng: image.point(lambda v: v * value)
)


@pytest.fixture
def mine(monkeypatch):
    module = types.ModuleType("my_methods")
    module.Own, module.DARKER, module.both = Own, DARKER, lambda: [DARKER]
    monkeypatch.setitem(sys.modules, "my_methods", module)


def test_methods_and_attacks_plug_in_by_place(mine):
    method = plugins.make_method(plugins.load_object("my_methods:Own"), "a pipe", "some sampling")
    assert (method.name, method.sampling) == ("own", "some sampling")
    assert choose_attacks([], "jpeg,my_methods:DARKER").keys() == {"jpeg", "darker"}
    assert choose_attacks([], "my_methods:both").keys() == {"darker"}
    with pytest.raises(ValueError, match="no attack 'magic'"):
        choose_attacks([], "magic")
    with pytest.raises(ValueError, match=r"my_methods:Other.*module:name"):
        plugins.load_object("my_methods:Other")
    with pytest.raises(ValueError, match="expected a diffmark.attacks.base.Attack"):
        plugins.as_attacks([1])
    with pytest.raises(ValueError, match="a method is a"):
        plugins.make_method(lambda: 3, None, None)


def test_what_installed_packages_offer_is_found(monkeypatch, mine):
    point = plugins.EntryPoint("darker", "my_methods:DARKER", ATTACK_PLUGINS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == ATTACK_PLUGINS else [])
    assert plugins.offered(ATTACK_PLUGINS)["darker"].load() is DARKER
    assert "darker" in choose_attacks([], None)


def test_what_is_seen_grows_with_the_change():
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(np.linspace(40, 200, 128 * 128).reshape(128, 128).astype(np.uint8)).convert(
        "RGB"
    )

    def noisy(size):
        levels = np.asarray(smooth, float) + rng.normal(0, size, (128, 128, 3))
        return Image.fromarray(levels.clip(0, 255).astype(np.uint8))

    little, much = noisy(2), noisy(12)
    assert ssimulacra2(smooth, little) > ssimulacra2(smooth, much)
    assert flip(smooth, little) < flip(smooth, much)
    found = visibility_figures([smooth], [little])
    assert {"ssimulacra2", "flip"} <= set(found)
    if shutil.which(BUTTERAUGLI) is None:
        pytest.skip(f"{BUTTERAUGLI} is not installed")
    assert butteraugli(smooth, little) < butteraugli(smooth, much)
    assert found["butteraugli"] == pytest.approx(butteraugli(smooth, little))


def test_a_measure_without_its_program_is_left_out(monkeypatch):
    monkeypatch.setenv("PATH", "")
    image = Image.new("RGB", (64, 64), "olive")
    assert "butteraugli" not in visibility_figures([image], [image])
    with pytest.raises(FileNotFoundError, match="libjxl-devtools"):
        butteraugli(image, image)


def test_an_overview_needs_no_clean_table(tmp_path):
    import json

    document = {"rows": ROWS, "config": {}, "command": "", "versions": {}, "revision": None}
    (tmp_path / "robustness.json").write_text(json.dumps(document))
    page = write_report(tmp_path).read_text()
    assert "diffmark is number 2 of 2" in page
    assert '<td class="best" title="0.47 to 1.00">0.90</td>' in page  # 7 of 8
