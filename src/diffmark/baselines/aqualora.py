"""AquaLoRA (Feng et al., 2024): a LoRA on the UNet writes 48 bits; a scaling matrix between its two factors holds
the message, so that another message needs no training.

As in its paper: 48 bits; first a latent watermark, delta(message), is trained together with the secret decoder;
then a LoRA with weight B diag(s(message)) A learns to lead the UNet to z0 + delta while everything else stays
what the frozen UNet would have painted (prior-preserving fine-tuning). Deviations, made for one CPU core and a
UNet of 6 M parameters:
- rank 16 (320 in the paper), on the convolutions and attention outputs of the middle and upper blocks only;
- the inner factor of the LoRA sees cosines of the position beside the features: a pattern is tied to places, and
  the features of this UNet tell too little of where they are (docs/baselines.md);
- hundreds of steps of batch 8; the bits themselves are a loss of the second stage too, and the decoder goes on
  learning in it: what a small UNet draws of delta in so few steps is less than delta;
- the decoder reads the latents of the image (as DiffMark's does), not its pixels, and the distortions of the
  first stage are those of latents: a step costs milliseconds that way;
- delta is coarse, 8 x 8 cells, and the same for all images; the paper's is learned at full size.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from diffmark.baselines.base import Method
from diffmark.baselines.weights import baseline_folder, conv, scaled_to, signs
from diffmark.latent.pictures import to_pixels
from diffmark.latent.vae import encode
from diffmark.mark.generation import ImageSpec, Sampling
from diffmark.provenance import weights_digest

ADAPTER = "aqualora"
TARGETS = r"(mid_block|up_blocks)\..*(conv1|conv2|upsamplers\.0\.conv|to_out\.0|ff\.net\.2)|conv_out"


class LatentWatermark(nn.Module):
    """delta(message) and the secret decoder, for latents (B, channels, side, side); messages are -1 and 1."""

    def __init__(
        self, bits: int = 48, channels: int = 4, side: int = 32, grid: int = 8, rms: float = 0.3
    ) -> None:
        super().__init__()
        self.shape, self.side, self.rms = (channels, grid, grid), side, rms
        self.secret = nn.Linear(bits, channels * grid**2, bias=False)
        nn.init.orthogonal_(self.secret.weight)
        self.decoder = nn.Sequential(
            conv(channels, 32), conv(32, 48, stride=2), conv(48, 48), conv(48, 48, stride=2), nn.Conv2d(48, 24, 1),
            nn.Flatten(), nn.Linear(24 * (side // 4) ** 2, bits),
        )  # fmt: skip
        self.correlate = nn.Linear(channels * grid**2, bits)  # learned at once; the network grows on it

    def delta(self, messages: Tensor, rms: float | None = None) -> Tensor:
        """The mark in the latents, (B, channels, side, side)."""
        coarse = self.secret(messages).view(-1, *self.shape)
        return scaled_to(F.interpolate(coarse, (self.side, self.side), mode="bilinear"), rms or self.rms)

    def forward(self, latents: Tensor) -> Tensor:
        """Logits of the bits, (B, bits)."""
        pooled = F.adaptive_avg_pool2d(latents, self.shape[1:]).flatten(1)
        return self.decoder(latents) + self.correlate(pooled)


class Inner(nn.Module):
    """What stands between a LoRA's two factors: A x plus a map of the place, times scales made of the message."""

    def __init__(self, bits: int, rank: int, waves: int = 8) -> None:
        super().__init__()
        self.scale = nn.Linear(bits, rank)
        nn.init.normal_(self.scale.weight, std=bits**-0.5)
        nn.init.zeros_(self.scale.bias)
        self.place = nn.Linear(waves**2, rank, bias=False)
        self.waves = waves

    def forward(self, values: Tensor, messages: Tensor) -> Tensor:
        """Of A x, (B, rank, h, w) or (B, h w, rank), and one message a sample or one for all, (B, bits)."""
        scales = self.scale(messages)
        if values.ndim == 3:
            side = math.isqrt(values.shape[1])
            return (values + self.place(place_waves(side, side, self.waves))) * scales[:, None]
        placed = self.place(place_waves(*values.shape[2:], self.waves)).T.view(1, -1, *values.shape[2:])
        return (values + placed) * scales[:, :, None, None]


@lru_cache
def place_waves(height: int, width: int, waves: int) -> Tensor:
    """Products of cosines of 0 to `waves` - 1 half waves each way, one row a place: (height width, waves^2)."""
    down, across = (
        torch.cos(torch.pi * torch.outer((torch.arange(size) + 0.5) / size, torch.arange(waves)))
        for size in (height, width)
    )
    return torch.einsum("yi,xj->yxij", down, across).reshape(height * width, waves**2)


