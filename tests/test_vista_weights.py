"""The shipped weights: small enough, and as good as their cards say."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from diffmark import weights
from diffmark.latent.pictures import from_levels, to_levels
from diffmark.latent.vae import decode, encode
from diffmark.metrics import blockiness
from diffmark.provenance import weights_digest
from diffmark.vista import library, load_autoencoder, load_classifier, load_pipeline, model_names
from diffmark.vista.classifier import agreement, targets
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, caption, random_scene
from diffmark.vista.training.autoencoder import reconstruction_psnr


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    return np.stack([paint(random_scene(HELD_OUT + i)) for i in range(8)])


@pytest.fixture(scope="module")
def pipeline() -> Any:
    pipeline = load_pipeline("vista")
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_the_family_stays_small() -> None:
    assert size(library.BUNDLED) < 40e6
    assert size(library.BUNDLED) + size(weights.CLONE / "siblings") < 90e6
    assert {"vista", "vista-lcm"} <= set(model_names())


def test_a_fresh_interpreter_loads_the_pipeline() -> None:
    """diffusers refuses classes of modules that nobody imported; within these tests somebody always has."""
    code = "from diffmark.vista import load_pipeline; print(type(load_pipeline().vae).__name__)"
    source = Path(library.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.split()[-1:] == ["PatchAutoencoder"], done.stderr


def test_autoencoder_reconstructs_unseen_scenes(pictures: np.ndarray) -> None:
    assert np.mean(reconstruction_psnr(load_autoencoder(), pictures)) > 30


def test_the_latent_space_is_the_one_that_denoisers_and_codecs_were_trained_for() -> None:
    vae = load_autoencoder()
    assert weights_digest(vae.encoder, vae.encoder_skip, half=True) == "d1b229603f8b1135"


@torch.no_grad()
def test_marks_do_not_show_as_tiles(pictures: np.ndarray) -> None:
    """Noise on latents, as strong as a mark, does not draw the grid of 8 x 8 pixels into the picture."""
    vae = load_autoencoder()
    z = encode(vae, from_levels(pictures))
    noise = 0.08 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
    plain, marked = (
        np.mean([blockiness(Image.fromarray(picture)) for picture in to_levels(decode(vae, latents))])
        for latents in (z, z + noise)
    )
    assert marked < 1.1 * plain
    assert 0.7 < plain < 1.2


@torch.no_grad()
def test_classifier_knows_unseen_scenes() -> None:
    scenes = [random_scene(HELD_OUT + 5000 + i) for i in range(60)]
    logits = load_classifier()(from_levels(np.stack([paint(scene) for scene in scenes])))
    right = agreement(logits, targets(scenes))
    assert len(right) == 9
    for name, found in right.items():
        assert float(found.float().mean()) >= 0.95, name


@torch.no_grad()
def test_scaled_latents_have_unit_deviation(pictures: np.ndarray) -> None:
    vae: Any = load_autoencoder()
    latents = vae.encode(from_levels(pictures)).latent_dist.mode() * vae.config.scaling_factor
    assert float(latents.std()) == pytest.approx(1, abs=0.15)


def test_prompts_are_followed_in_a_few_steps(pipeline: Any) -> None:
    prompts = ["green hills at night above a lake", "green hills at noon above a snowfield"]
    images = pipeline(
        prompts,
        num_inference_steps=6,
        guidance_scale=3.0,
        generator=[torch.Generator().manual_seed(i) for i in range(2)],
        output_type="np",
    ).images
    night, noon = images
    assert night.mean() < 0.35 < 0.5 < noon.mean()
    assert noon[200:].mean() > 0.6  # snow


@torch.no_grad()
def test_the_consistency_model_follows_prompts_in_four_steps() -> None:
    lcm, scenes = load_pipeline("vista-lcm"), [random_scene(HELD_OUT + 7000 + i) for i in range(16)]
    lcm.set_progress_bar_config(disable=True)
    images = lcm(
        [caption(scene) for scene in scenes],
        num_inference_steps=4,
        guidance_scale=4.0,
        generator=[torch.Generator().manual_seed(i) for i in range(len(scenes))],
        output_type="np",
    ).images
    right = agreement(
        load_classifier()(from_levels((images * 255).round().astype(np.uint8))), targets(scenes)
    )
    for name in ("time", "weather", "terrain", "ground"):
        assert float(right[name].float().mean()) > 0.7, name


def test_weights_are_half_precision_and_names_are_clean(pipeline: Any) -> None:
    from safetensors import safe_open

    for path in library.BUNDLED.rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        assert kinds <= {"F16", "I64"}, path
    for path in library.BUNDLED.rglob("*.json"):
        assert "_name_or_path" not in path.read_text(), path
    assert pipeline.unet.dtype == pipeline.text_encoder.dtype == pipeline.vae.dtype == torch.float32


@pytest.mark.parametrize(
    "folder", sorted((weights.CLONE / "siblings").glob("*/")), ids=lambda folder: folder.name
)
def test_siblings_share_the_latent_space_and_paint_otherwise(folder: Any, pipeline: Any) -> None:
    sibling = load_pipeline(folder.name)
    sibling.set_progress_bar_config(disable=True)
    ours, theirs = pipeline.vae.state_dict(), sibling.vae.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    made = [
        np.asarray(
            pipe(
                "green hills at noon", num_inference_steps=2, generator=torch.Generator().manual_seed(0)
            ).images[0]
        )
        for pipe in (pipeline, sibling)
    ]
    assert made[0].shape == made[1].shape == (256, 256, 3)
    assert abs(made[0].astype(float) - made[1]).mean() > 2
    assert "command" in (folder / "README.md").read_text()
