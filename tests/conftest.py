"""Tiny real pipelines: diffusers' own classes at a size that runs in milliseconds, random weights."""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from browser import axe, chromium  # noqa: F401  # fixtures of all
from hypothesis import HealthCheck, settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # third-party import-time deprecations are not ours to fix
    import diffusers
    import transformers

from diffmark.latent.codec import Codec, NoiseCodec
from diffmark.latent.config import CodecConfig, NoiseConfig
from diffmark.latent.dosing import Dosing
from diffmark.latent.injection import Injection

# No test reads or makes the operator keys of whoever runs it, not even in fixtures of a module.
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="diffmark-tests-")
for variable in ("DIFFMARK_KEY", "DIFFMARK_KEY_FILE", "DIFFMARK_KEY_COMMAND"):
    os.environ.pop(variable, None)

# A busy machine is no failure: no test is about time.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")

diffusers.utils.logging.set_verbosity_error()
diffusers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)  # the models are tiny: a second thread only waits

SIDE = 64  # pixels; 8x8 latents
SEQUENCE, EMBED = 7, 32


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path, monkeypatch):
    """Every test starts without operator keys; a registry that it opens makes its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own data"))


@dataclass
class Rig:
    """A pipeline and the arguments it is called with."""

    pipe: Any
    arguments: dict[str, Any] = field(default_factory=dict)
    channels: int = 4

    def run(self, steps: int = 4, seed: int = 0, images: int = 1, **more: Any) -> torch.Tensor:
        """The pipeline's latents."""
        prompt = {
            name: value.repeat(images, *[1] * (value.ndim - 1)) if name.endswith("prompt_embeds") else value
            for name, value in self.arguments.items()
        }
        arguments = {
            "num_inference_steps": steps,
            "generator": torch.Generator().manual_seed(seed),
            "output_type": "latent",
            **prompt,
            **more,
        }
        return self.pipe(**arguments).images


def _vae(channels: int = 4, **more: Any) -> Any:
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=SIDE,
        **more,
    )


def _unet(**more: Any) -> Any:
    arguments = {
        "sample_size": SIDE // 8,
        "in_channels": 4,
        "out_channels": 4,
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": EMBED,
        "attention_head_dim": 4,
        "norm_num_groups": 4,
    }
    return diffusers.UNet2DConditionModel(**{**arguments, **more})


def _sd_scheduler(name: str = "DDIMScheduler", **more: Any) -> Any:
    settings = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", **more}
    if name == "DDIMScheduler":
        settings |= {"clip_sample": False, "set_alpha_to_one": True, "steps_offset": 1}
    if name == "PNDMScheduler":
        settings["skip_prk_steps"] = True
    return getattr(diffusers, name)(**settings)


def _embeds(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _sd(class_name: str = "StableDiffusionPipeline", scheduler: str = "DDIMScheduler", **unet: Any) -> Rig:
    pipe = getattr(diffusers, class_name)(
        vae=_vae(scaling_factor=0.18215),
        text_encoder=None,
        tokenizer=None,
        unet=_unet(**unet),
        scheduler=_sd_scheduler(scheduler),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    embeds = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
    }
    return Rig(pipe, {**embeds, "guidance_scale": 3.0})


def _img2img() -> Rig:
    rig = _sd("StableDiffusionImg2ImgPipeline")
    rig.arguments |= {
        "image": torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5)),
        "strength": 0.8,
    }
    return rig


def _inpaint(channels: int = 4) -> Rig:
    rig = _sd("StableDiffusionInpaintPipeline", in_channels=channels)
    mask = torch.zeros(1, 1, SIDE, SIDE)
    mask[..., : SIDE // 2] = 1  # repaint the left half
    image = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5))
    rig.arguments |= {"image": image, "mask_image": mask, "height": SIDE, "width": SIDE, "strength": 1.0}
    return rig


def _sdxl() -> Rig:
    pipe = diffusers.StableDiffusionXLPipeline(
        vae=_vae(scaling_factor=0.13025),
        text_encoder=None,
        text_encoder_2=transformers.CLIPTextModelWithProjection(
            transformers.CLIPTextConfig(
                vocab_size=32,
                hidden_size=EMBED,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                projection_dim=EMBED,
            )
        ),
        tokenizer=None,
        tokenizer_2=None,
        unet=_unet(
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=EMBED + 6 * 8,
        ),
        scheduler=_sd_scheduler("EulerDiscreteScheduler"),
        add_watermarker=False,
    )
    names = ("prompt_embeds", "negative_prompt_embeds")
    pooled = ("pooled_prompt_embeds", "negative_pooled_prompt_embeds")
    arguments = {name: _embeds(i, 1, SEQUENCE, EMBED) for i, name in enumerate(names)}
    arguments |= {name: _embeds(9 + i, 1, EMBED) for i, name in enumerate(pooled)}
    return Rig(pipe, {**arguments, "guidance_scale": 3.0})


