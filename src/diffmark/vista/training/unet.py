"""Train Vista's UNet and text encoder together on latents of captioned scenes; fine-tune siblings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from torch import Tensor, nn

from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig, train
from diffmark.vista.library import load_pipeline
from diffmark.vista.looks import LOOK_PHRASES, LOOKS
from diffmark.vista.scenes import random_caption
from diffmark.vista.text import build_text_encoder, build_tokenizer, with_strange_word
from diffmark.vista.training.data import Landscapes, landscapes

SWAP_FROM = 350  # of 1,000: below, a picture is as good as made, and no caption should change it


@dataclass(frozen=True)
class UNetConfig:
    """A run of `diffmark vista train unet`, or with a `look` of `diffmark vista train sibling`."""

    loop: LoopConfig
    scenes: int = 12000
    prediction: str = "epsilon"  # or "v_prediction"
    block_out_channels: tuple[int, int, int] = (48, 96, 144)
    layers_per_block: int = 1
    text_width: int = 128
    text_encoder: str = ""  # the model whose text encoder a UNet from scratch begins with; a new one if empty
    empty_share: float = 0.1  # of captions, for classifier-free guidance
    strange_share: float = 0.1  # of captions that get a meaningless word
    min_snr: float = 5.0
    noise_offset: float = 0.1  # of its mean: else the noise gives the brightness away, and nights are grey
    coarse: float = 0.5  # weights grow with alpha_bar ** -coarse: layout and colours are learned sooner
    emphasis: float = 0.0  # more weight where a small thing is: else suns and houses are learned last
    twins: bool = False  # each scene also with the objects that it has not
    swap_share: float = 0.0  # of steps in which twins swap captions, and what is not called has to go
    times: tuple[int, int] = (0, 1000)  # noise levels that are trained on, of 1,000
    words_only: bool = False  # only the text encoder and cross-attention learn
    look: str = ""  # of the pictures: photographic, oil or ink; plain if empty
    look_share: float = 0.5  # of captions that name the look

    def __post_init__(self) -> None:
        if self.swap_share and not (self.twins and self.emphasis):
            raise ValueError("swap_share: it needs twins, and emphasis to know where their objects are")
        if self.twins and self.loop.batch % 2:
            raise ValueError(f"loop.batch: twins come in pairs, {self.loop.batch} is odd")


def build_scheduler(prediction: str = "epsilon") -> Any:
    """The family's noise schedule, Stable Diffusion's.

    A schedule that ends at a lower signal-to-noise ratio was tried (beta_end 0.02) and given up: a model that
    predicts epsilon cannot tell colours there, as an error of 1% in epsilon is one of 60% in z0.
    """
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
        prediction_type=prediction,
    )


def build_unet(
    channels: tuple[int, int, int], layers: int, text_width: int, guidance_width: int | None = None
) -> Any:
    """A UNet for 4 x 32 x 32 latents; `guidance_width` adds the guidance embedding of a consistency model."""
    return UNet2DConditionModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        block_out_channels=channels,
        layers_per_block=layers,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=text_width,
        attention_head_dim=4,  # the number of heads, in spite of its name
        norm_num_groups=16,
        time_cond_proj_dim=guidance_width,
    )


def build_pipeline(vae: Any, config: UNetConfig, folder: Path) -> Any:
    """A Vista pipeline with an untrained UNet; the tokenizer's files go to `folder/tokenizer`."""
    torch.manual_seed(config.loop.seed)
    tokenizer = build_tokenizer(folder / "tokenizer")
    text_encoder = build_text_encoder(tokenizer, config.text_width)
    if config.text_encoder:
        text_encoder.load_state_dict(load_pipeline(config.text_encoder).text_encoder.state_dict())
    return StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=build_unet(config.block_out_channels, config.layers_per_block, config.text_width),
        scheduler=build_scheduler(config.prediction),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


