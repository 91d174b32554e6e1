"""Train Stable Signature: first the extractor with a throw-away encoder, then the decoder towards one key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffmark.baselines.stable_signature import CELL, Extractor, SignedDecoder
from diffmark.baselines.training.common import accuracy, annealed, random_signs, train_stage
from diffmark.baselines.training.distortions import one_of
from diffmark.baselines.weights import conv, scaled_to
from diffmark.latent.pictures import psnr_of
from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig
from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.library import load_autoencoder
from diffmark.vista.training.data import Picture, painted, photographs, random_crops

ATTACKS = ("resize", "jpeg", "blur", "brightness")


@dataclass(frozen=True)
class StableSignatureConfig:
    """A run of `diffmark baselines train stable-signature`."""

    extractor: LoopConfig
    decoder: LoopConfig
    bits: int = 48
    width: int = 48
    key_seed: int = 0
    scenes: int = 4000
    photo_share: float = 0.2
    crop: int = 128
    first_rms: float = (
        0.4  # of the throw-away encoder's residual, pixels in [-1, 1]; falls to `rms` by `quiet_at`
    )
    rms: float = 0.08
    quiet_at: float = 0.5  # share of the extractor's run
    distortion: float = 0.6  # strongest distortion, from nothing at the start
    whitening_images: int = 256
    perceptual_weight: float = 0.2


class HiddenPair(nn.Module):
    """HiDDeN: an encoder that sees the secret at every position, and the extractor."""

    def __init__(self, bits: int, width: int) -> None:
        super().__init__()
        patch = 3 * CELL**2
        self.encoder = nn.Sequential(nn.Conv2d(patch + bits, 64, 1), conv(64, 64), nn.Conv2d(64, patch, 1))
        self.direct = nn.Linear(bits, patch)
        self.extractor = Extractor(bits, width)
        # Starts as spread spectrum and its matched filter, which read each other; the networks grow on that.
        nn.init.orthogonal_(self.direct.weight)
        nn.init.zeros_(self.encoder[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.encoder[-1].bias)  # type: ignore[arg-type]
        nn.init.zeros_(self.direct.bias)
        with torch.no_grad():
            self.extractor.correlate.weight.copy_(10 * self.direct.weight.T)

    def residual(self, images: Tensor, secrets: Tensor, rms: float) -> Tensor:
        """What is added to the images, (B, 3, H, W)."""
        cells = F.pixel_unshuffle(images, CELL)
        repeated = secrets[:, :, None, None].expand(-1, -1, *cells.shape[2:])
        folded = self.encoder(torch.cat([cells, repeated], dim=1)) + self.direct(secrets)[:, :, None, None]
        return scaled_to(F.pixel_shuffle(folded, CELL), rms)


class ExtractorJob:
    """Random secrets through distortions; the mark becomes faint as the run goes on."""

    def __init__(self, config: StableSignatureConfig, scenes: Picture, photos: list[Picture]) -> None:
        torch.manual_seed(config.extractor.seed)
        self.config, self.scenes, self.photos = config, scenes, photos
        self.model = HiddenPair(config.bits, config.width)

    def pictures(self, rng: np.random.Generator, count: int) -> Tensor:
        config = self.config
        return random_crops(rng, self.scenes, self.photos, count, config.crop, config.photo_share)

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        config, done = self.config, step / self.config.extractor.steps / self.config.quiet_at
        x = self.pictures(draws.numpy, config.extractor.batch)
        secrets = random_signs(len(x), config.bits, draws.torch)
        y = x + self.model.residual(x, secrets, annealed(config.first_rms, config.rms, done))
        logits = self.model.extractor(one_of(ATTACKS, y, config.distortion * min(done, 1.0), draws.torch))
        loss = F.binary_cross_entropy_with_logits(logits, (secrets + 1) / 2)
        return loss, {"accuracy": accuracy(logits, secrets)}

    @torch.no_grad()
    def whiten(self) -> None:
        """Whiten the extractor on unmarked pictures."""
        rng, parts = np.random.default_rng([self.config.extractor.seed, 1 << 40]), []
        for _ in range(0, self.config.whitening_images, 16):
            parts.append(self.model.extractor(self.pictures(rng, 16)))
        self.model.extractor.whiten(torch.cat(parts))


class DecoderJob:
    """The key in everything that is decoded, as little of it seen as possible."""

    def __init__(self, extractor_job: ExtractorJob, vae: PatchAutoencoder) -> None:
        config = self.config = extractor_job.config
        self.pictures, self.vae = extractor_job.pictures, vae
        key = np.random.default_rng([config.key_seed, 48]).integers(0, 2, config.bits)
        shape = {name: vae.config[name] for name in ("block_out_channels", "layers_per_block")}
        self.model = SignedDecoder(tuple(int(bit) for bit in key), config.width, **shape)
        self.model.decoder.load_state_dict(vae.decoder.state_dict())
        self.model.decoder_skip.load_state_dict(vae.decoder_skip.state_dict())
        self.model.extractor.load_state_dict(extractor_job.model.extractor.state_dict())
        self.model.extractor.requires_grad_(False)
        self.wanted = torch.from_numpy(key).float()

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        x = self.pictures(draws.numpy, self.config.decoder.batch)
        with torch.no_grad():
            z = self.vae.encode(x).latent_dist.mode()
            before = self.vae.decode(z).sample
        after = self.model.decode(z)
        logits = self.model.extractor(one_of(ATTACKS, after, self.config.distortion, draws.torch))
        bits = F.binary_cross_entropy_with_logits(logits, self.wanted.expand_as(logits))
        seen = masked_error(after, before)
        figures = {"bits": bits, "accuracy": accuracy(logits, self.wanted.expand_as(logits) - 0.5)}
        figures["psnr"] = psnr_of(F.mse_loss(after, before))
        return bits + self.config.perceptual_weight * seen, figures


def masked_error(after: Tensor, before: Tensor) -> Tensor:
    """Squared difference over local contrast: what texture hides counts less. Both (B, 3, H, W) in [-1, 1]."""
    mean = F.avg_pool2d(before, 5, 1, 2, count_include_pad=False)
    contrast = (F.avg_pool2d(before**2, 5, 1, 2, count_include_pad=False) - mean**2).clamp(min=0)
    return ((after - before) ** 2 / (0.05**2 + contrast)).mean()


def train_stable_signature(
    config: StableSignatureConfig, folder: Path, photos: Path | None, stop_after: int | None = None
) -> SignedDecoder | None:
    """Train and save to `folder/model`; None if it was stopped before its end."""
    pictures = photographs(photos) if photos else []
    extractor_job = ExtractorJob(config, painted(folder.parent / "cache", config.scenes), pictures)
    if not train_stage(extractor_job, config.extractor, folder / "extractor", stop_after):
        return None
    extractor_job.whiten()
    job = DecoderJob(extractor_job, load_autoencoder())
    if not train_stage(job, config.decoder, folder / "decoder", stop_after):
        return None
    job.model.eval().save_pretrained(folder / "model")
    return job.model
