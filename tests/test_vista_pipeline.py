"""Vista inside diffusers: generation, guidance, negative prompts, img2img, inpainting, saving, loading."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline, StableDiffusionPipeline
from PIL import Image

from diffmark.training.loop import LoopConfig
from diffmark.vista import load_classifier, load_pipeline, model_digest, model_names
from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.bundle import bundle_model
from diffmark.vista.evaluation import (
    contact_sheet,
    evaluate_pictures,
    generate,
)
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene, vocabulary
from diffmark.vista.text import build_tokenizer, with_strange_word
from diffmark.vista.training.unet import UNetConfig, build_pipeline

LOOP = LoopConfig(steps=1, batch=1, learning_rate=1e-3)
PROMPT = "snowy mountains at dawn above a lake"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny untrained Vista pipeline, saved by diffusers and bundled in half precision."""
    path = tmp_path_factory.mktemp("vista")
    torch.manual_seed(0)
    vae = PatchAutoencoder(block_out_channels=(4, 4, 8, 16), layers_per_block=1)
    config = UNetConfig(loop=LOOP, block_out_channels=(16, 16, 16), text_width=32)
    pipeline = build_pipeline(vae, config, path)
    torch.nn.init.normal_(pipeline.unet.conv_out.weight, std=0.2)
    for parameter in pipeline.text_encoder.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    pipeline.save_pretrained(path / "saved")
    assert bundle_model(path / "saved", path / "siblings" / "tiny") < 3e6
    return path


@pytest.fixture
def pipeline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DIFFMARK_WEIGHTS", str(folder))
    pipeline = load_pipeline("tiny")
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def run(pipeline: Any, *args: Any, seed: int = 0, **options: Any) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    return pipeline(
        *args, generator=generator, output_type="np", **{"num_inference_steps": 3, **options}
    ).images[0]


