"""One tiny real pipeline of every family: diffusers' own classes, random weights, 8 x 8 latents by default."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import diffusers
import torch
import transformers
from conftest import (
    EMBED,
    SEQUENCE,
    SIDE,
    _embeds,
    _inpaint,
    _lcm,
    _sd,
    _sd3,
    _sd_scheduler,
    _sdxl,
    _unet,
    _vae,
)

FLOW = diffusers.FlowMatchEulerDiscreteScheduler


@dataclass
class Kind:
    """A pipeline, what it is called with, and what its latents look like."""

    pipe: Any
    arguments: dict[str, Any] = field(default_factory=dict)
    channels: int = 4
    sizes: bool = True  # whether it takes height and width
    frames: int = 0  # of a video

    def run(self, steps: int = 2, seed: int = 0, side: int = SIDE, **more: Any) -> Any:
        """Its output."""
        arguments = {
            name: value(side) if callable(value) else value for name, value in self.arguments.items()
        }
        if self.sizes:
            arguments |= {"height": side, "width": side}
        generator = torch.Generator().manual_seed(seed)
        return self.pipe(**{"num_inference_steps": steps, "generator": generator, **arguments, **more})


def picture(side: int) -> torch.Tensor:
    """A noisy picture in [0, 1], (1, 3, side, side)."""
    return torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(5))


def mask(side: int) -> torch.Tensor:
    """The left half is to be painted anew."""
    half = torch.zeros(1, 1, side, side)
    half[..., : side // 2] = 1
    return half


def _of(rig: Any, **more: Any) -> Kind:
    arguments = {
        k: v for k, v in rig.arguments.items() if k not in ("height", "width", "image", "mask_image")
    }
    return Kind(rig.pipe, {**arguments, **more}, rig.channels)


def _without_text(name: str, **parts: Any) -> Any:
    """A pipeline whose text encoders are left out: prompts are embedded already."""
    absent = {"text_encoder": None, "tokenizer": None}
    if name.startswith("Flux") and not name.startswith("Flux2"):
        absent |= {"text_encoder_2": None, "tokenizer_2": None}
    return getattr(diffusers, name)(**{**absent, **parts})


def _sdxl_of(name: str, **more: Any) -> Any:
    base = _sdxl()
    parts = {k: v for k, v in base.pipe.components.items() if k not in ("image_encoder", "feature_extractor")}
    return base, getattr(diffusers, name)(**parts, add_watermarker=False, **more)


def _sdxl_img2img() -> Kind:
    base, pipe = _sdxl_of("StableDiffusionXLImg2ImgPipeline")
    return Kind(pipe, {**base.arguments, "image": picture, "strength": 1.0}, sizes=False)


def _sdxl_inpaint() -> Kind:
    base, pipe = _sdxl_of("StableDiffusionXLInpaintPipeline")
    return Kind(pipe, {**base.arguments, "image": picture, "mask_image": mask, "strength": 1.0})


def _sdxl_controlnet() -> Kind:
    control = diffusers.ControlNetModel.from_unet(
        _sdxl().pipe.unet, conditioning_embedding_out_channels=(8, 8, 8, 16)
    )
    base, pipe = _sdxl_of("StableDiffusionXLControlNetPipeline", controlnet=control)
    return Kind(pipe, {**base.arguments, "image": picture})


def _flux(name: str = "FluxPipeline", channels: int = 64, **more: Any) -> Kind:
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=channels,
        out_channels=64,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=EMBED,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    vae = _vae(16, scaling_factor=0.3611, shift_factor=0.1159)
    pipe = _without_text(name, transformer=transformer, scheduler=FLOW(), vae=vae)
    embeds = {"prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED), "pooled_prompt_embeds": _embeds(2, 1, 32)}
    return Kind(pipe, {**embeds, **more}, 16)


def _flux2(name: str = "Flux2Pipeline") -> Kind:
    transformer = diffusers.Flux2Transformer2DModel(
        in_channels=128,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=EMBED,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=name == "Flux2Pipeline",
    )
    pipe = _without_text(name, transformer=transformer, scheduler=FLOW(), vae=flux2_vae())
    arguments = {"prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED)}
    if name == "Flux2KleinPipeline":
        arguments |= {"negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED)}
    return Kind(pipe, arguments, 32)


def flux2_vae() -> Any:
    """32 channels, and statistics of 2 x 2 patches of them that are neither 0 nor 1."""
    vae = diffusers.AutoencoderKLFlux2(
        block_out_channels=(8, 8, 8, 8),
        latent_channels=32,
        norm_num_groups=4,
        layers_per_block=1,
        sample_size=SIDE,
    )
    vae.bn.running_mean.copy_(_embeds(3, 128))
    vae.bn.running_var.copy_(_embeds(4, 128).square() + 0.5)
    return vae


def _pixart(name: str, scaling: float) -> Kind:
    transformer = diffusers.PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        cross_attention_dim=16,
        sample_size=SIDE // 8,
        caption_channels=EMBED,
        use_additional_conditions=False,
    )
    scheduler = diffusers.DPMSolverMultistepScheduler()
    pipe = _without_text(name, transformer=transformer, scheduler=scheduler, vae=_vae(scaling_factor=scaling))
    ones = torch.ones(1, SEQUENCE, dtype=torch.long)
    arguments = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "prompt_attention_mask": ones,
        "negative_prompt": None,
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
        "negative_prompt_attention_mask": ones,
        "use_resolution_binning": False,
    }
    return Kind(pipe, arguments)


def _sana() -> Kind:
    vae = diffusers.AutoencoderDC(
        latent_channels=32,
        encoder_block_types="ResBlock",
        decoder_block_types="ResBlock",
        encoder_block_out_channels=(8, 8, 8, 32),
        decoder_block_out_channels=(8, 8, 8, 32),
        encoder_layers_per_block=(1,) * 4,
        decoder_layers_per_block=(1,) * 4,
        encoder_qkv_multiscales=((),) * 4,
        decoder_qkv_multiscales=((),) * 4,
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )
    transformer = diffusers.SanaTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=EMBED,
        sample_size=SIDE // 8,
    )
    pipe = _without_text("SanaPipeline", transformer=transformer, scheduler=FLOW(), vae=vae)
    ones = torch.ones(1, SEQUENCE, dtype=torch.long)
    arguments = {
        "negative_prompt": None,
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "prompt_attention_mask": ones,
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
        "negative_prompt_attention_mask": ones,
        "use_resolution_binning": False,
    }
    return Kind(pipe, arguments, 32)


def _aura_flow() -> Kind:
    transformer = diffusers.AuraFlowTransformer2DModel(
        sample_size=SIDE // 8,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=EMBED,
        caption_projection_dim=16,
    )
    vae = _vae(scaling_factor=0.13025)
    pipe = _without_text("AuraFlowPipeline", transformer=transformer, scheduler=FLOW(), vae=vae)
    ones = torch.ones(1, SEQUENCE, dtype=torch.long)
    arguments = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "prompt_attention_mask": ones,
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
        "negative_prompt_attention_mask": ones,
    }
    return Kind(pipe, arguments)


def _hunyuan_dit() -> Kind:
    transformer = diffusers.HunyuanDiT2DModel(
        sample_size=SIDE // 8,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=3,
        in_channels=4,
        cross_attention_dim=32,
        cross_attention_dim_t5=32,
        pooled_projection_dim=16,
        hidden_size=24,
        text_len=SEQUENCE,
        text_len_t5=SEQUENCE,
    )
    pipe = _without_text(
        "HunyuanDiTPipeline",
        transformer=transformer,
        scheduler=diffusers.DDPMScheduler(),
        vae=_vae(scaling_factor=0.13025),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    ones = torch.ones(1, SEQUENCE, dtype=torch.long)
    arguments: dict[str, Any] = {"use_resolution_binning": False}
    for index, name in enumerate(("prompt", "negative_prompt")):
        for end in ("", "_2"):
            arguments[f"{name}_embeds{end}"] = _embeds(index, 1, SEQUENCE, 32)
            arguments[f"{name}_attention_mask{end}"] = ones
    return Kind(pipe, arguments)


def _kolors() -> Kind:
    unet = _unet(
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=EMBED + 6 * 8,
    )
    scheduler = _sd_scheduler("EulerDiscreteScheduler")
    pipe = _without_text("KolorsPipeline", unet=unet, scheduler=scheduler, vae=_vae(scaling_factor=0.13025))
    arguments = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
        "pooled_prompt_embeds": _embeds(3, 1, EMBED),
        "negative_pooled_prompt_embeds": _embeds(4, 1, EMBED),
    }
    return Kind(pipe, arguments)


def _lumina2() -> Kind:
    transformer = diffusers.Lumina2Transformer2DModel(
        sample_size=SIDE // 8,
        hidden_size=24,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=3,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(128, 128, 128),
        cap_feat_dim=EMBED,
    )
    vae = _vae(16, scaling_factor=0.3611, shift_factor=0.1159)
    pipe = _without_text("Lumina2Pipeline", transformer=transformer, scheduler=FLOW(), vae=vae)
    ones = torch.ones(1, SEQUENCE, dtype=torch.bool)
    arguments = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "prompt_attention_mask": ones,
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
        "negative_prompt_attention_mask": ones,
    }
    return Kind(pipe, arguments, 16)


def _chroma() -> Kind:
    transformer = diffusers.ChromaTransformer2DModel(
        in_channels=64,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=EMBED,
        axes_dims_rope=(4, 4, 8),
        approximator_num_channels=8,
        approximator_hidden_dim=32,
        approximator_layers=1,
    )
    vae = _vae(16, scaling_factor=0.3611, shift_factor=0.1159)
    pipe = _without_text("ChromaPipeline", transformer=transformer, scheduler=FLOW(), vae=vae)
    ones = torch.ones(1, SEQUENCE)
    arguments = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "prompt_attention_mask": ones,
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
        "negative_prompt_attention_mask": ones,
    }
    return Kind(pipe, arguments, 16)


def _qwen() -> Kind:
    transformer = diffusers.QwenImageTransformer2DModel(
        in_channels=64,
        out_channels=16,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=EMBED,
        axes_dims_rope=(8, 4, 4),
    )
    pipe = _without_text("QwenImagePipeline", transformer=transformer, scheduler=FLOW(), vae=qwen_vae())
    ones = torch.ones(1, SEQUENCE, dtype=torch.long)
    arguments = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "prompt_embeds_mask": ones,
        "true_cfg_scale": 1.0,
    }
    return Kind(pipe, arguments, 16)


def qwen_vae() -> Any:
    """16 channels with a mean and a deviation each, (B, C, F, h, w)."""
    return diffusers.AutoencoderKLQwenImage(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1)


def _z_image() -> Kind:
    transformer = diffusers.ZImageTransformer2DModel(
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=EMBED,
        axes_dims=[8, 4, 4],
        axes_lens=[256, 64, 64],
    )
    with torch.no_grad():  # the two tokens that pad are left as memory was
        for name in ("x_pad_token", "cap_pad_token"):
            getattr(transformer, name).zero_()
    vae = _vae(16, scaling_factor=0.3611, shift_factor=0.1159)
    pipe = _without_text("ZImagePipeline", transformer=transformer, scheduler=FLOW(), vae=vae)
    arguments = {"prompt_embeds": [_embeds(1, SEQUENCE, EMBED)], "guidance_scale": 0.0}
    return Kind(pipe, arguments, 16)


def wan_vae() -> Any:
    """As Qwen-Image's, for videos."""
    return diffusers.AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1)


