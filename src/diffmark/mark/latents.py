"""The one place where a mark is added to latents: z <- z + w_k strength delta(secret).

delta is the codec's, resampled to the latents' size and arranged as they are packed. The weights w_k are an
`Injection`'s: one for each denoising step and one for z0. Where all of the mark goes to z0, there is a single one.

A mark in the initial noise takes the place of noise instead: z_T <- sqrt(1 - g^2) z_T + g delta(secret), with the
gain g = w_0 strength (`diffmark.latent.noise.mix`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diffmark.latent.codec import Codec, NoiseCodec
from diffmark.latent.noise import mix
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.packing import arrange, restore
from diffmark.secret import SecretLike, as_secrets


class LatentMark:
    """strength * delta for latents of one shape and layout, added share by share."""

    def __init__(
        self,
        codec: Codec,
        secrets: SecretLike,
        latents: Tensor,
        strength: float = 1.0,
        size: tuple[int, int] | None = None,
    ) -> None:
        """For latents like these; `size` is their (h, w) before any packing."""
        bits, batch = as_secrets(secrets, codec.config.length), len(latents)
        if len(bits) not in (1, batch):
            raise UnmarkableError(
                f"{len(bits)} secrets for {batch} images: give one for all, or one an image"
            )
        self._size = size or (latents.shape[-2], latents.shape[-1])
        self._channels = codec.config.channels
        delta = codec.delta(bits, self._size).expand(batch, -1, -1, -1)
        self.in_noise = isinstance(codec, NoiseCodec)
        self.delta = delta.float().to(latents.device)  # in the latents' layout, if it is to be added
        self.strength = strength
        if self.in_noise and latents[0].numel() != self._channels * math.prod(self._size):
            raise UnmarkableError(
                "a codec of initial noise marks pictures, not videos: use the pixel layer alone"
            )
        if not self.in_noise:
            self.delta = arrange(delta, latents).float().to(latents.device) * strength
        self._remainder = torch.zeros_like(self.delta)  # what rounding to the latents' dtype has left out

    def share(self, weight: float) -> Tensor | None:
        """weight * strength * delta, in float32; None where it is nothing."""
        return None if weight == 0 or self.strength == 0 else self.delta * weight

    def into_noise(self, noise: Tensor, dose: float) -> Tensor:
        """Initial noise of unit variance, in the latents' layout, with the pattern in its place."""
        if not 0 <= dose * self.strength <= 1:
            raise ValueError(
                f"strength is at most {1 / dose:.3g} with a dose of {dose:g}, got {self.strength:g}"
            )
        if dose * self.strength == 0:
            return noise
        spatial = restore(noise.float(), self._channels, self._size)
        return arrange(mix(spatial, self.delta, dose * self.strength), noise).to(noise.dtype)

    def add(self, latents: Tensor, share: Tensor | None) -> Tensor:
        """latents + share in the latents' dtype; what rounding leaves out is added with the next share.

        A fiftieth of delta is often below half a unit in the last place of bfloat16 and would vanish every time.
        """
        if share is None:
            return latents
        wanted = latents.float() + share + self._remainder
        added = wanted.to(latents.dtype)
        self._remainder = wanted - added.float()
        return added


def mark_latents(
    codec: Codec,
    latents: Tensor,
    secrets: SecretLike,
    weight: float = 1.0,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """z + weight * delta(secret), for latents of any size; one secret for all, or one each.

    Latents are (B, C, h, w), or packed, then `size` is their (h, w) before.
    """
    if isinstance(codec, NoiseCodec):
        raise UnmarkableError(
            "this codec marks the noise that a picture is painted from, which is gone by now: a finished picture "
            "is for the pixel layer"
        )
    mark = LatentMark(codec, secrets, latents, size=size)
    return mark.add(latents, mark.share(weight))


def check_strength(strength: float) -> None:
    """Whether this is a scale of delta."""
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength must be a finite number of at least 0, got {strength}")