def test_plain_diffusers_loads_the_folder(folder: Path) -> None:
    pipeline: Any = StableDiffusionPipeline.from_pretrained(folder / "siblings/tiny").to(torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    assert isinstance(pipeline.vae, PatchAutoencoder)
    assert pipeline.vae_scale_factor == 8
    assert run(pipeline, PROMPT).shape == (256, 256, 3)


def test_bundled_files_name_no_folder_and_are_half_precision(folder: Path) -> None:
    from safetensors.torch import load_file

    for path in (folder / "siblings/tiny").rglob("*.json"):
        assert str(folder) not in path.read_text(), path
    weights = load_file(next((folder / "siblings/tiny/unet").glob("*.safetensors")))
    assert {value.dtype for value in weights.values()} == {torch.float16}
    with pytest.raises(FileNotFoundError, match=r"no model_index\.json"):
        bundle_model(folder / "siblings/tiny/scheduler", folder / "nothing")


def test_a_bundled_sibling_links_to_the_autoencoder(folder: Path) -> None:
    for _ in range(2):  # a second time over the first
        bundle_model(folder / "saved", folder / "sibling", vae=folder / "siblings/tiny/vae")
    link = folder / "sibling/vae"
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    linked, copied = (
        StableDiffusionPipeline.from_pretrained(folder / name).vae.state_dict()
        for name in ("sibling", "siblings/tiny")
    )
    assert all(torch.equal(linked[name], copied[name]) for name in copied)


def test_a_seed_is_one_image_and_guidance_changes_it(pipeline: Any) -> None:
    image = run(pipeline, PROMPT, guidance_scale=3.0)
    assert np.array_equal(image, run(pipeline, PROMPT, guidance_scale=3.0))
    assert not np.array_equal(image, run(pipeline, PROMPT, guidance_scale=7.5))
    assert not np.array_equal(image, run(pipeline, PROMPT, guidance_scale=3.0, seed=1))
    assert not np.array_equal(image, run(pipeline, PROMPT, guidance_scale=3.0, negative_prompt="fog"))
    assert not np.array_equal(image, run(pipeline, "desert dunes", guidance_scale=3.0))


def test_latents_come_out_and_decode_to_the_image(pipeline: Any) -> None:
    image = run(pipeline, PROMPT)
    generator = torch.Generator().manual_seed(0)
    z0 = pipeline(PROMPT, num_inference_steps=3, generator=generator, output_type="latent").images
    assert z0.shape == (1, 4, 32, 32)
    with torch.no_grad():
        decoded = pipeline.vae.decode(z0 / pipeline.vae.config.scaling_factor).sample
    assert np.allclose((decoded[0] / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).numpy(), image, atol=1e-5)


def test_img2img_stays_close_at_low_strength(pipeline: Any) -> None:
    img2img = StableDiffusionImg2ImgPipeline(**pipeline.components, requires_safety_checker=False)
    img2img.set_progress_bar_config(disable=True)
    start = Image.fromarray(np.full((256, 256, 3), (200, 120, 60), np.uint8))
    weak, strong = (
        run(img2img, PROMPT, image=start, strength=strength, num_inference_steps=20)
        for strength in (0.05, 0.9)
    )
    away = [np.abs(image - np.asarray(start) / 255).mean() for image in (weak, strong)]
    assert away[0] < 0.5 * away[1]


def test_inpainting_keeps_what_is_not_masked(pipeline: Any) -> None:
    inpaint = StableDiffusionInpaintPipeline(**pipeline.components, requires_safety_checker=False)
    inpaint.set_progress_bar_config(disable=True)
    start = np.full((256, 256, 3), (200, 120, 60), np.uint8)
    mask = np.zeros((256, 256), np.uint8)
    mask[:, 128:] = 255
    image = run(inpaint, PROMPT, image=Image.fromarray(start), mask_image=Image.fromarray(mask), strength=1.0)
    difference = np.abs(image - start / 255).mean(-1)
    assert difference[:, :100].mean() < 0.05
    assert difference[:, 156:].mean() > 0.1


def test_larger_pictures_and_batches(pipeline: Any) -> None:
    images = pipeline([PROMPT] * 2, height=192, width=320, num_inference_steps=2, output_type="np").images
    assert images.shape == (2, 192, 320, 3)


def test_unknown_names_list_the_known(pipeline: Any) -> None:
    assert "tiny" in model_names()
    with pytest.raises(ValueError, match=r"no Vista model 'vistula'; there are: .*tiny"):
        load_pipeline("vistula")


def test_every_caption_word_is_one_token(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tmp_path)
    for word in vocabulary():
        assert len(tokenizer(word).input_ids) == 3, word
    ids = tokenizer("Snowy Mountains,  at dawn").input_ids
    assert ids == tokenizer("snowy mountains, at dawn").input_ids
    assert tokenizer.unk_token_id not in tokenizer("zyx qüê 7").input_ids[1:-1]
    rng = np.random.default_rng(0)
    assert len(with_strange_word(PROMPT, rng).split()) == len(PROMPT.split()) + 1


def test_generate_gives_each_prompt_its_own_seed(pipeline: Any) -> None:
    together = np.stack(list(generate(pipeline, [PROMPT] * 3, steps=2, guidance=2.0, batch=3))).astype(int)
    apart = np.stack(list(generate(pipeline, [PROMPT] * 3, steps=2, guidance=2.0, batch=1))).astype(int)
    assert abs(together - apart).max() <= 1
    assert abs(together[0] - together[1]).max() > 2


def test_painted_scenes_are_what_their_captions_say() -> None:
    """The measure itself: the scenes' own pictures score as well as the classifier can, wrong ones do not."""
    scenes, classifier = [random_scene(HELD_OUT + i) for i in range(24)], load_classifier()
    pictures = [paint(scene) for scene in scenes]
    right = evaluate_pictures(pictures, scenes, classifier)
    wrong = evaluate_pictures(pictures[::-1], scenes, classifier)
    for name in ("time", "ground", "terrain"):
        assert right["alignment"][name]["rate"] > 0.85 > 0.5 > wrong["alignment"][name]["rate"]
        low, high = right["alignment"][name]["interval"]
        assert low < right["alignment"][name]["rate"] <= high
    assert right["frechet"] == pytest.approx(0, abs=1e-3)
    assert right["called"]["tree"] > 0.8 > 0.2 > right["uncalled"]["tree"]
    assert right["frechet_floor"] == wrong["frechet_floor"] > 0


def test_a_digest_tells_weights_apart(pipeline: Any, folder: Path) -> None:
    assert len(model_digest("tiny")) == 12
    assert model_digest("tiny") != model_digest("vista")


def test_contact_sheet_fills_the_last_row() -> None:
    sheet = contact_sheet([np.zeros((4, 4, 3), np.uint8)] * 5, columns=3)
    assert sheet.shape == (8, 12, 3)
    assert (sheet[4:, 8:] == 255).all()
