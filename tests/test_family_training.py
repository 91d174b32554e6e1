"""Training for real latent spaces: photographs, lessons, channel and stages, with small real autoencoders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderTiny
from PIL import Image
from safetensors.torch import save_file

from diffmark.codec import Codec, CodecConfig
from diffmark.injection import Injection
from diffmark.training.chance import Chance
from diffmark.training.channel import Channel, measure_channel
from diffmark.training.distillation import DistillationConfig, distil
from diffmark.training.family import (
    FamilyConfig,
    Ground,
    StageConfig,
    delta_of,
    read_family_config,
    record,
    train_stage,
)
from diffmark.training.family_publication import training_of
from diffmark.training.ground import prepare_ground
from diffmark.training.hosts import draw_hosts
from diffmark.training.lessons import make_lessons
from diffmark.training.photographs import split_photographs
from diffmark.training.spread import best_kernels, spectra, start_matched, start_spread
from diffmark.training.tiny import open_autoencoder
from diffmark.vae import decode, encode
from diffmark.vista import load_autoencoder
from diffmark.vista.training.config import LoopConfig
from diffmark.vista.training.data import to_tensor

SMALL = CodecConfig(
    length=16,
    height=16,
    width=16,
    embed_dim=16,
    encoder_widths=(8,),
    decoder_widths=(8, 16),
    decoder_hidden=(),
    injection=Injection("final"),
)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Smooth random pictures in two folders."""
    root = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for folder, count in (("a", 10), ("b", 5)):
        (root / folder).mkdir()
        for number in range(count):
            coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
            coarse.resize((64, 64), Image.Resampling.BICUBIC).save(root / folder / f"{number:02d}.png")
    return root


@pytest.fixture(scope="module")
def teacher():
    return load_autoencoder()


def test_one_of_five_is_held_out_in_every_folder(photographs):
    split = split_photographs(photographs, 5)
    names = [f"{path.parent.name}/{path.stem}" for path in split.held_out]
    assert names == ["a/04", "a/09", "b/04"]
    assert len(split.train) == 12
    assert not set(split.train) & set(split.held_out)
    with pytest.raises(FileNotFoundError, match="too few images"):
        split_photographs(photographs / "b", 6)


def test_two_files_make_the_autoencoder_that_diffusers_makes(tmp_path):
    torch.manual_seed(0)
    made = AutoencoderTiny(
        encoder_block_out_channels=(64, 64, 64, 64), decoder_block_out_channels=(64, 64, 64, 64)
    ).eval()
    parts: dict[str, dict[str, torch.Tensor]] = {"encoder": {}, "decoder": {}}
    for name, value in made.state_dict().items():
        part, _, number, rest = name.split(".", 3)
        parts[part][f"{int(number) + (part == 'decoder')}.{rest}"] = value.clone()
    for part, state in parts.items():
        save_file(state, tmp_path / f"tae_{part}.safetensors")
    loaded = open_autoencoder(tmp_path / "tae")
    pixels = torch.rand(1, 3, 32, 32) * 2 - 1
    with torch.no_grad():
        torch.testing.assert_close(encode(loaded, pixels), encode(made, pixels))
        torch.testing.assert_close(decode(loaded, encode(made, pixels)), decode(made, encode(made, pixels)))


def test_a_linear_autoencoder_has_a_channel_without_rest():
    """Mean colours of 8 x 8 pixels: what goes in comes back, and costs what it should."""
    from diffmark.vista.autoencoder import PatchAutoencoder

    mosaic = PatchAutoencoder().eval()  # at its start it is such a mosaic
    pictures = [0.2 * torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    channel = measure_channel(mosaic, iter(pictures))
    expected = torch.zeros(4, 4, 3, 3)
    expected[[0, 1, 2], [0, 1, 2], 1, 1] = 1  # the fourth channel is not used yet
    torch.testing.assert_close(channel.transfer, expected, atol=1e-3, rtol=0)
    assert channel.cost_rest < 1e-6
    delta = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    scaled = channel.scaled(delta, 30.0)
    with torch.no_grad():
        z = encode(mosaic, pictures[0][:1])
        error = (decode(mosaic, z + scaled) - decode(mosaic, z)).square().flatten(1).mean(dim=1)
    torch.testing.assert_close(10 * torch.log10(4 / error), torch.full((3,), 30.0), atol=0.05, rtol=0)


def test_hosts_are_made_of_the_photographs_latents():
    latents = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 2, 4, 4).half()
    hosts = draw_hosts(latents, Chance(0, 0), 6)
    assert hosts.shape == (6, 2, 8, 8)
    counts = [(hosts == value).sum(dim=(1, 2, 3)) for value in range(3)]
    assert all((count % 32 == 0).all() for count in counts)  # whole tiles, however rolled
    assert sum(counts).tolist() == [128] * 6


