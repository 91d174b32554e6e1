from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import _embeds, tiny_codec

from diffmark.latent.codec import Codec
from diffmark.latent.config import CodecConfig
from diffmark.latent.dosing import Dosing
from diffmark.latent.injection import Injection
from diffmark.training import losses
from diffmark.training.config import (
    DeltaConfig,
    GateConfig,
    GuardConfig,
    LogConfig,
    OptimiserConfig,
    PathConfig,
    RegenerationConfig,
    RobustnessConfig,
    TrainingConfig,
    WeightConfig,
)
from diffmark.training.draws import Draws
from diffmark.training.dual import step_terms, train
from diffmark.training.guards import StoppedError
from diffmark.training.optimisation import Optimiser, make_accelerator
from diffmark.training.paths import Denoisers, Paths, freeze
from diffmark.training.pixels import attacked_images, through_pixels
from diffmark.training.regeneration import regenerate
from diffmark.training.replay import Replay

BOTH, ENCODER, DECODER = {"encoder", "decoder"}, {"encoder"}, {"decoder"}


def tiny_config(mode="final", **more):
    codec = CodecConfig(
        length=16,
        height=8,
        width=8,
        embed_dim=8,
        encoder_widths=(8, 8),
        decoder_widths=(8, 16),
        decoder_hidden=(32,),
    )
    bridge_only = mode == "final"
    settings = {
        "codec": codec,
        "dosing": Dosing(Injection(mode, start=0.4)),
        "optimiser": OptimiserConfig(steps=6, batch=4, warmup=2),
        "paths": PathConfig(
            steps=2,
            guidance=3.0,
            ddim_steps=0 if bridge_only else 4,
            regen_on="bridge" if bridge_only else "ddim",
            rounding=bridge_only,
        ),
        "weights": WeightConfig(ddim=0.0 if bridge_only else 1.0),
        "gates": GateConfig(imperceptibility=0),
        "log": LogConfig(
            log_every=2, save_every=2, measure_every=2, measure_images=4, sample_every=0, keep=2
        ),
        "delta": DeltaConfig(horizon=4),
    }
    return TrainingConfig(**{**settings, **more})


@pytest.fixture
def vae(rig):
    autoencoder = copy.deepcopy(rig("sd").pipe.vae)
    freeze(autoencoder)
    return autoencoder


def latents(count=12, seed=0):
    return torch.randn(count, 4, 8, 8, generator=torch.Generator().manual_seed(seed)).half()


@pytest.fixture
def denoisers(rig):
    sd, lcm = copy.deepcopy(rig("sd").pipe), copy.deepcopy(rig("lcm").pipe)
    freeze(sd.unet)
    freeze(lcm.unet)
    return Denoisers(sd.unet, sd.scheduler, _embeds(1, 5, 7, 32), _embeds(2, 1, 7, 32), lcm)


def paths_of(config, denoisers):
    mode = config.dosing.injection.mode
    pool = latents() if mode in ("late", "final") else None
    return Paths(
        config, pool, None if pool is None else latents(6, 1), None if mode == "final" else denoisers
    )


def codec_of(config, seed=0):
    torch.manual_seed(seed)
    return Codec(config.codec).train()


def reached(term, codec):
    """Names of the networks that a loss sends gradients to."""
    found = set()
    for name in ("encoder", "decoder"):
        grads = torch.autograd.grad(
            term, list(getattr(codec, name).parameters()), retain_graph=True, allow_unused=True
        )
        if any(grad is not None and grad.abs().sum() > 0 for grad in grads):
            found.add(name)
    return found


PAPER = {
    "lcm": BOTH,
    "ddim": DECODER,
    "mag": ENCODER,
    "kl": ENCODER,
    "orth": ENCODER,
    "freq": ENCODER,
    "lafid": ENCODER,
    "prvl": ENCODER,
    "neg": DECODER,
    "regen": DECODER,
}


