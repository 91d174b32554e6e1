"""A mark in the initial noise, read from z0 in one pass: keyed patterns, and the network that estimates z_T.

Writing mixes a pattern of the secret into z_T before the first denoising step:

    z_T <- sqrt(1 - g^2) z_T + g delta(s),      delta_j = n_j (2 s_b(j) - 1)

with the dose g, standard normal numbers n_j and an assignment b(j) of places to bits, both from the operator key.
A pattern of an unknown key is Gaussian noise, so z_T stays Gaussian noise and the model paints a picture as it
paints any other. Which noise it was decides the layout, and regeneration leaves a layout as it is.

Reading estimates z_T from z0, which DDIM inversion does in fifty passes and `NoiseReader` in one, n^ = R(z0), and
correlates the estimate with the pattern of each bit:

    score_b = sum_{j in b} n_j n^_j / sqrt(sum_{j in b} n^_j^2),      bit = score > 0.

Without a mark the numbers n_j are independent of the picture, so over keys scores are independent standard normals,
whatever the network says. Under one key, what it says of every picture would favour the accounts whose secrets
agree with it. So the directions that estimates of unmarked pictures have in common are left out of every
estimate. With a mark scores have the mean mu = +-sqrt(E score^2 - 1), and 2 mu score is the log-likelihood ratio of
a bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import chdtrc, ndtri
from torch import Tensor, nn

from diffmark.pixel.keys import OperatorKey
from diffmark.secret import Bits
from diffmark.statistics import to_logits

PURPOSE = "initial noise"
MIN_MEAN = 0.05  # of scores: below it the evidence for a mark is taken as nothing, and bits keep their signs
Floats = NDArray[np.float32]


class KeyedPatterns:
    """The patterns of `length` bits in initial noise of shape (C, h, w), under a key."""

    def __init__(self, key: OperatorKey, length: int, shape: tuple[int, int, int]) -> None:
        self.key_id, self.length, self.shape = key.id, length, shape
        places = int(np.prod(shape))
        order = np.argsort(key.numbers(f"{PURPOSE} places", places), kind="stable")
        self.bit = np.empty(places, np.int64)  # b(j)
        self.bit[order] = np.arange(places) % length
        uniform = (key.numbers(f"{PURPOSE} values", places) + 0.5) / 2**32
        self.values = ndtri(uniform).astype(np.float32)  # n_j
        self.members = np.zeros((places, length), np.float32)  # 1 where a place is of a bit
        self.members[np.arange(places), self.bit] = 1

    def write(self, secrets: Bits) -> Floats:
        """delta of each secret, (..., L) -> (..., C, h, w)."""
        signs = 2 * np.asarray(secrets, np.float32)[..., self.bit] - 1
        return (signs * self.values).reshape(*signs.shape[:-1], *self.shape)

    def scores(self, estimates: Floats) -> Floats:
        """Estimates of z_T (..., C, h, w) -> a score for each bit, (..., L)."""
        flat = np.asarray(estimates, np.float32).reshape(*estimates.shape[:-3], -1)
        power = np.square(flat) @ self.members
        return (flat * self.values) @ self.members / np.sqrt(np.maximum(power, 1e-12))

    def read(self, estimates: Floats) -> Floats:
        """Logits (..., L, 2) of the secret's bits from estimates of z_T (..., C, h, w)."""
        return to_logits(log_likelihood_ratios(self.scores(estimates)))


