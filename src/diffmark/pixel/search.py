"""The search for a view: how a picture was rotated, scaled, mirrored, stretched and moved since it was marked.

1. Log-polar shift and add. The picture, in square pixels, is whitened and transformed; the power spectrum over
   its local mean is looked up on a log-polar grid, shifted by each tone's angle and log radius, and added. Its
   peaks are candidates for rotation and scale, for both mirror images and for each aspect ratio that the marked
   picture may have had.
2. Coherent sum. The tones' complex responses, turned back by their phases, add up at the right position only.
3. Hill climbing on the coherent sum, then on the evidence of the bits, over all six numbers of the affine map.

The choice never sees a secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import fft, rfft
from scipy.ndimage import uniform_filter

from diffmark.pixel.spectrum import FRAME, Plane, resample, whiten
from diffmark.pixel.tones import COUNT, HIGH, LOW, Tones

Matrix = NDArray[np.float64]  # (2, 2)
Vector = NDArray[np.float64]  # (2,)

SIZE = 1024  # of the transform
ANGLES = 1080  # over half a turn
STEP = 0.004  # of log radius
MIN_SCALE, MAX_SCALE = (
    0.45,
    1.7,
)  # received cycles over marked cycles: a crop lowers them, a border raises them
LOCAL = 25  # bins a side over which the spectrum is levelled
PEAK = 8.0  # power over the local mean is clipped here
ASPECTS = (1.0, 4 / 3, 3 / 4, 3 / 2, 2 / 3, 16 / 9, 9 / 16)
LEVELS = 32767 // int(COUNT * PEAK)  # of an integer, for 1
CANDIDATES = 3  # peaks of the shift and add that are followed up
MIN_PEAK = 6.8  # standard deviations at which a peak is followed up
POSITIONS = 3  # peaks of the coherent sum that are followed up for each of them
TURN_STEP = math.radians(0.12)  # first steps of the hill climbing
SCALE_STEP = 0.0025
SHIFT_STEP = 0.6 / FRAME
BLOCK = 16  # pixels a side of the blocks of a demodulated picture
SHRINK = 0.55  # of the steps after each round
ABSENT = -1e4  # level of places outside of a received picture


@dataclass(frozen=True)
class View:
    """An affine map from the marked frame to the received picture.

    A place (u, v) of the marked picture, both from -1/2 to 1/2, lies at `matrix @ (u, v) + offset` in the received
    picture, in units of the square root of its area, from its centre.
    """

    matrix: tuple[tuple[float, float], tuple[float, float]]
    offset: tuple[float, float]

    @classmethod
    def of(cls, matrix: Matrix, offset: Vector) -> View:
        (a, b), (c, d) = matrix.tolist()
        x, y = offset.tolist()
        return cls(((a, b), (c, d)), (x, y))

    @property
    def mirrored(self) -> bool:
        return float(np.linalg.det(np.array(self.matrix))) < 0

    @property
    def rotation(self) -> float:
        """Degrees counter-clockwise by which the marked picture was rotated."""
        (a, b), (c, d) = self.matrix
        if self.mirrored:
            a, c = -a, -c
        return -math.degrees(math.atan2(c - b, a + d))

    @property
    def scale(self) -> float:
        """Side of the marked picture over the side of the received one, as the root of their areas."""
        return math.sqrt(abs(float(np.linalg.det(np.array(self.matrix)))))

    def __str__(self) -> str:
        parts = ["mirrored"] if self.mirrored else []
        rotation = round(self.rotation, 1) + 0.0
        if rotation:
            parts.append(f"rotated by {rotation:g} degrees")
        parts.append(f"the marked picture covers {self.scale**2:.0%} of this one's area")
        return ", ".join(parts)


def analysis_plane(luma: Plane) -> tuple[Plane, float]:
    """The picture in square pixels with an area of FRAME^2 (at most SIZE a side), and its pixels a unit."""
    height, width = luma.shape
    scale = min(FRAME / math.sqrt(height * width), SIZE / max(height, width))
    size = (max(8, round(height * scale)), max(8, round(width * scale)))
    return resample(luma, size), math.sqrt(size[0] * size[1])


@lru_cache(maxsize=1)
def _grid() -> tuple[NDArray[np.int64], int, float]:
    """Log-polar look-up into the half spectrum: flat index of the nearest bin, number of radii, lowest radius."""
    lowest = LOW * MIN_SCALE / 1.2 * SIZE / FRAME
    highest = min(HIGH * MAX_SCALE * 1.1 * SIZE / FRAME, SIZE / 2 - 2)
    count = int(math.log(highest / lowest) / STEP) + 1
    radii = lowest * np.exp(np.arange(count) * STEP)
    angles = np.arange(ANGLES) * np.pi / ANGLES
    fx, fy = np.outer(np.cos(angles), radii), np.outer(np.sin(angles), radii)
    flip = fx < 0
    fx, fy = np.where(flip, -fx, fx), np.where(flip, -fy, fy)
    column = np.rint(fx).astype(np.int64)
    row = np.rint(fy).astype(np.int64) % SIZE
    return row * (SIZE // 2 + 1) + column, count, lowest


def log_polar(white: Plane) -> NDArray[np.float32]:
    """Levelled power spectrum on the log-polar grid, (ANGLES, radii), mean 0 at every radius."""
    rows = rfft(white, SIZE, axis=1)  # the others are zero
    spectrum = fft(rows, SIZE, axis=0, overwrite_x=True)
    power = spectrum.real**2 + spectrum.imag**2
    level = uniform_filter(power, LOCAL, mode="wrap")
    ratio = np.minimum(power / np.maximum(level, 1e-9), PEAK)
    index, _, _ = _grid()
    found = ratio.ravel().take(index)
    return found - found.mean(axis=0, keepdims=True)


@dataclass(frozen=True)
class Candidate:
    """A linear map of the tones' frequencies and how far it stands out."""

    z: float
    angle: float  # radians that frequencies turn by
    scale: float  # received cycles over marked cycles
    mirror: bool
    aspect: float  # width over height of the marked picture