@pytest.mark.parametrize("mode", ["paper", "persistent", "mean", "late"])
def test_every_loss_reaches_the_networks_that_the_paper_says(mode, vae, denoisers):
    config = tiny_config(mode)
    config = replace(config, paths=replace(config.paths, radius=2.0))  # 8x8 latents have no room for 10
    codec = codec_of(config)
    terms, _ = step_terms(codec, vae, paths_of(config, denoisers), config, 0, Draws(0, 0), 4)
    assert {name: reached(term, codec) for name, term in terms.items()} == PAPER
    sum(terms.values()).backward()
    frozen = [*vae.parameters(), *denoisers.unet.parameters(), *denoisers.lcm.unet.parameters()]
    assert all(parameter.grad is None for parameter in frozen)


def test_algorithm_2_to_the_letter(vae, denoisers):
    """delta at every step of the bridge, delta / N at every step of the DDIM path, whatever inference does."""
    config = tiny_config("paper")
    letter = replace(config.paths, radius=2.0, ddim_injection=Injection("mean"))
    config = replace(config, paths=letter)
    paths, codec = paths_of(config, denoisers), codec_of(config)
    assert paths.bridge_weights.tolist() == [1, 1, 0]  # K = 2
    assert paths.ddim_weights.tolist() == [0.25] * 4 + [0]  # N = 4
    terms, _ = step_terms(codec, vae, paths, config, 0, Draws(0, 0), 4)
    assert {name: reached(term, codec) for name, term in terms.items()} == PAPER

    start, delta = paths.draw(Draws(0, 0), 2), codec.delta(torch.ones(2, 16, dtype=torch.uint8).numpy())
    alone = Paths(replace(config, dosing=Dosing(Injection("mean"))), None, None, denoisers)
    assert torch.equal(paths.ddim(start, delta), alone.ddim(start, delta))
    assert not torch.allclose(paths.bridge(start, delta), alone.bridge(start, delta))


def test_final_injection_trains_through_the_vae_alone(vae):
    """Regeneration on the bridge teaches the encoder too, and so do attacks."""
    config = tiny_config(
        gates=GateConfig(imperceptibility=0, robustness=0),
        robustness=RobustnessConfig(attacks={"jpeg": 1.0, "noise": 1.0}, share_start=0.5, kinds=2),
    )
    codec = codec_of(config)
    terms, figures = step_terms(codec, vae, paths_of(config, None), config, 0, Draws(0, 0), 4)
    assert reached(terms["regen"], codec) == BOTH
    assert reached(terms["robust"], codec) == BOTH
    assert {"accuracy_jpeg", "accuracy_noise", "accuracy_regen"} <= figures.keys()
    assert "ddim" not in terms
    sum(terms.values()).backward()
    assert all(parameter.grad is None for parameter in vae.parameters())


@pytest.mark.parametrize("mode", ["persistent", "final"])
def test_regeneration_and_perception_teach_the_encoder(mode, vae, denoisers):
    config = tiny_config(mode)
    weights = replace(config.weights, regen_diff=1.0, percep=0.1, prvl=0.0, freq=0.0)
    config = replace(config, weights=weights, regeneration=RegenerationConfig(times=(100, 200), rounds=2))
    codec, pool = codec_of(config), latents() if mode == "final" else None
    paths = Paths(config, pool, pool, denoisers)
    terms, figures = step_terms(codec, vae, paths, config, 0, Draws(0, 0), 4)
    assert reached(terms["regen_diff"], codec) == BOTH
    assert reached(terms["percep"], codec) == ENCODER
    assert 0 <= figures["accuracy_regen_diff"] <= 1
    sum(terms.values()).backward()
    assert all(parameter.grad is None for parameter in denoisers.unet.parameters())
    if mode == "final":
        with pytest.raises(ValueError, match=r"regen_diff regenerates with a denoiser: give model\.pipeline"):
            step_terms(codec, vae, paths_of(config, None), config, 0, Draws(0, 0), 4)


