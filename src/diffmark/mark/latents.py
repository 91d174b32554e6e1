"""The one place where a mark is added to latents: z <- z + w_k strength delta(secret).

delta is the codec's, resampled to the latents' size and arranged as they are packed. The weights w_k are an
`Injection`'s: one for each denoising step and one for z0. Where all of the mark goes to z0, there is a single one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diffmark.latent.codec import Codec
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.packing import arrange
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
        delta = codec.delta(bits, size or (latents.shape[-2], latents.shape[-1])).expand(batch, -1, -1, -1)
        self.delta = arrange(delta, latents).float().to(latents.device) * strength  # in the latents' layout
        self.strength = strength
        self._remainder = torch.zeros_like(self.delta)  # what rounding to the latents' dtype has left out

    def share(self, weight: float) -> Tensor | None:
        """weight * strength * delta, in float32; None where it is nothing."""
        return None if weight == 0 or self.strength == 0 else self.delta * weight

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


def mark_latents(codec: Codec, latents: Tensor, secrets: SecretLike, weight: float = 1.0) -> Tensor:
    """z + weight * delta(secret), for latents (B, C, h, w) of any size; one secret for all, or one each."""
    mark = LatentMark(codec, secrets, latents)
    return mark.add(latents, mark.share(weight))


def check_strength(strength: float) -> None:
    """Whether this is a scale of delta."""
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength must be a finite number of at least 0, got {strength}")