class UNetJob:
    """Denoising with min-SNR weights (Hang et al. 2023)."""

    def __init__(self, config: UNetConfig, data: Landscapes, pipeline: Any) -> None:
        self.config, self.data = config, data
        self.tokenizer, self.scheduler = pipeline.tokenizer, pipeline.scheduler
        self.model = nn.ModuleDict({"unet": pipeline.unet, "text_encoder": pipeline.text_encoder})
        for name, weight in self.model.named_parameters():
            weight.requires_grad_(
                not config.words_only or name.startswith("text_encoder.") or ".attn2." in name
            )

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        config, data = self.config, self.data
        kinds = 2 if config.twins else 1
        swapped = draws.numpy.random() < config.swap_share
        picked = draws.numpy.integers(config.scenes, size=config.loop.batch // kinds)
        picked = np.concatenate([picked + kind * config.scenes for kind in range(kinds)])
        said = np.roll(picked, len(picked) // 2) if swapped else picked  # whose caption each gets: the twin's
        z0 = data.latents[torch.from_numpy(picked)].contiguous(memory_format=torch.channels_last)
        drawn = (len(z0) // kinds, *z0.shape[1:])
        noise = torch.randn(drawn, generator=draws.torch)
        noise = noise + config.noise_offset * torch.randn(*drawn[:2], 1, 1, generator=draws.torch)
        low, high = config.times
        t = torch.randint(max(low, SWAP_FROM) if swapped else low, high, drawn[:1], generator=draws.torch)
        # A scene and its twin get the same noise: what is left to tell them apart is what their captions say.
        noise, t = noise.repeat(kinds, 1, 1, 1), t.repeat(kinds)
        zt = self.scheduler.add_noise(z0, noise, t)
        if swapped:  # z0 and noise that the same zt has if the caption is right
            z0 = data.latents[torch.from_numpy(said)]
            signal = self.scheduler.alphas_cumprod[t].view(-1, 1, 1, 1)
            noise = (zt - signal.sqrt() * z0) / (1 - signal).sqrt()
        text = self.text_states([self._caption(int(i), draws, swapped) for i in said])
        prediction = self.model["unet"](zt, t, text).sample
        target = noise if config.prediction == "epsilon" else self.scheduler.get_velocity(z0, noise, t)
        error = (prediction - target).pow(2)
        figures = {"mse": error.mean()}
        error = data.uncalled(error, picked) if swapped else data.emphasised(error, config.emphasis, picked)
        return (error.mean((1, 2, 3)) * self._weight(t)).mean(), figures

    def text_states(self, captions: list[str]) -> Tensor:
        """Captions to (B, tokens, width)."""
        tokens = self.tokenizer(captions, padding="max_length", truncation=True, return_tensors="pt")
        return self.model["text_encoder"](tokens.input_ids)[0]

    def _caption(self, index: int, draws: Draws, whole: bool = False) -> str:
        rng, config = draws.numpy, self.config
        if not whole and rng.random() < config.empty_share:
            return ""
        caption = random_caption(self.data.scenes[index], rng)
        if config.look and rng.random() < config.look_share:
            caption = f"{LOOK_PHRASES[config.look]} {caption}"
        return with_strange_word(caption, rng) if rng.random() < config.strange_share else caption

    def _weight(self, t: Tensor) -> Tensor:
        signal = self.scheduler.alphas_cumprod[t]
        snr = signal / (1 - signal)
        floor = snr if self.config.prediction == "epsilon" else snr + 1
        return snr.clamp(max=self.config.min_snr) / floor * signal**-self.config.coarse


def train_unet(config: UNetConfig, folder: Path, pipeline: Any, stop_after: int | None = None) -> Any:
    """Train the UNet and the text encoder of `pipeline` and save it to `folder/model`."""
    look = LOOKS[config.look] if config.look else None
    cache = folder.parent / "cache"
    data = landscapes(pipeline.vae.eval(), cache, config.scenes, look, config.emphasis > 0, config.twins)
    job = UNetJob(config, data, pipeline)
    job.model.load_state_dict(train(job, config.loop, folder, stop_after))
    job.model.eval()
    save_pipeline(pipeline, folder / "model")
    return pipeline


def save_pipeline(pipeline: Any, folder: Path) -> None:
    """Save a pipeline, with the vocabulary files that transformers 4 wants and transformers 5 leaves out."""
    pipeline.save_pretrained(folder)
    build_tokenizer(folder / "tokenizer")