def log_likelihood_ratios(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    """2 mu score with mu^2 = mean score^2 - 1, (..., L) -> (..., L)."""
    mean = np.sqrt(np.maximum(np.square(scores).mean(axis=-1, keepdims=True) - 1, MIN_MEAN**2))
    return 2 * mean * scores


def energy(ratios: NDArray[np.floating]) -> float:
    """Sum of the squared scores behind log-likelihood ratios (L,): the inverse of the above.

    mean ratio^2 = 4 mu^2 e with e = mean score^2 and mu^2 = max(e - 1, m^2).
    """
    quarter = float(np.square(np.asarray(ratios, np.float64)).mean()) / 4
    mean = (1 + np.sqrt(1 + 4 * quarter)) / 2  # e (e - 1) = quarter
    if mean - 1 < MIN_MEAN**2:
        mean = quarter / MIN_MEAN**2
    return float(mean * len(ratios))


def scores_of(ratios: NDArray[np.floating]) -> NDArray[np.floating]:
    """The scores behind log-likelihood ratios (L,)."""
    mean = np.sqrt(max(energy(ratios) / len(ratios) - 1, MIN_MEAN**2))
    return np.asarray(ratios) / (2 * mean)


def blind_p_value(ratios: NDArray[np.floating]) -> float:
    """Probability that an unmarked picture has at least this energy: chi-square with L degrees of freedom."""
    return float(chdtrc(len(ratios), energy(ratios)))


# --- sizes -------------------------------------------------------------------------------------------------------


def mix(noise: Tensor, delta: Tensor, dose: float) -> Tensor:
    """sqrt(1 - g^2) z_T + g delta, for z_T (B, C, H, W) of any size and delta (B, C, h, w) of the native one.

    Between sizes the coefficients of orthonormal cosine transforms correspond: those of delta replace the lowest
    ones of larger noise, or its own lowest ones replace those of smaller noise. White noise stays white.
    """
    height, width = (min(a, b) for a, b in zip(noise.shape[-2:], delta.shape[-2:], strict=True))
    pattern = _lowest(delta, height, width)
    own = _lowest(noise, height, width)
    change = (1 - dose**2) ** 0.5 * own + dose * pattern - own
    rows, columns = _cosines(noise.shape[-2], height, noise), _cosines(noise.shape[-1], width, noise)
    return noise + rows.T @ change @ columns


def _lowest(values: Tensor, height: int, width: int) -> Tensor:
    """The lowest coefficients of the cosine transform, (B, C, height, width)."""
    rows, columns = _cosines(values.shape[-2], height, values), _cosines(values.shape[-1], width, values)
    return rows @ values @ columns.T


def _cosines(size: int, count: int, like: Tensor) -> Tensor:
    """The first `count` vectors of the orthonormal DCT-II of `size` places, (count, size)."""
    places = torch.arange(size, dtype=torch.float64)
    waves = torch.arange(count, dtype=torch.float64)[:, None]
    basis = torch.cos(torch.pi * waves * (2 * places + 1) / (2 * size)) * (2 / size) ** 0.5
    basis[0] /= 2**0.5
    return basis.to(like)


# --- the network -------------------------------------------------------------------------------------------------


class NoiseReader(nn.Module):
    """R: z0 (B, C, h, w) -> an estimate of z_T (B, C, h, w); three scales, attention at the coarse two.

    The directions in `common`, (K, C h w), orthonormal or zero, are left out of it.
    """

    common: Tensor

    def __init__(self, channels: int, size: tuple[int, int], widths: Sequence[int], common: int) -> None:
        super().__init__()
        self.register_buffer("common", torch.zeros(common, channels * size[0] * size[1]))  # measured later
        fine, middle, coarse = widths
        self.stem = nn.Conv2d(channels, fine, 3, padding=1)
        self.place = nn.Parameter(torch.zeros(1, fine, *size))
        self.down_fine = nn.Sequential(ResidualBlock(fine), ResidualBlock(fine))
        self.to_middle = nn.Conv2d(fine, middle, 4, stride=2, padding=1)
        self.down_middle = nn.Sequential(ResidualBlock(middle), ResidualBlock(middle))
        self.to_coarse = nn.Conv2d(middle, coarse, 4, stride=2, padding=1)
        self.coarse = nn.Sequential(ResidualBlock(coarse), Attention(coarse), ResidualBlock(coarse))
        self.from_coarse = nn.Conv2d(coarse, middle, 1)
        self.up_middle = nn.Sequential(ResidualBlock(middle), Attention(middle), ResidualBlock(middle))
        self.from_middle = nn.Conv2d(middle, fine, 1)
        self.up_fine = nn.Sequential(ResidualBlock(fine), ResidualBlock(fine))
        self.out = nn.Conv2d(fine, channels, 3, padding=1)

    def forward(self, z0: Tensor) -> Tensor:
        estimate = self.estimate(z0)
        flat = estimate.flatten(1)
        return (flat - (flat @ self.common.T) @ self.common).view_as(estimate)

    def estimate(self, z0: Tensor) -> Tensor:
        """With what all pictures have in common."""
        fine = self.down_fine(self.stem(z0) + self.place)
        middle = self.down_middle(self.to_middle(fine))
        coarse = self.coarse(self.to_coarse(middle))
        middle = self.up_middle(middle + self.from_coarse(F.interpolate(coarse, scale_factor=2)))
        fine = self.up_fine(fine + self.from_middle(F.interpolate(middle, scale_factor=2)))
        return self.out(F.silu(fine))


def common_directions(estimates: Tensor, count: int) -> Tensor:
    """First principal directions (count, C h w) of estimates (N, C, h, w) of unmarked pictures, of length one.

    A direction for eight pictures at most; the others are zero.
    """
    rows = F.normalize(estimates.flatten(1))
    directions = torch.zeros(count, rows.shape[1]).to(rows)
    known = min(count, len(rows) // 8)
    directions[:known] = torch.linalg.svd(rows, full_matrices=False)[2][:known]
    return directions


class ResidualBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x))))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.GroupNorm(8, width), nn.GroupNorm(8, width)
        self.conv_in, self.conv_out = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        nn.init.zeros_(self.conv_out.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_out(F.silu(self.norm_out(self.conv_in(F.silu(self.norm_in(x))))))


class Attention(nn.Module):
    """Self-attention over places, four heads."""

    HEADS = 4

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.project, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, across = x.shape
        heads = self.project(self.norm(x)).reshape(batch, 3, self.HEADS, width // self.HEADS, -1)
        found = F.scaled_dot_product_attention(*heads.transpose(-1, -2).unbind(1))
        return x + self.out(found.transpose(-1, -2).reshape(batch, width, height, across))