def test_naturalness_teaches_the_encoder_alone(vae, denoisers):
    config = tiny_config("persistent")
    weights = replace(config.weights, natural=1.0, prvl=0.0, freq=0.0)
    config = replace(config, weights=weights)
    codec = codec_of(config)
    terms, _ = step_terms(codec, vae, paths_of(config, denoisers), config, 0, Draws(0, 0), 4)
    assert reached(terms["natural"], codec) == ENCODER
    sum(terms.values()).backward()
    assert all(parameter.grad is None for parameter in denoisers.unet.parameters())


def test_without_a_rate_the_encoder_is_left_out(vae, denoisers):
    config = tiny_config("persistent")
    weights = replace(config.weights, regen_diff=1.0, freq=0.0)
    config = replace(config, weights=weights, optimiser=replace(config.optimiser, encoder_rate=0.0))
    codec = codec_of(config)
    terms, _ = step_terms(codec, vae, paths_of(config, denoisers), config, 0, Draws(0, 0), 4)
    assert reached(terms["lcm"], codec) == DECODER
    assert reached(terms["regen_diff"], codec) == DECODER


def test_regeneration_is_drawn_and_stays_near(denoisers):
    z = 0.5 * torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    mild, strong = RegenerationConfig(times=(1,), steps=1), RegenerationConfig(times=(600,), rounds=3)
    near, far = (regenerate(z, denoisers, settings, Draws(0, 0)) for settings in (mild, strong))
    assert (near - z).abs().mean() < 0.2 < (far - z).abs().mean()
    assert torch.equal(far, regenerate(z, denoisers, strong, Draws(0, 0)))
    assert not torch.equal(far, regenerate(z, denoisers, strong, Draws(0, 1)))


def test_only_a_share_of_a_batch_is_decoded(vae, denoisers):
    config = tiny_config("late")
    config = replace(config, paths=replace(config.paths, decoded=0.5, radius=2.0, regen_on="bridge"))
    paths, codec = paths_of(config, denoisers), codec_of(config)
    clean, decoded = [], []
    bridge, decode = paths.bridge, vae.decode
    paths.bridge = lambda start, delta: (
        clean.append(len(start.z)) if delta is None else None,
        bridge(start, delta),
    )[1]
    vae.decode = lambda z: decoded.append(len(z)) or decode(z)
    terms, _ = step_terms(codec, vae, paths, config, 0, Draws(0, 0), 4)
    assert clean == [2]
    assert decoded == [2, 2]
    assert {"lcm", "lafid", "prvl", "regen"} <= terms.keys()


@pytest.mark.parametrize("mode", ["persistent", "late"])
def test_the_first_of_a_batch_go_their_own_way(mode, denoisers):
    paths = paths_of(tiny_config(mode), denoisers)
    start = paths.draw(Draws(0, 0), 4)
    torch.testing.assert_close(
        paths.bridge(start.first(2), None), paths.bridge(start, None)[:2], rtol=1e-4, atol=1e-4
    )


def test_gates_hold_losses_back(vae, denoisers):
    config = tiny_config("paper", gates=GateConfig(imperceptibility=3, frequency=1))
    codec, paths = codec_of(config), paths_of(config, denoisers)
    open_at = [set(step_terms(codec, vae, paths, config, step, Draws(0, step), 4)[0]) for step in (0, 1, 3)]
    assert open_at[0] == {"lcm", "ddim", "mag", "kl", "orth"}
    assert open_at[1] == open_at[0] | {"freq"}
    assert open_at[2] == set(PAPER)


def test_weights_of_zero_leave_a_loss_out(vae):
    config = tiny_config(weights=WeightConfig(ddim=0, kl_start=0, kl_end=0, prvl=0, neg=0, freq=0))
    terms, _ = step_terms(codec_of(config), vae, paths_of(config, None), config, 0, Draws(0, 0), 4)
    assert set(terms) == {"lcm", "mag", "orth", "lafid", "regen"}


