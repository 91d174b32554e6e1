"""Training: run files, exact resume, every job of the family learns at tiny size."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage

from diffmark.provenance import weights_digest
from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig, train
from diffmark.training.run_file import from_dict, read_run_file
from diffmark.vista import load_pipeline
from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.paint import paint
from diffmark.vista.scenes import possible_objects, random_scene, twin_scene
from diffmark.vista.training.autoencoder import (
    AutoencoderConfig,
    AutoencoderJob,
    evaluate_autoencoder,
    train_autoencoder,
)
from diffmark.vista.training.classifier import ClassifierConfig, evaluate_classifier, train_classifier
from diffmark.vista.training.compression import (
    CompressionConfig,
    evaluate_compression,
    train_compression,
)
from diffmark.vista.training.data import (
    REACH,
    Landscapes,
    encoded,
    landscapes,
    painted,
    photographs,
    places,
)
from diffmark.vista.training.decoder import DecoderConfig, denoised, train_decoder
from diffmark.vista.training.lcm import LCMConfig, LCMJob, boundary_scalings, guidance_embedding, train_lcm
from diffmark.vista.training.unet import UNetConfig, UNetJob, build_pipeline, train_unet
from diffmark.vista.training.words import WordsConfig, train_words

CONFIGS = Path(__file__).parents[1] / "configs" / "vista"
LOOP = LoopConfig(steps=4, batch=2, learning_rate=1e-3, warmup=1, decay=2, ema=0.9, log_every=2, save_every=2)
UNET = UNetConfig(loop=LOOP, scenes=4, block_out_channels=(16, 16, 16), text_width=32)


def tiny_vae() -> PatchAutoencoder:
    torch.manual_seed(0)
    return PatchAutoencoder(block_out_channels=(4, 4, 8, 16), layers_per_block=1).eval()


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_run_file_can_be_read_and_says_its_command(path: Path) -> None:
    kinds = {"autoencoder": AutoencoderConfig, "classifier": ClassifierConfig, "lcm": LCMConfig}
    kinds |= {"compression": CompressionConfig, "decoder": DecoderConfig}
    kinds |= {"unet": UNetConfig, "sibling": UNetConfig, "words": WordsConfig}
    head = path.read_text().splitlines()[:3]
    command = head[0].split()
    assert command[:4] == ["#", "diffmark", "vista", "train"]
    assert f"configs/vista/{path.name}" in command
    assert head[1].startswith("# time:")
    assert head[2].startswith("# score:")
    assert read_run_file(path, kinds[command[4]]).loop.steps > 0


def test_unknown_and_missing_keys_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown key 'stepps'; there are steps, batch"):
        from_dict({"loop": {"stepps": 3}}, UNetConfig, "run.toml")
    with pytest.raises(ValueError, match=r"run\.toml: loop.*missing"):
        from_dict({"loop": {"steps": 3}}, UNetConfig, "run.toml")


def test_learning_rate_rises_stays_and_falls() -> None:
    config = LoopConfig(steps=100, batch=1, learning_rate=1.0, warmup=10, decay=20)
    rates = [config.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:80] == [1.0] * 71
    assert rates[99] == pytest.approx(0.05)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    config = AutoencoderConfig(loop=LOOP, crop=32, block_out_channels=(4, 4, 8, 16), layers_per_block=1)
    scenes = painted(tmp_path, 4, 64)

    def run(folder: str, stop: int | None = None) -> tuple[dict, dict]:
        job = AutoencoderJob(config, scenes, [])
        average = train(job, LOOP, tmp_path / folder, stop)
        return job.model.state_dict(), average

    whole = run("whole")
    run("parts", 2)
    parts = run("parts")
    assert equal(whole[0], parts[0])
    assert equal(whole[1], parts[1])
    assert not equal(whole[0], whole[1])
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    losses = [[json.loads(line)["loss"] for line in log] for log in logs]
    assert losses[0] == losses[1]


def landscapes_of(latents: torch.Tensor, places: torch.Tensor | None = None) -> Landscapes:
    return Landscapes([random_scene(i) for i in range(len(latents))], latents, places)


def test_twins_differ_in_their_objects_alone(tmp_path: Path) -> None:
    count = 4
    data = landscapes(tiny_vae(), tmp_path, count, small_things=True, twins=True)
    assert data.places is not None
    assert len(data.scenes) == len(data.latents) == len(data.places) == 2 * count
    found_in = [places(tmp_path, count, scene_of=kind) for kind in (random_scene, twin_scene)]
    either = torch.from_numpy(found_in[0] | found_in[1])
    for own, found in zip(data.places.chunk(2), found_in, strict=True):
        assert not (own & ~torch.from_numpy(found)).any()
    error = torch.ones(1, 1, 32, 32)
    weights = [data.emphasised(error, 3.0, np.array([i]))[0, 0] for i in (0, count)]
    assert torch.equal(weights[0], weights[1])  # a thing weighs the same where it is and where it is not
    things = (data.places[0] | data.places[count]).numpy()
    around = ndimage.binary_dilation(things, np.ones((2 * REACH + 1, 2 * REACH + 1)))
    assert np.array_equal(weights[0].numpy() == 4, around)
    for i in range(count):
        scene, twin = data.scenes[i], data.scenes[i + count]
        assert dataclasses.replace(twin, objects=scene.objects) == scene
        assert not set(scene.objects) & set(twin.objects)
        assert {*scene.objects, *twin.objects} == set(possible_objects(scene.ground))
        same = (paint(scene) == paint(twin)).all(-1)
        assert not same.all()
        if scene.weather not in ("foggy", "stormy"):  # their veils are drawn after the objects
            assert same.reshape(32, 8, 32, 8).mean((1, 3))[~either[i].numpy()].min() > 0.8


def test_a_resumed_unet_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    latents = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(0))

    def run(folder: str, stop: int | None = None) -> dict:
        job = UNetJob(UNET, landscapes_of(latents), build_pipeline(tiny_vae(), UNET, tmp_path / folder))
        return train(job, LOOP, tmp_path / folder, stop)

    whole = run("whole")
    run("parts", 2)
    assert equal(whole, run("parts"))


def test_emphasis_weighs_the_places_of_small_things(tmp_path: Path) -> None:
    latents = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    pipeline = build_pipeline(tiny_vae(), UNET, tmp_path)
    config = dataclasses.replace(UNET, emphasis=3.0)

    def loss(places: torch.Tensor | None) -> float:
        job = UNetJob(config, landscapes_of(latents, places), pipeline)
        return job.loss(0, Draws(0, 0))[0].item()

    assert loss(torch.ones(4, 8, 8, dtype=torch.bool)) == pytest.approx(4 * loss(None), rel=1e-5)
    assert loss(torch.zeros(4, 8, 8, dtype=torch.bool)) == pytest.approx(loss(None), rel=1e-5)
    left = torch.zeros(4, 8, 8, dtype=torch.bool)
    left[..., :4] = True
    assert loss(None) < loss(left) < 4 * loss(None)


def test_swapped_captions_ask_only_for_what_is_not_called_to_go(tmp_path: Path) -> None:
    config = dataclasses.replace(UNET, scenes=2, twins=True, swap_share=1.0, emphasis=1.0)
    pipeline = build_pipeline(tiny_vae(), config, tmp_path)
    torch.manual_seed(0)
    scenes = [kind(i) for kind in (random_scene, twin_scene) for i in range(2)]
    left = torch.zeros(4, 8, 8, dtype=torch.bool)
    left[..., :4] = True

    def loss(latents: torch.Tensor, places: torch.Tensor) -> float:
        job = UNetJob(config, Landscapes(scenes, latents, places, twins=True), pipeline)
        return sum(job.loss(step, Draws(0, step))[0].item() for step in range(8))  # early and late times

    latents = torch.randn(2, 4, 8, 8).repeat(2, 1, 1, 1)
    moved = latents.clone()
    moved[2:, :, :, :4] += 5  # twins differ on the left
    assert loss(latents, torch.zeros_like(left)) == 0
    assert loss(moved, left) > 2 * loss(latents, left)  # the way to the twin is far


def test_swapping_without_twins_is_refused() -> None:
    with pytest.raises(ValueError, match="swap_share: it needs twins"):
        dataclasses.replace(UNET, swap_share=0.5)
    with pytest.raises(ValueError, match="3 is odd"):
        dataclasses.replace(UNET, twins=True, loop=dataclasses.replace(LOOP, batch=3))


def test_words_only_leaves_the_rest_of_the_denoiser_alone(tmp_path: Path) -> None:
    config = dataclasses.replace(UNET, words_only=True)
    pipeline = build_pipeline(tiny_vae(), config, tmp_path)
    before = {name: value.clone() for name, value in pipeline.unet.state_dict().items()}
    latents = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    train(UNetJob(config, landscapes_of(latents), pipeline), LOOP, tmp_path / "run")
    changed = {
        name for name, value in pipeline.unet.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed
    assert all(".attn2." in name for name in changed)


def test_a_text_encoder_learns_to_say_its_words(tmp_path: Path) -> None:
    loop = dataclasses.replace(LOOP, steps=60, batch=8, learning_rate=3e-3, decay=1, ema=0.0, log_every=20)
    pipeline = build_pipeline(tiny_vae(), UNET, tmp_path / "made")
    before = {name: value.clone() for name, value in pipeline.unet.state_dict().items()}
    train_words(WordsConfig(loop=loop, scenes=50), tmp_path / "words", pipeline)
    log = [json.loads(line) for line in (tmp_path / "words" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["words"] < 0.5 * log[0]["words"]
    assert equal(before, pipeline.unet.state_dict())
    assert (tmp_path / "words" / "model" / "model_index.json").exists()


def test_noise_levels_of_a_distillation_open_from_the_lowest(tmp_path: Path) -> None:
    teacher = build_pipeline(tiny_vae(), UNET, tmp_path)
    config = LCMConfig(loop=LOOP, solver_steps=12, opening=24)
    job = LCMJob(config, landscapes_of(torch.zeros(2, 4, 8, 8)), teacher)
    assert [job.open_levels(step) for step in (0, 1, 3, 12, 23, 500)] == [1, 1, 2, 6, 12, 12]
    job.config = dataclasses.replace(config, opening=0)
    assert job.open_levels(0) == 12


def test_a_unet_from_scratch_can_begin_with_the_words_of_another_model(tmp_path: Path) -> None:
    config = dataclasses.replace(UNET, text_encoder="vista", text_width=128)
    made, given = build_pipeline(tiny_vae(), config, tmp_path), load_pipeline("vista")
    for name, weight in given.text_encoder.state_dict().items():
        assert torch.equal(made.text_encoder.state_dict()[name], weight), name


def test_autoencoder_run_from_pictures_to_scores(tmp_path: Path) -> None:
    from PIL import Image

    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(3):
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (80, 80, 3), np.uint8)).save(
            photos / f"{i}.png"
        )
    config = AutoencoderConfig(
        loop=LOOP, scenes=20, crop=32, held_out_photos=1, photo_share=0.5, block_out_channels=(4, 4, 8, 16)
    )
    vae = train_autoencoder(config, tmp_path / "run", photos)
    assert vae.config.scaling_factor != 1
    assert (tmp_path / "run/model/diffusion_pytorch_model.safetensors").exists()
    scores = evaluate_autoencoder(vae, tmp_path / "cache", None, count=2)
    assert 10 < scores["scenes_min"] <= scores["scenes"] < 40
    with pytest.raises(FileNotFoundError, match=r"no \.jpg or \.png"):
        photographs(tmp_path / "run")


def test_decoder_run_leaves_the_encoder_alone(tmp_path: Path) -> None:
    config = DecoderConfig(loop=LOOP, scenes=4, crop=64, refinement_channels=4, refinement_layers=1)
    pipeline = build_pipeline(tiny_vae(), UNET, tmp_path / "base")
    pipeline.vae.encoder[1].bias.data[0] = -0.0
    before = {name: value.clone() for name, value in pipeline.vae.state_dict().items()}
    trained = train_decoder(config, tmp_path / "whole", pipeline, None)
    after = trained.state_dict()
    assert weights_digest(trained.encoder, trained.encoder_skip) == weights_digest(
        pipeline.vae.encoder, pipeline.vae.encoder_skip
    )
    assert not all(torch.equal(before[name], after[name]) for name in before if name.startswith("decoder"))
    assert (tmp_path / "whole/model/diffusion_pytorch_model.safetensors").exists()
    train_decoder(config, tmp_path / "parts", pipeline, None, stop_after=2)
    assert equal(train_decoder(config, tmp_path / "parts", pipeline, None).state_dict(), after)


def test_denoised_latents_are_near_and_kept(tmp_path: Path) -> None:
    pipeline = build_pipeline(tiny_vae(), UNET, tmp_path / "base")
    latents = encoded(pipeline.vae, tmp_path, 3)
    smooth = denoised(pipeline, latents, tmp_path, (1, 20))
    assert 0 < float((smooth - latents).square().mean()) < 0.2
    assert torch.equal(denoised(pipeline, latents, tmp_path, (1, 20)), smooth)


def test_compression_run_trades_bits_for_quality(tmp_path: Path) -> None:
    loop = dataclasses.replace(LOOP, steps=40, learning_rate=3e-3, decay=1)
    config = CompressionConfig(
        loop=loop, scenes=4, crop=64, distortion_weights=(10.0, 1e5), width=8, channels=8, photo_share=0
    )
    model = train_compression(config, tmp_path / "run", None)
    x = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        y, bits = model(x, torch.tensor([1.0, 2.0]))
        assert torch.equal(y, model(x, torch.tensor([1.0, 2.0]))[0])  # rounds; no chance once trained
        between = model(x[:1], torch.tensor([1.5]))[1]
        same = model(x[:1].repeat(2, 1, 1, 1), torch.tensor([1.0, 2.0]))[1]
    assert y.shape == x.shape
    assert 0 < same[0] < between[0] < same[1]
    assert bits.shape == (2,)
    rows = evaluate_compression(model, tmp_path / "cache", None, count=2)
    assert [row["quality"] for row in rows] == [1, 2]
    assert rows[0]["scenes_bits_a_pixel"] < rows[1]["scenes_bits_a_pixel"]


def test_classifier_run(tmp_path: Path) -> None:
    classifier = train_classifier(ClassifierConfig(loop=LOOP, scenes=4), tmp_path / "run")
    scores = evaluate_classifier(classifier, tmp_path / "cache", count=4)
    assert set(scores) > {"time", "weather", "terrain", "ground", "celestial", "boat"}
    assert all(0 <= value <= 1 for value in scores.values())


@pytest.mark.parametrize(("prediction", "look"), [("epsilon", ""), ("v_prediction", ""), ("epsilon", "oil")])
def test_unet_run_saves_a_pipeline(tmp_path: Path, prediction: str, look: str) -> None:
    from diffusers import StableDiffusionPipeline

    config = dataclasses.replace(UNET, prediction=prediction, look=look, emphasis=1.0)
    untrained = build_pipeline(tiny_vae(), config, tmp_path / "run")
    before = {name: value.clone() for name, value in untrained.unet.state_dict().items()}
    train_unet(config, tmp_path / "run", untrained)
    pipeline: Any = StableDiffusionPipeline.from_pretrained(tmp_path / "run" / "model")
    assert pipeline.scheduler.config.prediction_type == prediction
    assert type(pipeline.vae).__name__ == "PatchAutoencoder"
    assert not equal(before, pipeline.unet.state_dict())


def test_lcm_run_and_its_pipeline(tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    teacher = build_pipeline(tiny_vae(), UNET, tmp_path / "teacher")
    train_lcm(LCMConfig(loop=LOOP, scenes=4, guidance_width=8, emphasis=1.0), tmp_path / "lcm", teacher)
    pipeline: Any = DiffusionPipeline.from_pretrained(tmp_path / "lcm" / "model")
    pipeline.set_progress_bar_config(disable=True)
    assert type(pipeline.scheduler).__name__ == "LCMScheduler"
    image = pipeline("green hills", num_inference_steps=2, guidance_scale=4.0, output_type="np").images[0]
    assert image.shape == (256, 256, 3)


def test_consistency_function_is_the_identity_at_zero() -> None:
    skip, out = boundary_scalings(torch.tensor([0.0, 500.0]))
    assert skip.flatten().tolist() == pytest.approx([1, 0], abs=1e-4)
    assert out.flatten().tolist() == pytest.approx([0, 1], abs=1e-4)


def test_guidance_embedding_is_the_pipelines(tmp_path: Path) -> None:
    pipeline = build_pipeline(tiny_vae(), UNET, tmp_path)
    wanted = pipeline.get_guidance_scale_embedding(torch.tensor([2.0, 6.5]), embedding_dim=16)
    assert torch.allclose(guidance_embedding(torch.tensor([3.0, 7.5]), 16), wanted, atol=1e-3)


def test_latents_are_kept(tmp_path: Path) -> None:
    vae = tiny_vae()
    first = encoded(vae, tmp_path, 3, size=64)
    assert first.shape == (3, 4, 8, 8)
    (kept,) = tmp_path.glob("latents-*.npy")
    np.save(kept, 2 * np.load(kept))
    assert torch.equal(encoded(vae, tmp_path, 3, size=64), 2 * first)
    for parameter in vae.parameters():  # another autoencoder has latents of its own
        parameter.data.zero_()
    assert not encoded(vae, tmp_path, 3, size=64).any()
