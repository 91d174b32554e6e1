"""Codecs of the generation layer. `Codec` is the paper's pair of networks, `NoiseCodec` marks the initial noise.

DeltaEncoder writes a secret as a perturbation of latents, SecretDecoder reads it back: the paper's networks
(appendix on architectures), 295,265 and 2,339,704 parameters at 64 bits and 4 x 64 x 64 latents. What a codec of
initial noise writes and reads is in `diffmark.latent.noise`. A codec has one native latent size. Latents of any
other size or aspect are served by one policy, *stretch*: delta is resampled to the latents' size and keeps its
standard deviation, and the detector resizes the image to the native size before it encodes. A picture that was
resized after generation is then read like any other, and the detector need not know the original size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from diffmark.keys.bits import KeyedBits
from diffmark.latent.calibration import Calibration
from diffmark.latent.dosing import Dosing
from diffmark.latent.files import (
    CONFIG_FILE,
    CodecError,
    check_weights,
    find_codec,
    read_config,
    read_weights,
    write_codec,
)
from diffmark.latent.injection import Injection
from diffmark.latent.noise import KeyedPatterns, NoiseReader
from diffmark.pixel.keys import PUBLIC_KEY, OperatorKey
from diffmark.secret import SecretLike, as_secrets
from diffmark.statistics import to_logits, to_margins

LARGEST = 65536  # bound on every size in a config, so that a damaged file cannot ask for all memory


@dataclass(frozen=True)
class LatentConfig:
    """The secrets of a codec, and the latent space that it is for."""

    length: int = 64  # L, bits of a secret
    channels: int = 4  # c, latent channels
    height: int = 64  # h, native latent height
    width: int = 64  # w, native latent width
    family: str | None = None  # the latent space: sd, sdxl, sd3, flux, vista
    pixels_per_latent: int = 8  # the vae's downsampling factor

    def check_sizes(self, *more: int) -> None:
        """Raise unless these and all sizes of the latent space are whole numbers within bounds."""
        sizes = [self.length, self.channels, self.height, self.width, self.pixels_per_latent, *more]
        if any(isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= LARGEST for n in sizes):
            raise ValueError(f"sizes are whole numbers from 1 to {LARGEST}, got {sizes}")

    @property
    def image_size(self) -> tuple[int, int]:
        """Native (height, width) in pixels: what the detector resizes an image to."""
        return self.height * self.pixels_per_latent, self.width * self.pixels_per_latent


@dataclass(frozen=True)
class CodecConfig(LatentConfig):
    """What it takes to build the paper's two networks."""

    embed_dim: int = 64  # d_e, width of bit embeddings and spatial basis
    encoder_widths: Sequence[int] = (32, 16, 8)
    decoder_widths: Sequence[int] = (16, 32, 64, 128, 256)  # one stride-2 block each
    decoder_hidden: Sequence[int] = (1024, 512)
    linear_readout: bool = False  # the decoder whitens latents and also reads each bit by one linear filter

    def __post_init__(self) -> None:
        for name in ("encoder_widths", "decoder_widths", "decoder_hidden"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not (self.encoder_widths and self.decoder_widths):
            raise ValueError("encoder_widths and decoder_widths need at least one entry")
        self.check_sizes(self.embed_dim, *self.encoder_widths, *self.decoder_widths, *self.decoder_hidden)
        if not isinstance(self.linear_readout, bool):
            raise ValueError(f"linear_readout is true or false, got {self.linear_readout!r}")
        shrink = 2 ** len(self.decoder_widths)
        if self.height % shrink or self.width % shrink:
            raise ValueError(
                f"latents of {self.height}x{self.width} cannot be halved {len(self.decoder_widths)} times; "
                f"height and width must be multiples of {shrink}, or decoder_widths shorter"
            )


@dataclass(frozen=True)
class NoiseConfig(LatentConfig):
    """What it takes to build the reader of a codec of initial noise."""

    reader_widths: Sequence[int] = (64, 128, 192)  # at full, half and quarter size

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader_widths", tuple(self.reader_widths))
        self.check_sizes(*self.reader_widths)
        if len(self.reader_widths) != 3 or any(width % 8 for width in self.reader_widths):
            raise ValueError(f"reader_widths are three multiples of 8, got {self.reader_widths}")
        if self.height % 4 or self.width % 4:
            raise ValueError(f"latents of {self.height}x{self.width} cannot be halved twice")


class DeltaEncoder(nn.Module):
    """E_phi: secret (B, L) -> delta (B, C, h, w), of exactly this standard deviation if one is given."""

    def __init__(self, config: CodecConfig, deviation: float | None = None) -> None:
        super().__init__()
        self.config, self.deviation = config, deviation
        self.embedding = nn.Embedding(2 * config.length, config.embed_dim)  # W
        self.basis = nn.Parameter(torch.randn(config.embed_dim, config.height, config.width))  # B
        layers: list[nn.Module] = []
        previous = config.embed_dim
        for index, width in enumerate(config.encoder_widths):
            layers += [nn.Conv2d(previous, width, 3, padding=1), nn.SiLU()]
            if index < len(config.encoder_widths) - 1:  # none after the last: it would fix delta's scale
                layers.append(nn.BatchNorm2d(width))
            previous = width
        self.refine = nn.Sequential(*layers)
        self.mean = nn.Conv2d(previous, config.channels, 3, padding=1)  # mu
        self.log_variance = nn.Conv2d(previous, config.channels, 3, padding=1)  # log sigma^2
        self.alpha = nn.Parameter(torch.tensor(0.1))

    def distribution(self, secrets: Tensor) -> tuple[Tensor, Tensor]:
        """(mu, log sigma^2) before alpha, each (B, C, h, w)."""
        rows = 2 * torch.arange(self.config.length, device=secrets.device) + secrets.long()  # 2i + s_i
        x = self.embedding(rows).sum(dim=1)  # (B, L, d_e) -> (B, d_e)
        features = self.refine(x[:, :, None, None] * self.basis)  # (B, d_e, h, w) -> (B, 8, h, w)
        return self.mean(features), self.log_variance(features)

    def forward(self, secrets: Tensor) -> Tensor:
        """delta = alpha * (mu + sigma * eps) in training, alpha * mu in inference."""
        mean, log_variance = self.distribution(secrets)
        if self.training:
            mean = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        delta = self.alpha * mean
        return delta if self.deviation is None else rescale(delta, self.deviation)


class SecretDecoder(nn.Module):
    """D_psi: latents (B, C, h, w) -> logits (B, L, 2)."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        previous = config.decoder_widths[0] // 2
        layers: list[nn.Module] = [nn.Conv2d(config.channels, previous, 3, padding=1), nn.SiLU()]
        for index, width in enumerate(config.decoder_widths):
            layers += [nn.Conv2d(previous, width, 4, stride=2, padding=1), nn.SiLU()]
            if index < len(config.decoder_widths) - 1:
                layers.append(nn.BatchNorm2d(width))
            previous = width
        self.features = nn.Sequential(*layers)
        shrink = 2 ** len(config.decoder_widths)
        size = previous * (config.height // shrink) * (config.width // shrink)
        head: list[nn.Module] = []
        for hidden in config.decoder_hidden:
            head += [nn.Linear(size, hidden), nn.SiLU()]
            size = hidden
        self.head = nn.Sequential(nn.Flatten(), *head, nn.Linear(size, 2 * config.length))
        if config.linear_readout:
            self.filters = nn.Linear(
                config.channels * config.height * config.width, config.length, bias=False
            )
            nn.init.zeros_(self.filters.weight)

    def forward(self, latents: Tensor) -> Tensor:
        if not self.config.linear_readout:
            return self.head(self.features(latents)).view(-1, self.config.length, 2)
        white = whiten(latents)
        logits = self.head(self.features(white)).view(-1, self.config.length, 2)
        linear = self.filters(white.flatten(1)) / 2
        return logits + torch.stack([-linear, linear], dim=-1)


class Codec(nn.Module):
    """The trained pair with its config, dosing, calibration and provenance."""

    kind = "delta"  # of codec, in its file
    config: LatentConfig
    keyed: KeyedBits | KeyedPatterns

    def __init__(
        self,
        config: CodecConfig | None = None,
        dosing: Dosing | None = None,
        calibration: Calibration | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.config = config = config or CodecConfig()
        self.dosing = dosing or Dosing()
        self.encoder = DeltaEncoder(config, self.dosing.deviation)
        self.decoder: nn.Module = SecretDecoder(config)
        self.calibration = calibration
        self.provenance = provenance or {}
        self.use_key(PUBLIC_KEY)

    def use_key(self, key: OperatorKey) -> Codec:
        """From now on secrets are written and read under this operator key."""
        self.keyed = self.keyed_by(key)
        return self

    def keyed_by(self, key: OperatorKey) -> KeyedBits | KeyedPatterns:
        """What an operator key decides of a mark: which bits the networks carry for a secret."""
        return KeyedBits(key, self.config.length)

    def margins(
        self, carried: NDArray[np.floating], keyed: KeyedBits | KeyedPatterns
    ) -> NDArray[np.floating]:
        """Margins (B, L) of the secret's bits under a key, without lean, from what `decode` gives."""
        margins = to_margins(carried)
        if self.calibration is not None:
            margins = self.calibration.whitened(margins)
        return to_margins(keyed.read(to_logits(margins)))

    @property
    def injection(self) -> Injection:
        """The one the codec was trained with."""
        return self.dosing.injection

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @torch.no_grad()
    def delta(self, secrets: SecretLike, size: tuple[int, int] | None = None) -> Tensor:
        """The perturbation of each secret, (B, C, h, w) at `size` or the native size; no noise, no gradient."""
        carried = self.keyed.write(as_secrets(secrets, self.config.length))
        bits = torch.from_numpy(carried).to(self.device)
        training = self.encoder.training
        try:
            return stretch(self.encoder.eval()(bits), size or (self.config.height, self.config.width))
        finally:
            self.encoder.train(training)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """What the network reads in diffusion-scaled latents (B, C, h, w); other sizes are resampled first.

        Logits (B, L, 2) of the bits that it carries; `margins` undoes their lean and the operator key.
        """
        if latents.ndim != 4 or latents.shape[1] != self.config.channels:
            raise ValueError(
                f"this codec reads latents of shape (B, {self.config.channels}, h, w), got {tuple(latents.shape)}"
            )
        latents = latents.to(self.device, next(self.parameters()).dtype)
        size = (self.config.height, self.config.width)
        if latents.shape[-2:] != size:
            latents = F.interpolate(latents, size, mode="bilinear", antialias=True)
        training = self.decoder.training
        try:
            return self.decoder.eval()(latents).float()
        finally:
            self.decoder.train(training)

    def logits_of(self, latents: Tensor) -> Tensor:
        """Logits (B, L, 2) of the bits that are carried in latents of the native size, with gradients."""
        logits: Tensor = self.decoder(latents)
        return logits

    # --- storage -------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype | None = None) -> Path:
        """Write config.json and codec.safetensors into `folder`, the weights in `dtype` if given."""
        state = {
            name: value.to(dtype) if dtype and value.is_floating_point() else value
            for name, value in self.state_dict().items()
        }
        described = {
            "kind": self.kind,
            "config": asdict(self.config),
            "dosing": asdict(self.dosing),
            "calibration": self.calibration.to_dict() if self.calibration else None,
            "provenance": self.provenance,
        }
        return write_codec(Path(folder), described, state)

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Codec:
        """Load from a folder, a bundled name (`bundled_codecs()`) or a Hugging Face hub id (`owner/name`)."""
        folder = find_codec(source)
        document = read_config(folder)
        check_weights(folder, document)
        try:
            calibration = document.get("calibration")
            kind = _KINDS[document.get("kind", "delta")]
            codec = kind.of_config(
                document["config"],
                Dosing.from_dict(document["dosing"]),
                Calibration.from_dict(calibration) if calibration else None,
                document.get("provenance"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CodecError(f"{folder / CONFIG_FILE} does not describe a codec: {error}") from error
        codec.load_state_dict(read_weights(folder, codec.state_dict()))
        return codec.eval()

    @classmethod
    def of_config(cls, config: dict[str, Any], *more: Any) -> Codec:
        """An untrained codec with the settings that a file holds."""
        return cls(CodecConfig(**config), *more)


class NoiseCodec(Codec):
    """A keyed pattern in the initial noise, and the network that estimates the noise: see `diffmark.latent.noise`.

    `decode` gives estimates of z_T (B, C, h, w). Nothing is calibrated: under no mark scores are standard normals.
    """

    kind = "noise"
    config: NoiseConfig
    keyed: KeyedPatterns

    def __init__(
        self,
        config: NoiseConfig | None = None,
        dosing: Dosing | None = None,
        calibration: None = None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.config = config = config or NoiseConfig()
        self.dosing = dosing or Dosing(Injection("initial", 0.7))
        if (
            self.dosing.injection.mode != "initial"
            or self.dosing.deviation is not None
            or calibration is not None
        ):
            raise ValueError("a codec of initial noise has the injection mode 'initial' and no calibration")
        size = (config.height, config.width)
        self.decoder = NoiseReader(config.channels, size, config.reader_widths)
        self.calibration = None
        self.provenance = provenance or {}
        self.use_key(PUBLIC_KEY)

    @classmethod
    def of_config(cls, config: dict[str, Any], *more: Any) -> NoiseCodec:
        return cls(NoiseConfig(**config), *more)

    def keyed_by(self, key: OperatorKey) -> KeyedPatterns:
        """The patterns of a key."""
        config = self.config
        return KeyedPatterns(key, config.length, (config.channels, config.height, config.width))

    def margins(
        self, carried: NDArray[np.floating], keyed: KeyedBits | KeyedPatterns
    ) -> NDArray[np.floating]:
        """Log-likelihood ratios (B, L) of the secret's bits under a key, from estimates of z_T."""
        return to_margins(keyed.read(carried))

    def logits_of(self, latents: Tensor) -> Tensor:
        """Logits (B, L, 2) with the scores of the key's patterns as margins, with gradients."""
        scores = self.keyed_scores(self.decoder(latents))
        return torch.stack([-scores / 2, scores / 2], dim=-1)

    def keyed_scores(self, estimates: Tensor) -> Tensor:
        """The same as `KeyedPatterns.scores`, of tensors."""
        flat = estimates.flatten(1)
        values, members = (
            torch.from_numpy(part).to(flat) for part in (self.keyed.values, self.keyed.members)
        )
        return (flat * values) @ members / (flat.square() @ members).clamp_min(1e-12).sqrt()

    def delta(self, secrets: SecretLike, size: tuple[int, int] | None = None) -> Tensor:
        """The pattern of each secret, (B, C, h, w); always of the native size, for `mix` to bring to others."""
        return torch.from_numpy(self.keyed.write(as_secrets(secrets, self.config.length))).to(self.device)


_KINDS: dict[str, type[Codec]] = {kind.kind: kind for kind in (Codec, NoiseCodec)}


def stretch(delta: Tensor, size: tuple[int, int]) -> Tensor:
    """Resample delta (B, C, h, w) to `size`, each image keeping its standard deviation."""
    if tuple(delta.shape[-2:]) == tuple(size):
        return delta
    resampled = F.interpolate(delta, size, mode="bilinear", antialias=True)
    deviation = delta.std(dim=(1, 2, 3), keepdim=True)
    return resampled * (deviation / resampled.std(dim=(1, 2, 3), keepdim=True).clamp_min(1e-12))


def rescale(delta: Tensor, deviation: float) -> Tensor:
    """Each image's delta with exactly this standard deviation, so that strength is one number."""
    return delta * (deviation / delta.std(dim=(1, 2, 3), keepdim=True).clamp_min(1e-12))


def whiten(latents: Tensor, floor: float = 0.03) -> Tensor:
    """Latents (B, C, h, w) less their mean around each place, over their deviation around it.

    A picture's own latents are the noise that a mark is read in: strong at low frequencies, and in rough places.
    `floor` is about the error of a round trip through an autoencoder and 8 bits.
    """
    detail = latents - local_mean(latents, 3)
    return detail / (local_mean(detail.square(), 5) + floor**2).sqrt()


def local_mean(values: Tensor, side: int) -> Tensor:
    """The mean of (B, C, h, w) over side x side around each place; edges are mirrored."""
    return F.avg_pool2d(F.pad(values, (side // 2,) * 4, mode="reflect"), side, stride=1)