def test_normalised_delta_has_exactly_the_target(vae):
    config = tiny_config(
        delta=DeltaConfig(normalise=True, variational=False, sigma_start=0.3, sigma_end=0.2, horizon=2)
    )
    codec, paths = codec_of(config), paths_of(config, None)
    for step, sigma in ((0, 0.3), (1, 0.25), (5, 0.2)):
        _, figures = step_terms(codec, vae, paths, config, step, Draws(0, step), 4)
        assert figures["delta_deviation"].item() == pytest.approx(sigma, rel=1e-5)


def test_attacks_take_a_rising_share_of_a_batch():
    config = tiny_config(
        gates=GateConfig(imperceptibility=0, robustness=10),
        robustness=RobustnessConfig(attacks={"blur": 1.0}, share_start=0.25, share_end=0.75, warmup=10),
    )
    counts = [attacked_images(config, step, 16) for step in (9, 10, 15, 20, 99)]
    assert counts == [0, 4, 8, 12, 12]


def test_replay_makes_ddim_latents_less_often(vae, denoisers):
    config = tiny_config("persistent", gates=GateConfig(imperceptibility=-1))
    config = replace(config, paths=replace(config.paths, replay=8, refresh_every=3))
    codec, paths, replay = codec_of(config), paths_of(config, denoisers), Replay(8)
    calls = []
    ddim = paths.ddim
    paths.ddim = lambda start, delta: calls.append(1) or ddim(start, delta)
    sizes = []
    for step in range(7):
        terms, _ = step_terms(codec, vae, paths, config, step, Draws(0, step), 4, replay)
        assert reached(terms["ddim"], codec) == DECODER
        sizes.append(len(replay))
    assert len(calls) == 3
    assert sizes == [4, 4, 4, 8, 8, 8, 8]


# --- the loop ------------------------------------------------------------------------------------------------


def weights(codec):
    return torch.cat([parameter.detach().flatten() for parameter in codec.parameters()])


def run(config, folder, vae, denoisers=None, **more):
    accelerator = make_accelerator(config.optimiser.precision, cpu=True)
    return train(config, folder, vae, paths_of(config, denoisers), accelerator=accelerator, **more)


def test_a_run_writes_its_folder(tmp_path, vae):
    config = tiny_config(
        log=LogConfig(log_every=2, save_every=2, measure_every=2, measure_images=4, sample_every=6, keep=2)
    )
    run(config, tmp_path, vae)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert {"loss", "loss_lcm", "accuracy", "accuracy_worst_bit", "delta_deviation", "diversity"} <= lines[
        0
    ].keys()
    assert {"gradient_encoder", "measured_accuracy", "measured_psnr"} <= lines[-1].keys()
    bits = [value for name, value in lines[-1].items() if name.startswith("bit/")]
    assert len(bits) == 16
    assert sum(bits) / 16 == pytest.approx(lines[-1]["measured_accuracy"], abs=1e-5)
    assert [p.name for p in sorted((tmp_path / "checkpoints").iterdir())] == [
        "step-00000004",
        "step-00000006",
    ]
    assert json.loads((tmp_path / "config.json").read_text())["codec"]["length"] == 16
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert {"command", "versions", "revision"} <= environment.keys()
    assert (tmp_path / "samples" / "00000006.png").is_file()
    assert list((tmp_path / "tensorboard").iterdir())
    assert Codec.from_pretrained(tmp_path / "best").config.length == 16


def test_frozen_norms_keep_their_statistics(tmp_path, vae):
    config = tiny_config()
    for name, frozen in (("free", False), ("frozen", True)):
        settings = replace(config, optimiser=replace(config.optimiser, frozen_norms=frozen))
        run(settings, tmp_path / name, vae)
        state = Codec.from_pretrained(tmp_path / name / "codec").state_dict()
        means = torch.cat([value for key, value in state.items() if key.endswith("running_mean")])
        assert (means.abs().sum() == 0) == frozen