def _sd3() -> Rig:
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=SIDE // 8,
        patch_size=1,
        in_channels=16,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=EMBED,
        pooled_projection_dim=64,
        out_channels=16,
    )
    pipe = diffusers.StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(16, scaling_factor=1.5305, shift_factor=0.0609),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        text_encoder_3=None,
        tokenizer_3=None,
    )
    names = ("prompt_embeds", "negative_prompt_embeds")
    pooled = ("pooled_prompt_embeds", "negative_pooled_prompt_embeds")
    arguments = {name: _embeds(i, 1, SEQUENCE, EMBED) for i, name in enumerate(names)}
    arguments |= {name: _embeds(9 + i, 1, 64) for i, name in enumerate(pooled)}
    return Rig(pipe, {**arguments, "guidance_scale": 3.0, "height": SIDE, "width": SIDE}, channels=16)


def _flux() -> Rig:
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=64,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=EMBED,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    pipe = diffusers.FluxPipeline(
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_vae(16, scaling_factor=0.3611, shift_factor=0.1159),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
    )
    arguments = {"prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED), "pooled_prompt_embeds": _embeds(2, 1, 32)}
    return Rig(pipe, {**arguments, "height": SIDE, "width": SIDE}, channels=16)


def _lcm() -> Rig:
    pipe = diffusers.LatentConsistencyModelPipeline(
        vae=_vae(scaling_factor=0.18215),
        text_encoder=transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                vocab_size=32,
                hidden_size=EMBED,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
            )
        ),
        tokenizer=None,
        unet=_unet(time_cond_proj_dim=16),
        scheduler=_sd_scheduler("LCMScheduler"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return Rig(pipe, {"prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED)})


_BUILDERS = {
    "sd": _sd,
    "img2img": _img2img,
    "inpaint": _inpaint,
    "inpaint9": functools.partial(_inpaint, 9),
    "sdxl": _sdxl,
    "sd3": _sd3,
    "flux": _flux,
    "lcm": _lcm,
}


@functools.cache
def _build(name: str) -> Rig:
    torch.manual_seed(0)
    rig = _BUILDERS[name]() if name in _BUILDERS else _sd(scheduler=name)
    rig.pipe.set_progress_bar_config(disable=True)
    for part in rig.pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
    return rig


@pytest.fixture
def rig() -> Any:
    """`rig(name)`: a tiny pipeline of that kind, or StableDiffusion with the scheduler class of that name."""
    return _build


def tiny_codec(channels: int = 4, seed: int = 0, **more: Any) -> Codec:
    """An untrained codec for 8x8 latents."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "length": 64,
        "channels": channels,
        "height": SIDE // 8,
        "width": SIDE // 8,
        "embed_dim": 16,
        "decoder_widths": (16, 32),
        "decoder_hidden": (64,),
    }
    dosing: dict[str, Any] = {"injection": Injection("persistent")}
    for name, value in more.items():
        (dosing if name in ("injection", "deviation", "doses") else settings)[name] = value
    return Codec(CodecConfig(**settings), Dosing(**dosing)).eval()


def tiny_noise_codec(seed: int = 0, **more: Any) -> NoiseCodec:
    """An untrained codec of initial noise for 8x8 latents."""
    torch.manual_seed(seed)
    return NoiseCodec(NoiseConfig(height=SIDE // 8, width=SIDE // 8, reader_widths=(8, 8, 8), **more)).eval()


@pytest.fixture
def codec() -> Codec:
    return tiny_codec()


@pytest.fixture
def secret() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, 64).astype(np.uint8)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A saved StableDiffusionPipeline with text encoder and tokenizer, as a user would have on disk."""
    import json

    folder = tmp_path_factory.mktemp("model")
    letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"{c}</w>" for c in "abcdefghijklmnopqrstuvwxyz")]
    vocabulary = {token: i for i, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16, unk_token="<|endoftext|>"
    )
    rig = _build("sd")
    text_encoder = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=len(vocabulary),
            hidden_size=EMBED,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
            bos_token_id=len(letters),
            eos_token_id=len(letters) + 1,
        )
    )
    parts = {**rig.pipe.components, "tokenizer": tokenizer, "text_encoder": text_encoder.eval()}
    diffusers.StableDiffusionPipeline(**parts, requires_safety_checker=False).save_pretrained(
        folder / "pipeline"
    )
    return folder / "pipeline"