def _moved(tones: Tones, aspect: float, mirror: bool) -> NDArray[np.float64]:
    """Tones of a marked picture of this aspect in square units of its area, mirrored left to right if asked."""
    root = math.sqrt(aspect)
    factors = np.array([(-1 if mirror else 1) / root, root])
    return tones.frequencies * factors


def candidates(
    polar: NDArray[np.float32], tones: Tones, aspects: tuple[float, ...], unit: float
) -> list[Candidate]:
    """Peaks of the shift and add over mirror images and aspects, best first; none where none stands out."""
    _, count, lowest = _grid()
    shifts = np.arange(int(math.log(MIN_SCALE) / STEP), int(math.log(MAX_SCALE) / STEP) + 1)
    found: list[Candidate] = []
    levels = np.ascontiguousarray(np.rint(polar * LEVELS).astype(np.int16).T)  # integers add up faster
    extended = np.concatenate([levels, levels], axis=1)
    for aspect in aspects:
        for mirror in (False, True):
            summed = np.zeros((len(shifts), ANGLES), np.int16)
            used = np.zeros(len(shifts))
            for kx, ky in _moved(tones, aspect, mirror):
                turn = round((math.atan2(ky, kx) % np.pi) / np.pi * ANGLES) % ANGLES
                first = round(math.log(math.hypot(kx, ky) * SIZE / FRAME / lowest) / STEP) + shifts[0]
                low, high = max(0, -first), min(len(shifts), count - first)
                summed[low:high] += extended[first + low : first + high, turn : turn + ANGLES]
                used[low:high] += 1
            weight = (1 / np.sqrt(np.maximum(used, 1))).astype(np.float32)
            weight[used < 0.6 * len(tones.frequencies)] = 0
            sample = np.abs(summed[::4, ::4] * weight[::4, None])
            if not _stands_out(float((summed.max(axis=1) * weight).max()), sample):
                continue
            total = (summed * weight[:, None]).T
            spread = max(1.4826 * float(np.median(sample)), 1e-9)
            for _ in range(CANDIDATES):
                row, column = divmod(int(total.argmax()), len(shifts))
                z = float(total[row, column]) / spread
                angle, scale = row * np.pi / ANGLES, math.exp(shifts[column] * STEP) * unit / FRAME
                found.append(Candidate(z, angle, scale, mirror, aspect))
                rows = np.arange(row - 6, row + 7) % ANGLES
                total[np.ix_(rows, np.arange(max(0, column - 6), min(len(shifts), column + 7)))] = -np.inf
    return sorted(found, key=lambda candidate: -candidate.z)


def _stands_out(peak: float, sample: NDArray[np.float32]) -> bool:
    """Whether a peak may be MIN_PEAK deviations of the sample high; counting takes a part of a median's time."""
    bound = peak / MIN_PEAK / 1.4826 * 1.0001
    return bool(2 * np.count_nonzero(sample <= bound) >= sample.size)


def linear(candidate: Candidate) -> Matrix:
    """The matrix of a View: marked units to received units (half turn not yet known)."""
    cos, sin = math.cos(candidate.angle), math.sin(candidate.angle)
    root = math.sqrt(candidate.aspect)
    stretch = np.diag([(-1 if candidate.mirror else 1) * root, 1 / root])
    # frequencies turn and scale by s: places turn alike and scale by 1 / s
    return np.array([[cos, -sin], [sin, cos]]) @ stretch / candidate.scale