@pytest.mark.parametrize("mode", ["final", "persistent"])
def test_interrupted_and_resumed_is_uninterrupted(tmp_path, vae, denoisers, mode):
    config = tiny_config(mode)
    if mode == "persistent":
        config = replace(config, paths=replace(config.paths, replay=8, refresh_every=2))
    run(config, tmp_path / "whole", vae, denoisers)
    for _ in range(3):
        run(config, tmp_path / "parts", vae, denoisers, stop_after=2)
    whole, parts = (Codec.from_pretrained(tmp_path / name / "codec") for name in ("whole", "parts"))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[name]), name
    assert (tmp_path / "whole/log.jsonl").read_text() == (tmp_path / "parts/log.jsonl").read_text()


def test_a_half_written_checkpoint_is_ignored_and_removed(tmp_path, vae):
    config = tiny_config()
    run(config, tmp_path / "whole", vae)
    run(config, tmp_path / "killed", vae, stop_after=4)
    half = tmp_path / "killed/checkpoints/.partial-step-00000006"
    half.mkdir()
    (half / "shared.pt").write_bytes(b"PK\x03\x04 and then the power went")
    with open(tmp_path / "killed/log.jsonl", "a") as log:
        log.write('{"step": 6, "loss')
    run(config, tmp_path / "killed", vae)
    assert not half.exists()
    assert torch.equal(
        *(weights(Codec.from_pretrained(tmp_path / name / "codec")) for name in ("whole", "killed"))
    )
    assert (tmp_path / "whole/log.jsonl").read_text() == (tmp_path / "killed/log.jsonl").read_text()


def test_a_run_is_not_resumed_with_other_settings(tmp_path, vae):
    run(tiny_config(), tmp_path, vae, stop_after=2)
    with pytest.raises(ValueError, match="config.json: seed was 0 when this run began and is now 1"):
        run(tiny_config(seed=1), tmp_path, vae)


def test_accumulated_parts_make_the_batch(tmp_path, vae):
    """Two parts of two images take another step than one of four (batch norm), but nearly the same one."""
    one = run(tiny_config(), tmp_path / "one", vae)
    two = run(
        tiny_config(optimiser=OptimiserConfig(steps=6, batch=4, warmup=2, accumulation=2)),
        tmp_path / "two",
        vae,
    )
    assert not torch.equal(weights(one), weights(two))
    torch.testing.assert_close(weights(one), weights(two), atol=5e-3, rtol=0)


def test_bf16_runs(tmp_path, vae):
    AcceleratorState._reset_state(reset_partial_state=True)  # one precision a process, says accelerate
    config = tiny_config(optimiser=OptimiserConfig(steps=2, batch=4, warmup=1, precision="bf16"))
    assert torch.isfinite(weights(run(config, tmp_path, vae))).all()
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_batch_that_does_not_divide_is_named(tmp_path, vae):
    config = tiny_config(optimiser=OptimiserConfig(steps=2, batch=4, accumulation=4))
    with pytest.raises(ValueError, match="a batch of 4 does not divide into 1 processes times 4"):
        run(config, tmp_path, vae)


def test_a_pretrained_codec_must_fit(tmp_path, vae):
    with pytest.raises(ValueError, match=r"does not fit the \[codec\] table"):
        run(tiny_config(), tmp_path, vae, codec=tiny_codec())


