"""The delta of a picture that is known: its latents are finished, and one secret is to be read from them.

If the codec is fitted, what a detector will find is looked at first: the picture is resized to the native size and
encoded by the model's own autoencoder and by the small one beside the codec, since nobody knows yet who will read.

native size     weights of the bits are solved for (diffmark.fitting)
larger latents  the same, with a native delta laid into them in two ways that are mixed by what each is worth
smaller ones    are too coarse for the codec's patterns: delta is found by going up the slope of what is read
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffmark.codec import Codec, rescale, spread
from diffmark.fitting import fitted_weights
from diffmark.secret import Bits, SecretLike, as_secrets
from diffmark.vae import decode, encode

ALONE = 0.95  # of what both ways are worth together, that one alone is enough
LOUDEST = 4.0  # times that a way is used at most, where pixels hardly answer it
CLIMBS = 12  # slopes that are followed
TAMED = 4.0  # what margins are divided by in a climb, so that bits that are read already go on rising
ENOUGH = 0.9  # of the bits, below which a climb has failed


@dataclass(frozen=True, eq=False)
class Finished:
    """Finished latents z (B, C, h, w), the bits (B, L) that they are to carry, and the autoencoders of readers."""

    codec: Codec
    vae: Any
    z: Tensor
    bits: Bits
    strength: float  # what delta will be multiplied by
    readers: Sequence[Any]

    @property
    def size(self) -> tuple[int, int]:
        return self.z.shape[-2], self.z.shape[-1]

    def picture(self, change: Tensor | float = 0.0) -> Tensor:
        """Pixels (B, 3, H, W) of the latents plus `change`."""
        return decode(self.vae, self.z + change).float()

    def read(self, change: Tensor | float = 0.0) -> Tensor:
        """Logits (R, B, L, 2) that each reader finds in that picture."""
        return look(self.codec, self.readers, self.picture(change))

    def margins(self, logits: Tensor) -> Tensor:
        """How clearly each bit is read, negative where it is read wrongly."""
        signs = torch.from_numpy(2.0 * self.bits - 1)
        return (logits[..., 1] - logits[..., 0]) * signs.to(logits)


@torch.no_grad()
def delta_at_z0(
    codec: Codec, vae: Any, z: Tensor, secrets: SecretLike, strength: float = 1.0, own: Any = None
) -> Tensor:
    """The delta of each secret for latents z (B, C, h, w), fitted to their picture if the codec asks for it.

    `strength` is what delta will be multiplied by; `own` the small autoencoder that may read the picture as well.
    """
    size = (z.shape[-2], z.shape[-1])
    bits = as_secrets(secrets, codec.config.length)
    if not codec.config.fitted or strength == 0:
        return codec.delta(bits, size).to(z)
    bits = bits.repeat(len(z), axis=0) if len(bits) == 1 else bits
    readers = [vae] if own is None else [vae, own]
    native = (codec.config.height, codec.config.width)
    if size == native:
        return fit(Finished(codec, vae, z, bits, strength, readers)).to(z)
    find = climb if size[0] < native[0] or size[1] < native[1] else carry
    alone = [Finished(codec, vae, z[i : i + 1], bits[i : i + 1], strength, readers) for i in range(len(z))]
    return torch.cat([find(one) for one in alone]).to(z)


def fit(it: Finished) -> Tensor:
    """delta (B, C, h, w) for latents of the native size."""

    def read(delta: Tensor) -> Tensor:
        return it.read(it.strength * delta.to(it.z)).mean(dim=0)

    weights = fitted_weights(it.codec, it.bits, it.read().mean(dim=0), read)
    return it.codec.delta(it.bits, weights=weights)


def carry(it: Finished) -> Tensor:
    """delta (1, C, h, w) for latents that are larger than the native ones.

    A native delta is laid into them in two ways: stretched, which autoencoders of few channels answer best; and by
    way of pixels, as what the encoder makes of the difference that it would make at the native size. How much of
    each is used is solved for, at the energy in pixels that this difference has.
    """
    codec, vae, z = it.codec, it.vae, it.z
    plain = it.picture()
    pixels = plain.clamp(-1, 1)
    small = encode(vae, resized(pixels, codec.config.image_size))
    small_plain, encoded = decode(vae, small).float(), encode(vae, pixels)

    def difference(delta: Tensor) -> Tensor:
        return decode(vae, small + it.strength * delta.to(small)).float() - small_plain

    def stretched(delta: Tensor) -> Tensor:
        return it.strength * spread(delta, it.size).to(z)

    def through_pixels(delta: Tensor) -> Tensor:
        there = resized(difference(delta), (pixels.shape[-2], pixels.shape[-1]))
        return (encode(vae, pixels + there) - encoded).to(z)

    def mean_margin(logits: Tensor) -> Tensor:
        """Over bits and readers."""
        return it.margins(logits).mean().cpu().double()

    ways = (stretched, through_pixels)
    start, unmarked = codec.delta(it.bits), look(codec, it.readers, plain)
    changes = torch.cat([it.picture(way(start)) - plain for way in ways])
    found = [mean_margin(look(codec, it.readers, plain + change)) for change in changes]
    worth = torch.stack(found) - mean_margin(unmarked)
    shares = mixture(worth, changes.flatten(1), difference(start).square().mean())

    def mixed(delta: Tensor) -> Tensor:
        laid = [share * way(delta) for share, way in zip(shares, ways, strict=True) if share]
        return torch.stack(laid).sum(dim=0)

    def read(delta: Tensor) -> Tensor:
        return it.read(mixed(delta)).mean(dim=0)

    weights = fitted_weights(codec, it.bits, unmarked.mean(dim=0), read)
    return mixed(codec.delta(it.bits, weights=weights)) / it.strength


def mixture(worth: Tensor, changes: Tensor, energy: Tensor) -> list[float]:
    """Shares a >= 0 of two changes (2, N) of pixels that are worth most together, for a mean square of `energy`.

    The most of a * worth for a given a * gram * a is where gram * a points along worth. If one is worth nearly as
    much it is used alone, which spares work; also where one takes from the other, or nothing is read in either.
    """
    gram = (changes @ changes.T / changes.shape[1]).cpu().double()  # not every device has float64
    if not (gram.isfinite().all() and worth.isfinite().all() and (gram.diagonal() > 0).all()):
        return [1.0, 0.0]
    shares = torch.linalg.lstsq(gram, worth).solution
    alone = worth / gram.diagonal().sqrt()
    if shares.min() < 0 or alone.max() >= ALONE * (shares @ worth).clamp_min(0).sqrt():
        shares = F.one_hot(alone.argmax(), 2).double()
    shares = shares * (energy.cpu().double() / (shares @ gram @ shares)).sqrt()
    return shares.clamp_max(LOUDEST).tolist()


def climb(it: Finished) -> Tensor:
    """delta (1, C, h, w) for latents that are coarser than the native ones and cannot hold their patterns.

    Up the slope of the logarithm of the chance that all bits are read: each slope is taken where the mean of those
    before it leads, as in the method of Frank and Wolfe. It needs gradients through the autoencoders. Warns if too
    few bits are read at the end.
    """
    deviation = float(it.codec.delta(it.bits).std())
    delta = torch.zeros_like(it.z)
    with torch.inference_mode(False), torch.enable_grad():
        it = replace(it, z=it.z.clone())
        for step in range(CLIMBS):
            there = delta.clone().requires_grad_()
            margins = it.margins(it.read(it.strength * there))
            (slope,) = torch.autograd.grad(F.logsigmoid(margins / TAMED).sum(), there)
            if not slope.isfinite().all() or not slope.any():
                raise ValueError(
                    "the autoencoder has no gradient here, which latents this small need: give it float32 weights, "
                    "or mark the finished image with `diffmark embed`"
                )
            delta = rescale(delta + (rescale(slope, deviation) - delta) / (step + 1), deviation)
    right = it.margins(it.read(it.strength * delta)) > 0
    least = float(right.float().mean(dim=(1, 2)).min())  # by the reader who reads least
    if least < ENOUGH:
        warnings.warn(
            f"images this small hold the mark badly: {least:.0%} of the bits are read; generate larger ones, raise "
            "the strength, or mark the finished image with `diffmark embed`",
            stacklevel=2,
        )
    return delta.detach()


def look(codec: Codec, readers: Sequence[Any], pixels: Tensor) -> Tensor:
    """Logits (R, B, L, 2) that detectors with these autoencoders will find in pictures (B, 3, H, W)."""
    pixels = resized(pixels.float().clamp(-1, 1), codec.config.image_size)
    return torch.stack([codec.logits(encode(reader, pixels)) for reader in readers])


def resized(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, 3, H, W) at `size`, nearly as a detector resizes images, with a gradient."""
    if tuple(pixels.shape[-2:]) == tuple(size):
        return pixels
    return F.interpolate(pixels, size, mode="bicubic", antialias=True)
