"""Where in a picture the mark is: evidence for one secret, place by place, in standard deviations.

A score says how much better a place fits the secret than it fits random ones: 0 is chance, and because a secret
drawn at random is independent of a picture that it was not written into, scores have mean 0 and variance 1 there.
If the secret was read from the picture itself, it was chosen to fit, and scores of unmarked places lie above 0.

matched    the latents' fine structure correlated with the secret's delta, against random secrets' deltas; for
           codecs that add delta to z0 (injection `final`); for codecs of initial noise the estimated noise
           correlated with the secret's pattern, a standard normal where there is no mark
occlusion  by how much smoothing a tile weakens the decoder's bits; for every codec, coarser
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffmark.detection.evidence_map import EvidenceMap, Way
from diffmark.detection.latent import Detector
from diffmark.images import ImageLike, read_image
from diffmark.latent.codec import NoiseCodec
from diffmark.latent.vae import encode
from diffmark.secret import Bits, SecretLike, as_secrets, to_hex
from diffmark.statistics import to_margins

REFERENCES = 64  # random secrets that a match is compared with
TILES = 4  # tiles a side that are smoothed one after the other


class EvidenceMapper:
    """Makes maps with a detector's codec and autoencoder. `way` is the better one for the codec by default."""

    def __init__(self, detector: Detector, way: Way | None = None) -> None:
        self.detector = detector
        mode = detector.codec.injection.mode
        self.way: Way = way or ("matched" if mode in ("final", "initial") else "occlusion")
        self._in_noise = isinstance(detector.codec, NoiseCodec)
        if self._in_noise and self.way != "matched":
            raise ValueError("maps of codecs of initial noise are made one way: matched")
        if self.way == "matched" and not self._in_noise:
            shape = (REFERENCES, detector.codec.config.length)
            others = np.random.default_rng(0).integers(0, 2, shape).astype(np.uint8)
            self._others = _fine(detector.codec.delta(others))

    @torch.no_grad()
    def map(self, image: ImageLike, secret: SecretLike | None = None) -> EvidenceMap:
        """The evidence for a secret, or, without one, for the bits that are read from the image."""
        codec, vae = self.detector.codec, self.detector.vae
        picture = read_image(image, self.detector.max_pixels).resized(codec.config.image_size)
        pixels = torch.from_numpy(picture.pixels())[None]
        z = encode(vae, pixels.to(next(vae.parameters()).device)).float().to(codec.device)
        bits = self._bits(pixels) if secret is None else as_secrets(secret, codec.config.length)  # (1, L)
        if len(bits) != 1:
            raise ValueError(f"a map speaks for one secret, got {len(bits)}")
        if self._in_noise:
            scores = self._correlated(z, bits)
        else:
            scores = self._matched(z, bits) if self.way == "matched" else self._occlusion(z, bits)
        return EvidenceMap(scores.cpu().numpy(), to_hex(bits[0]), self.way)

    def _bits(self, pixels: Tensor) -> Bits:
        """The secret bits (B, L) that the detector reads."""
        logits = self.detector.logits(pixels)
        return (logits[..., 1] > logits[..., 0]).astype(np.uint8)

    def _correlated(self, z: Tensor, bits: Bits) -> Tensor:
        """Sum of delta n^ over the square root of the sum of n^^2, n^ the estimate of z_T, around each place."""
        estimate, window = self.detector.codec.decode(z), _window(z)
        both = (self.detector.codec.delta(bits) * estimate).sum(1, keepdim=True)
        power = estimate.square().sum(1, keepdim=True)
        totals = F.avg_pool2d(
            torch.cat([both, power]), window, stride=1, padding=window // 2, divisor_override=1
        )  # (2, 1, h, w)
        return (totals[0] / totals[1].clamp_min(1e-12).sqrt())[0]

    def _matched(self, z: Tensor, bits: Bits) -> Tensor:
        """Correlation of latents (1, C, h, w) and delta around each latent, standardised over other secrets."""
        deltas = torch.cat([_fine(self.detector.codec.delta(bits)), self._others])  # (1 + R, C, h, w)
        window = _window(z)
        found = _box((_fine(z) * deltas).sum(1, keepdim=True), window)[:, 0]  # (1 + R, h, w)
        return (found[0] - found[1:].mean(0)) / found[1:].std(0).clamp_min(1e-12)

    def _occlusion(self, z: Tensor, bits: Bits) -> Tensor:
        """Change of the margins towards the secret when one tile is smoothed, (TILES, TILES).

        With random signs the sum of the changes has mean zero and the sum of their squares as variance.
        """
        height, width = z.shape[-2] // TILES, z.shape[-1] // TILES
        smooth = _box(z, 5)
        occluded = z.repeat(TILES * TILES, 1, 1, 1)
        for number in range(TILES * TILES):
            row, column = divmod(number, TILES)
            rows, columns = (
                slice(row * height, (row + 1) * height),
                slice(column * width, (column + 1) * width),
            )
            occluded[number, :, rows, columns] = smooth[0, :, rows, columns]
        change = self._margins(z) - self._margins(occluded)  # (TILES^2, L)
        carried = self.detector.codec.keyed.write(bits[0])
        signs = torch.from_numpy(carried.astype(np.float32) * 2 - 1).to(change)
        return ((change * signs).sum(1) / change.norm(dim=1).clamp_min(1e-12)).view(TILES, TILES)

    def _margins(self, z: Tensor) -> Tensor:
        logits = self.detector.codec.decode(z)
        return to_margins(logits)


def _window(z: Tensor) -> int:
    """A fifth of the shorter side, odd."""
    return max(3, 2 * (min(z.shape[-2:]) // 10) + 1)


def _box(values: Tensor, window: int) -> Tensor:
    """Mean over a square around each place, smaller at the edges."""
    return F.avg_pool2d(values, window, stride=1, padding=window // 2, count_include_pad=False)


def _fine(latents: Tensor) -> Tensor:
    """Without what varies slowly, which is picture and not mark."""
    return latents - _box(latents, 3)