def test_the_collapse_of_all_losses_at_once_is_caught(tmp_path, vae):
    """The paper's collapse: imperceptibility from step 0 and far too heavy drives delta to nothing."""
    config = tiny_config(
        optimiser=OptimiserConfig(steps=400, batch=4, warmup=0, encoder_rate=2e-2),
        weights=WeightConfig(
            ddim=0, mag=0, kl_start=0, kl_end=0, prvl=0, regen=0, lcm=0.01, lafid=1e3, freq=0, neg=0
        ),
        delta=DeltaConfig(variational=False),
        log=LogConfig(log_every=100, save_every=400, measure_every=1000, measure_images=4, sample_every=0),
        guard=GuardConfig(delta_floor=1e-3),
    )
    with pytest.raises(
        StoppedError, match=r"step \d+: delta has collapsed.*open gates.imperceptibility later"
    ):
        run(config, tmp_path, vae)


def test_chance_after_the_warm_up_is_caught(tmp_path, vae):
    config = tiny_config(
        optimiser=OptimiserConfig(steps=40, batch=4, encoder_rate=0.0, decoder_rate=0.0),
        guard=GuardConfig(after=10, window=5, chance_accuracy=0.7),
    )
    with pytest.raises(StoppedError, match="step 10: bits are read by chance"):
        run(config, tmp_path, vae)


def test_nan_stops_with_the_step_and_the_loss(tmp_path, vae, monkeypatch):
    magnitude = losses.magnitude

    def broken(delta, target):
        value = magnitude(delta, target)
        return value * float("nan") if target < 0.09 else value  # at the third step

    monkeypatch.setattr(losses, "magnitude", broken)
    with pytest.raises(StoppedError, match="step 2: the loss 'loss_mag' is nan"):
        run(tiny_config(), tmp_path, vae)


def test_each_network_is_clipped_by_its_own_norm(monkeypatch):
    """And gradients are unscaled once: an fp16 scaler refuses a second time."""
    codec, accelerator, unscaled = codec_of(tiny_config()), make_accelerator("fp32", cpu=True), []
    optimiser = Optimiser(codec, accelerator, (0.0, 0.0), clips=(5.0, 1.0))
    for parameter in codec.parameters():
        parameter.grad = torch.ones_like(parameter)
    monkeypatch.setattr(accelerator, "unscale_gradients", lambda: unscaled.append(True))
    clipped = {}

    def watch(network, name, step):
        def call():
            clipped[name] = sum(float(p.grad.square().sum()) for p in network.parameters()) ** 0.5
            return step()

        return call

    for network, name, part in zip(
        optimiser.networks.values(), ("encoder", "decoder"), optimiser._optimisers, strict=True
    ):
        monkeypatch.setattr(part, "step", watch(network, name, part.step))
    norms = optimiser.update()
    assert unscaled == [True]
    for name, network, bound in zip(
        ("encoder", "decoder"), optimiser.networks.values(), (5.0, 1.0), strict=True
    ):
        whole = sum(p.numel() for p in network.parameters()) ** 0.5
        assert float(norms[f"gradient_{name}"]) == pytest.approx(whole, rel=1e-4)
        assert clipped[name] == pytest.approx(bound, rel=1e-3)


def test_three_kinds_of_attack_share_out_four_images(vae):
    config = tiny_config(
        optimiser=OptimiserConfig(steps=6, batch=8),
        gates=GateConfig(imperceptibility=0, robustness=0),
        robustness=RobustnessConfig(
            attacks={"jpeg": 1.0, "noise": 1.0, "blur": 1.0}, share_start=0.5, share_end=0.5, kinds=3
        ),
    )
    pixels, secrets = torch.zeros(8, 3, 64, 64), torch.zeros(8, 16, dtype=torch.long)
    terms, figures = through_pixels(codec_of(config), vae, pixels, secrets, config, 0, Draws(0, 0))
    assert {"accuracy_jpeg", "accuracy_noise", "accuracy_blur"} <= set(figures)
    assert terms["robust"].isfinite()


def test_a_replay_buffer_that_was_never_filled_can_be_resumed(tmp_path, vae):
    config = tiny_config()
    config = replace(config, paths=replace(config.paths, replay=8))
    run(config, tmp_path, vae, stop_after=3)
    assert isinstance(run(config, tmp_path, vae), Codec)