def _wan() -> Kind:
    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        text_dim=EMBED,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=64,
    )
    scheduler = diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    pipe = _without_text("WanPipeline", transformer=transformer, scheduler=scheduler, vae=wan_vae())
    embeds = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
    }
    return Kind(pipe, {**embeds, "num_frames": 5}, 16, frames=5)


def _ltx() -> Kind:
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5,
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        patch_size=2,
    )
    vae.latents_mean.copy_(_embeds(3, 8))
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=1,
        caption_channels=EMBED,
    )
    pipe = _without_text("LTXPipeline", transformer=transformer, scheduler=FLOW(), vae=vae)
    ones = torch.ones(1, SEQUENCE, dtype=torch.long)
    arguments = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "prompt_attention_mask": ones,
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
        "negative_prompt_attention_mask": ones,
        "num_frames": 5,
    }
    return Kind(pipe, arguments, 8, frames=5)


def _animate_diff() -> Kind:
    adapter = diffusers.MotionAdapter(
        block_out_channels=(8, 16),
        motion_layers_per_block=1,
        motion_norm_num_groups=4,
        motion_num_attention_heads=2,
    )
    text = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=32, hidden_size=EMBED, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
    )
    pipe = diffusers.AnimateDiffPipeline(
        vae=_vae(scaling_factor=0.18215),
        text_encoder=text,
        tokenizer=None,
        unet=_unet(),
        motion_adapter=adapter,
        scheduler=_sd_scheduler(),
    )
    embeds = {
        "prompt_embeds": _embeds(1, 1, SEQUENCE, EMBED),
        "negative_prompt_embeds": _embeds(2, 1, SEQUENCE, EMBED),
    }
    return Kind(pipe, {**embeds, "num_frames": 3, "decode_chunk_size": 2}, frames=3)