def test_a_spread_start_turns_the_sign_with_the_bits():
    torch.manual_seed(0)
    codec = Codec(SMALL)
    start_spread(codec)
    secrets = Chance(0, 0).secrets(4, SMALL.length)
    delta, opposite = codec.delta(secrets.numpy()), codec.delta(1 - secrets.numpy())
    cosine = torch.nn.functional.cosine_similarity(delta.flatten(1), opposite.flatten(1))
    assert (cosine < -0.4).all()  # random weights give 0.1 and more: one curve for all secrets
    with pytest.raises(ValueError, match="embed_dim"):
        start_spread(Codec(replace(SMALL, embed_dim=8)))


MATCHED = replace(SMALL, height=32, width=32, matched_filter=True)


def _coloured_hosts(count, seed):
    """Latents whose channels 0 to 2 are smooth and strong, and whose last one is as strong but white."""
    hosts = torch.randn(count, 4, 34, 34, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.avg_pool2d(hosts, 3, stride=1)
    return torch.cat([3 * smooth[:, :3], hosts[:, 3:, 1:-1, 1:-1]], dim=1)


def _flat_channel():
    """Comes back as it went in, and costs the same wherever it is."""
    centre = torch.zeros(4, 4, 3, 3)
    centre[range(4), range(4), 1, 1] = 1
    return Channel(centre.repeat(48, 1, 1, 1) / 7, centre, 0.0, 0.1)


def test_a_matched_start_reads_hosts_it_has_not_seen_without_any_training():
    torch.manual_seed(0)
    codec, channel = Codec(MATCHED).eval(), _flat_channel()
    heights = start_matched(codec, _coloured_hosts(64, 0), channel, 58.0)
    secrets = Chance(1, 0).secrets(64, MATCHED.length)
    delta = delta_of(codec, secrets, channel, 58.0).detach()
    seen = _coloured_hosts(64, 1) + channel.received(delta, Chance(1, 1))
    right = (codec.decode(seen).argmax(dim=-1) == secrets).float().mean()
    expected = torch.distributions.Normal(0, 1).cdf(torch.tensor(heights))
    assert 0.8 < expected < 0.999
    torch.testing.assert_close(right, expected, atol=0.03, rtol=0)
    opposite = delta_of(codec, 1 - secrets, channel, 58.0).detach()
    assert (torch.nn.functional.cosine_similarity(delta.flatten(1), opposite.flatten(1)) < -0.9).all()


def test_the_best_kernels_keep_away_from_strong_hosts():
    """Where hosts are smooth a rough pattern is read; low frequencies are drowned and not used."""
    noise, seen, cost = spectra(_coloured_hosts(128, 0), _flat_channel())
    kernels = best_kernels(seen.mH @ torch.linalg.solve(noise, seen), cost, 8)
    assert kernels.shape == (8, 4, 3, 3)
    energy = kernels.square().sum(dim=(0, 2, 3))
    assert energy[:3].min() > 4 * energy[3]
    assert kernels.sum(dim=(2, 3)).abs().max() < 0.2 * kernels.abs().sum(dim=(2, 3)).max()


def test_a_matched_start_names_an_encoder_that_cannot_hold_it():
    with pytest.raises(ValueError, match="encoder width"):
        start_matched(
            Codec(replace(MATCHED, encoder_widths=(2,))), _coloured_hosts(2, 0), _flat_channel(), 32.0
        )


def _ground(teacher, photographs, tmp_path):
    lessons = make_lessons(teacher, photographs, 5, tmp_path, size=64)
    pictures = [torch.from_numpy(lessons.pictures[:2]).permute(0, 3, 1, 2).float() / 127.5 - 1]
    return Ground(torch.from_numpy(lessons.latents), measure_channel(teacher, iter(pictures)), (teacher,))


def _config(**stage):
    settings = StageConfig(
        **{
            "steps": 6,
            "batch": 8,
            "warmup": 1,
            "psnr_start": 10.0,
            "psnr_end": 12.0,
            "psnr_steps": 4,
            **stage,
        }
    )
    return FamilyConfig(
        codec=replace(SMALL, height=16, width=16), channel=settings, round_trip=settings, validation=4,
        log_every=2, save_every=2,
    )  # fmt: skip


def test_the_channel_stage_learns_to_read(teacher, photographs, tmp_path):
    ground = _ground(teacher, photographs, tmp_path)
    config = _config(steps=40, psnr_end=10.0, batch=16, decoder_rate=2e-3)
    best = train_stage("channel", config, ground, tmp_path / "run")
    assert best.provenance["validated"] > 0.75
    delta = delta_of(best, Chance(0, 0).secrets(8, 16), ground.channel, 10.0).detach()
    assert best.config.deviation == pytest.approx(float(delta.flatten(1).std(dim=1).mean()), rel=0.05)


def test_a_stopped_stage_ends_with_the_same_weights(teacher, photographs, tmp_path):
    ground = _ground(teacher, photographs, tmp_path)
    config = _config(crops=2, crop=8, geometry=0.1, attacks={"jpeg": 0.5, "noise": 0.5}, attacked_share=1.0)
    whole = train_stage("round_trip", config, ground, tmp_path / "whole")
    train_stage("round_trip", config, ground, tmp_path / "parts", stop_after=4)
    resumed = train_stage("round_trip", config, ground, tmp_path / "parts")
    assert (tmp_path / "whole" / "log.jsonl").read_text() == (tmp_path / "parts" / "log.jsonl").read_text()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, msg=name)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_stage_tells_what_it_came_to(steps, teacher, photographs, tmp_path):
    ground = _ground(teacher, photographs, tmp_path)
    for _ in range(2):  # a second time from what there is
        best = train_stage("channel", _config(steps=steps), ground, tmp_path / "run")
    found = record(tmp_path / "run")
    assert [line["step"] for line in found["log"] if "validated" in line] == [0, 2][: 1 + steps // 2]
    assert max(line["validated"] for line in found["log"] if "validated" in line) == pytest.approx(
        best.provenance["validated"], abs=1e-4
    )
    assert found["best"] == best.provenance
    assert found["seconds"] >= 0


def test_the_student_comes_nearer_to_the_teacher(teacher, photographs, tmp_path):
    loop = LoopConfig(steps=12, batch=4, learning_rate=2e-3, warmup=1, decay=4, log_every=1)
    config = DistillationConfig(
        loop, channels=4, crop=64, block_out_channels=(4, 4, 16, 16), layers_per_block=1
    )
    student = distil(config, teacher, photographs, tmp_path / "run", tmp_path / "cache")
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    first, last = (json.loads(line)["latent_error"] for line in (lines[0], lines[-1]))
    assert last < first
    assert student.config.latent_channels == 4
    record = training_of(tmp_path / "run" / "model")["distillation"]
    assert record["seconds"] > 0
    assert record["config"]["loop"]["steps"] == 12


def test_half_of_the_lessons_are_pictures_that_the_teacher_made(teacher, photographs, tmp_path):
    photos, mixed = (
        make_lessons(teacher, photographs, 5, tmp_path, generated=generated) for generated in (False, True)
    )
    assert photos.latents.shape == mixed.latents.shape == (12, 4, 32, 32)
    same = (photos.pictures == mixed.pictures).all(axis=(1, 2, 3))
    assert same[[0, 4, 8]].all()
    assert not same[[2, 3, 6, 7, 10, 11]].any()
    with torch.no_grad():
        z = encode(teacher, to_tensor(mixed.pictures[3:4]))
    np.testing.assert_allclose(mixed.latents[3], z[0].numpy(), atol=0.01)


def test_crops_go_through_the_teacher_and_the_others(teacher, photographs, tmp_path, monkeypatch):
    config = FamilyConfig(codec=replace(SMALL, height=64, width=64))
    other = load_autoencoder()
    ground = prepare_ground(config, photographs, teacher, [other], tmp_path)
    assert ground.autoencoders == (teacher, other)
    assert prepare_ground(config, photographs, teacher, [], tmp_path).autoencoders == (teacher,)
    assert len(list(tmp_path.glob("channel-*.pt"))) == 1
    monkeypatch.setattr("diffmark.training.ground.SIGMA", 0.2)  # of the deltas that it is measured with
    prepare_ground(config, photographs, teacher, [], tmp_path)
    assert len(list(tmp_path.glob("channel-*.pt"))) == 2


def test_ground_names_what_does_not_fit(teacher, photographs, tmp_path):
    config = FamilyConfig(codec=SMALL)
    with pytest.raises(ValueError, match="mosaics of 64x64 latents"):
        prepare_ground(config, photographs, teacher, [], tmp_path)
    with pytest.raises(ValueError, match="mode 'final'"):
        FamilyConfig(codec=replace(SMALL, injection=Injection("late")))
    with pytest.raises(ValueError, match="unknown attack"):
        StageConfig(attacks={"flood": 1.0})
    with pytest.raises(ValueError, match="crops"):
        StageConfig(crops=20)


@pytest.mark.parametrize("name", ["sd", "sdxl", "sd3", "flux"])
def test_every_committed_run_file_of_a_family_is_read(name):
    folder = Path(__file__).parents[1] / "configs"
    config = read_family_config(folder / f"family_{name}.toml")
    assert (config.codec.length, config.codec.injection.mode) == (64, "final")
    assert config.codec.channels == (16 if name in ("sd3", "flux") else 4)
