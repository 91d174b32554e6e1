"""Codecs of the generation layer: `Codec` is the paper's pair of networks, `NoiseCodec` marks the initial noise.

A codec is networks (`diffmark.latent.networks`, `diffmark.latent.noise`) with their config, dosing, calibration and
provenance, under an operator key. It has one native latent size. Latents of any other size or aspect are served by
one policy, *stretch*: delta is resampled to the latents' size and keeps its standard deviation, and the detector
resizes the image to the native size before it encodes. A picture that was resized after generation is then read
like any other, and the detector need not know the original size.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from diffmark.keys.bits import KeyedBits
from diffmark.latent.calibration import Calibration
from diffmark.latent.config import CodecConfig, LatentConfig, NoiseConfig
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
from diffmark.latent.networks import DeltaEncoder, SecretDecoder
from diffmark.latent.noise import KeyedPatterns, NoiseReader, common_directions
from diffmark.pixel.keys import PUBLIC_KEY, OperatorKey
from diffmark.secret import SecretLike, as_secrets
from diffmark.statistics import to_logits, to_margins


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
    decoder: NoiseReader
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
        self.decoder = NoiseReader(config.channels, size, config.reader_widths, config.common)
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

    def leave_out_common(self, estimates: Tensor) -> None:
        """Leave out what estimates (`NoiseReader.estimate`, N) of unmarked pictures have in common."""
        directions = common_directions(estimates, self.config.common)
        self.decoder.common.copy_(directions.half().float())  # as files hold them

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