BUILDERS: dict[str, Callable[[], Kind]] = {
    "StableDiffusion": lambda: _of(_sd()),
    "StableDiffusion inpaint": lambda: _of(_inpaint(), image=picture, mask_image=mask),
    "LCM": lambda: _of(_lcm()),
    "PixArt-alpha": lambda: _pixart("PixArtAlphaPipeline", 0.18215),
    "AnimateDiff": _animate_diff,
    "SDXL": lambda: _of(_sdxl()),
    "SDXL img2img": _sdxl_img2img,
    "SDXL inpaint": _sdxl_inpaint,
    "SDXL ControlNet": _sdxl_controlnet,
    "PixArt-Sigma": lambda: _pixart("PixArtSigmaPipeline", 0.13025),
    "AuraFlow": _aura_flow,
    "HunyuanDiT": _hunyuan_dit,
    "Kolors": _kolors,
    "SD3": lambda: _of(_sd3()),
    "FLUX": _flux,
    "FLUX Kontext": lambda: _flux(
        "FluxKontextPipeline", image=picture, _auto_resize=False, max_area=lambda side: side**2
    ),
    "FLUX Fill": lambda: _flux("FluxFillPipeline", 384, image=picture, mask_image=mask),
    "Chroma": _chroma,
    "Lumina 2": _lumina2,
    "Z-Image": _z_image,
    "FLUX.2": _flux2,
    "FLUX.2 klein": lambda: _flux2("Flux2KleinPipeline"),
    "Qwen-Image": _qwen,
    "Wan": _wan,
    "Sana": _sana,
    "LTX-Video": _ltx,
}


@functools.cache
def build(name: str) -> Kind:
    """The pipeline of that name, once for all tests."""
    torch.manual_seed(0)
    kind = BUILDERS[name]()
    kind.pipe.set_progress_bar_config(disable=True)
    for part in kind.pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
    return kind