def inverse(matrix: Matrix) -> Matrix:
    """Of a 2 x 2 matrix, in a tenth of the time that `numpy.linalg` takes."""
    (a, b), (c, d) = matrix.tolist()
    return np.array([[d, -b], [-c, a]]) / (a * d - b * c)


def _powers(step: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """step^0 ... step^(count - 1) along a new last axis, by doubling."""
    found = np.empty((*step.shape, count), np.complex128)
    found[..., 0] = 1
    done = 1
    while done < count:
        more = min(done, count - done)
        np.multiply(found[..., :more], step[..., None], out=found[..., done : done + more])
        step, done = step * step, done + more
    return found


class Coherence:
    """Coherent sum of the tones of a whitened picture, for affine maps near a given one.

    The picture is demodulated at every tone's frequency under the given map and summed over blocks; frequencies
    nearby are then sums over few blocks.
    """

    def __init__(self, white: Plane, unit: float, tones: Tones, matrix: Matrix) -> None:
        self.tones, self.matrix, self.unit = tones, matrix, unit
        self.base = tones.frequencies @ inverse(matrix)  # k^T M^-1: cycles a received unit
        high, wide = (size // BLOCK for size in white.shape)
        x, y = (
            ((np.arange(count) + 0.5) * BLOCK - size / 2) / unit
            for count, size in ((wide, white.shape[1]), (high, white.shape[0]))
        )
        self.x, self.y = x, y  # centres of the blocks
        inside = ((np.arange(BLOCK) + 0.5) - BLOCK / 2) / unit
        across, down = (np.exp(-2j * np.pi * np.outer(k, inside)) for k in self.base.T)
        cut = white[: high * BLOCK, : wide * BLOCK].astype(np.float32).reshape(-1, BLOCK)
        both = np.concatenate([across.real, across.imag]).astype(np.float32)  # (2 COUNT, BLOCK)
        real, imaginary = (both @ cut.T).reshape(2, len(down), high, BLOCK, wide)
        rows = np.einsum("tydx,td->tyx", real + 1j * imaginary, down, optimize=True)
        columns = np.exp(-2j * np.pi * np.outer(self.base[:, 0], x))
        self.blocks = rows * np.exp(-2j * np.pi * np.outer(self.base[:, 1], y))[:, :, None] * columns[:, None]
        self._last = b"", np.zeros(0, np.complex128)  # a map and its responses
        self.limit = 3 * max(float(np.median(np.abs(self.blocks.sum(axis=(1, 2))))), 1e-9)

    def responses(self, matrix: Matrix) -> NDArray[np.complex128]:
        """Of each tone, in thirds of three times the median; larger ones are clipped."""
        name = matrix.tobytes()
        if name != self._last[0]:  # a picture that is moved alone has the same
            away = self.tones.frequencies @ inverse(matrix) - self.base
            high, wide = len(self.y), len(self.x)
            waves = _powers(np.exp(-2j * np.pi * BLOCK / self.unit * away.T), max(high, wide))
            rows = waves[1, :, :high] * np.exp(-2j * np.pi * away @ (self.x[0], self.y[0]))[:, None]
            values = ((self.blocks @ waves[0, :, :wide, None])[:, :, 0] * rows).sum(axis=1)
            self._last = name, 3 * values / np.maximum(np.abs(values), self.limit)
        return self._last[1]

    def positions(self) -> list[tuple[Matrix, Vector]]:
        """Best positions of the received picture, also turned by half: (matrix, offset), best first."""
        values = self.responses(self.matrix)
        grid = np.arange(FRAME) / FRAME - 0.5  # of the received centre in the marked frame
        k, phase = self.tones.frequencies, self.tones.phases
        columns = np.exp(-2j * np.pi * np.outer(k[:, 0], grid + 0.5))
        waves = np.concatenate([columns.real, -columns.imag]).astype(np.float32)
        found = []
        for half, v in ((False, values), (True, values.conj())):
            rows = np.exp(-2j * np.pi * np.outer(k[:, 1], grid + 0.5)) * (v * np.exp(-1j * phase))[:, None]
            total = np.concatenate([rows.real, rows.imag]).astype(np.float32).T @ waves  # the real part
            for _ in range(POSITIONS):
                row, column = np.unravel_index(int(total.argmax()), total.shape)
                place = np.array([grid[column], grid[row]])
                matrix = -self.matrix if half else self.matrix
                found.append((float(total[row, column]), matrix, -matrix @ place))
                total[max(0, row - 3) : row + 4, max(0, column - 3) : column + 4] = -np.inf
        found.sort(key=lambda entry: -entry[0])
        return [(matrix, offset) for _, matrix, offset in found[:POSITIONS]]

    def value(self, matrix: Matrix, offset: Vector) -> float:
        """The coherent sum for a whole view, near the given map or its half turn."""
        k, phase = self.tones.frequencies, self.tones.phases
        centre = -inverse(matrix) @ offset  # the received centre in the marked frame
        turn = np.exp(-1j * (phase + 2 * np.pi * (k @ (centre + 0.5))))
        half = float(np.sum(matrix * self.matrix)) < 0
        values = self.responses(-matrix).conj() if half else self.responses(matrix)
        return float((values * turn).real.sum())


def undo(planes: NDArray[np.float32], view: View, side: int = FRAME) -> tuple[NDArray[np.float32], Plane]:
    """Received planes (C, H, W) looked up at the marked frame, (C, side, side), and where they are present."""
    _, height, width = planes.shape
    unit = math.sqrt(height * width)
    matrix, offset = np.array(view.matrix) * unit / side, np.array(view.offset) * unit
    centre = np.array([width / 2, height / 2]) + offset - matrix @ np.array([side / 2, side / 2])
    shrink = math.sqrt(abs(float(np.linalg.det(matrix))))
    if shrink > 1.5:  # the received picture is larger than what is asked: shrink it first, without aliasing
        factor = 1 / shrink
        size = (max(8, round(height * factor)), max(8, round(width * factor)))
        return undo(np.stack([resample(plane, size) for plane in planes]), view, side)
    rows, columns = _extent(matrix, centre, (height, width), side)
    data = (
        *matrix[0],
        centre[0] + float(matrix[0] @ (columns.start, rows.start)),
        *matrix[1],
        centre[1] + float(matrix[1] @ (columns.start, rows.start)),
    )
    size = (columns.stop - columns.start, rows.stop - rows.start)
    found = np.zeros((len(planes), side, side), np.float32)
    present = np.zeros((side, side), np.float32)
    if min(size) > 0:
        for plane, into in zip(planes, found, strict=True):
            part = Image.fromarray(plane).transform(
                size, Image.Transform.AFFINE, data, Image.Resampling.BICUBIC, fillcolor=ABSENT
            )
            into[rows, columns] = np.asarray(part)
        present[rows, columns] = found[0, rows, columns] > ABSENT / 2
        found[:, rows, columns] *= present[rows, columns]
    return found, present


def _extent(matrix: Matrix, centre: Vector, shape: tuple[int, int], side: int) -> tuple[slice, slice]:
    """Rows and columns of a frame that a received picture of this shape may reach."""
    height, width = shape
    corners = np.array([(0, 0), (0, height), (width, 0), (width, height)]) - centre
    places = corners @ inverse(matrix).T  # of the frame, (x, y)
    first = np.clip(np.floor(places.min(axis=0)).astype(int) - 1, 0, side).tolist()
    last = np.clip(np.ceil(places.max(axis=0)).astype(int) + 1, 0, side).tolist()
    return slice(first[1], last[1]), slice(first[0], last[0])


def hill_climb(
    value: Callable[[Matrix, Vector], float], matrix: Matrix, offset: Vector, rounds: int, step: float = 1.0
) -> tuple[float, Matrix, Vector]:
    """Coordinate ascent of `value` over turn, scale, stretch, shear and position, with shrinking steps."""
    moves = [
        (TURN_STEP * np.array([[0.0, -1], [1, 0]]), np.zeros(2)),
        (SCALE_STEP * np.eye(2), np.zeros(2)),
        (SCALE_STEP * np.diag([1.0, -1]), np.zeros(2)),
        (SCALE_STEP * np.array([[0.0, 1], [1, 0]]), np.zeros(2)),
        (np.zeros((2, 2)), np.array([SHIFT_STEP, 0])),
        (np.zeros((2, 2)), np.array([0, SHIFT_STEP])),
    ]
    best, one = value(matrix, offset), np.eye(2)
    for _ in range(rounds):
        for linear_part, shift in moves:
            for sign in (step, -step):
                change = one + sign * linear_part
                found = value(change @ matrix, change @ offset + sign * shift)
                if found > best:
                    best, matrix, offset = found, change @ matrix, change @ offset + sign * shift
                    break
        step *= SHRINK
    return best, matrix, offset


def views(luma: Plane, tones: Tones, framed: Plane | None = None) -> Iterator[View]:
    """Views in which the tones of a received picture agree, most likely first.

    `framed` is the whitened luma of its frame, if that is known: of a square picture, what is analysed.
    """
    if framed is not None and luma.shape[0] == luma.shape[1]:
        white, unit = framed, float(FRAME)
    else:
        plane, unit = analysis_plane(luma)
        white = whiten(plane)
    for candidate in candidates(log_polar(white), tones, ASPECTS, unit)[:CANDIDATES]:
        if candidate.z < MIN_PEAK:
            return
        coherence = Coherence(white, unit, tones, linear(candidate))
        for matrix, offset in coherence.positions():
            _, matrix, offset = hill_climb(coherence.value, matrix, offset, rounds=4)
            yield View.of(matrix, offset)