class MessageLora(nn.Module):
    """A UNet with a LoRA that depends on the message that was set last."""

    def __init__(self, unet: Any, bits: int = 48, rank: int = 16) -> None:
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            raise ImportError("AquaLoRA needs peft: pip install 'diffmark[eval]'") from error

        super().__init__()
        unet.requires_grad_(False)
        config = LoraConfig(r=rank, lora_alpha=rank, target_modules=TARGETS)
        self.unet = inject_adapter_in_model(config, unet, ADAPTER)
        inner = {n: m for n, m in unet.named_modules() if n.endswith(f"lora_A.{ADAPTER}")}
        self.inner = nn.ModuleDict({name.replace(".", "-"): Inner(bits, rank) for name in inner})
        self._messages = torch.zeros(1, bits)
        for name, module in inner.items():
            between = self.inner[name.replace(".", "-")]
            module.register_forward_hook(
                lambda _m, _given, out, between=between: between(out, self._messages)
            )

    def set_message(self, messages: Tensor) -> None:
        """Messages of -1 and 1 for the next calls, one a sample or one for all, (B, bits)."""
        self._messages = messages

    def adapter_state(self) -> dict[str, Tensor]:
        """What was trained: the factors of the LoRA and what stands between them."""
        return {
            name: v for name, v in self.state_dict().items() if "lora_" in name or name.startswith("inner.")
        }


def save_adapter(folder: Path, watermark: LatentWatermark, lora: MessageLora, config: dict[str, Any]) -> None:
    """Write config.json and one safetensors file with both parts."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"watermark.{name}": value for name, value in watermark.state_dict().items()}
    tensors |= {f"lora.{name}": value for name, value in lora.adapter_state().items()}
    save_file({n: v.contiguous() for n, v in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


class AquaLora(Method):
    """A message an image, by changing the scales; a copy of the pipeline's UNet carries the LoRA."""

    name = "aqualora"

    def __init__(self, pipe: Any, sampling: Sampling | None = None, folder: Path | None = None) -> None:
        folder = folder or baseline_folder(self.name)
        config = json.loads((folder / "config.json").read_text())
        tensors = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
        self.bits, self.sampling = int(config["bits"]), sampling or Sampling()
        self.watermark = LatentWatermark(self.bits, side=pipe.unet.config.sample_size, rms=config["rms"])
        self.watermark.load_state_dict(_part(tensors, "watermark."))
        self.lora = MessageLora(copy.deepcopy(pipe.unet), self.bits, config["rank"])
        stored = _part(tensors, "lora.")
        if _shapes(stored) != _shapes(self.lora.adapter_state()):
            raise ValueError(f"{folder}: the adapter was trained on a UNet of another shape")
        self.lora.load_state_dict(stored, strict=False)
        self.watermark.eval(), self.lora.eval()
        self.pipe = copy.copy(pipe)
        self.pipe.register_modules(unet=self.lora.unet)

    def generate(self, spec: ImageSpec) -> Image.Image:
        return self.generate_all([spec])[0]

    @torch.no_grad()
    def generate_all(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        wrong = next((spec.secret for spec in specs if len(spec.secret) != self.bits), None)
        if wrong is not None:
            raise ValueError(f"secret: {self.name} writes {self.bits} bits, got {len(wrong)}")
        steps, guidance = self.sampling.steps, self.sampling.guidance
        messages = signs([spec.secret for spec in specs])
        self.lora.set_message(messages.repeat(2 if guidance > 1 else 1, 1))  # without and with the prompt
        return self.pipe(
            [spec.prompt for spec in specs],
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=[torch.Generator("cpu").manual_seed(spec.seed) for spec in specs],
        ).images

    @torch.no_grad()
    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        pixels = to_pixels(images, (8 * self.watermark.side, 8 * self.watermark.side))
        return self.watermark(encode(self.pipe.vae, pixels)).double().numpy()

    def margins_of(self, pixels: Tensor) -> Tensor:
        return self.watermark(encode(self.pipe.vae, pixels))

    def parts(self) -> dict[str, tuple[Any, str]]:
        return {"vae encode": (self.pipe.vae, "encode"), "decode": (self.watermark, "forward")}

    def fingerprint(self) -> dict[str, Any]:
        run = {"steps": self.sampling.steps, "guidance": self.sampling.guidance}
        return {"method": self.name, "weights": weights_digest(self.watermark, self.lora), **run}

    def reader(self) -> dict[str, Any]:
        return {"method": self.name, "weights": weights_digest(self.watermark, self.pipe.vae)}


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
