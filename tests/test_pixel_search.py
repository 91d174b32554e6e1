"""The search for a view computes only what can matter, and finds the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image
from test_pixel import SECRET, scene

from diffmark.pixel import reader, search
from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.layout import Layout
from diffmark.pixel.search import Coherence, View, candidates, linear, log_polar, undo
from diffmark.pixel.spectrum import CLIP, FRAME, box, forward, planes, whiten


def view(degrees: float, scale: float, x: float, y: float) -> View:
    """Of a picture that was turned, seen at this scale, and moved."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return View(((scale * cos, -scale * sin), (scale * sin, scale * cos)), (x, y))


@pytest.mark.parametrize("seen", [view(0, 2.1, 0.4, -0.3), view(31, 0.9, 0.1, 0), view(-80, 1.3, 0.5, 0.5)])
def test_a_view_of_a_part_is_that_part_of_the_whole_frame(seen: View) -> None:
    received = planes(scene(3, (300, 420)))
    frame, present = undo(received, seen)
    height, width = received.shape[1:]
    unit, matrix = math.sqrt(height * width), np.array(seen.matrix)
    matrix = matrix * unit / FRAME
    centre = np.array([width, height]) / 2 + np.array(seen.offset) * unit - matrix @ [FRAME / 2, FRAME / 2]
    data = (*matrix[0], centre[0], *matrix[1], centre[1])
    luma = Image.fromarray(received[0])
    whole = luma.transform(
        (FRAME, FRAME), Image.Transform.AFFINE, data, Image.Resampling.BICUBIC, fillcolor=-1e4
    )
    expected = np.asarray(whole)
    assert 0.02 < present.mean() < 0.95
    np.testing.assert_array_equal(present, expected > -5e3)
    np.testing.assert_allclose(frame[0], np.where(expected > -5e3, expected, 0), atol=1e-3)


def test_a_view_that_misses_the_picture_is_empty() -> None:
    frame, present = undo(planes(scene(3)), view(0, 1, 7, 7))
    for plane in (frame[0], present, whiten(frame[0], present)):
        assert not plane.any()
    assert not forward(frame[0], 40).any()


def test_whitening_of_a_part_is_that_of_the_whole_plane() -> None:
    luma = planes(scene(4))[0]
    present = np.zeros_like(luma)
    present[37:180, 200:431] = 1
    luma = luma * present
    weight = np.maximum(box(present), 1e-3)
    detail = (luma - box(luma) / weight) * present
    expected = np.clip(detail / np.sqrt(box(detail * detail) / weight + 1), -CLIP, CLIP)
    np.testing.assert_allclose(whiten(luma, present), expected, atol=1e-5)


def test_transforms_of_planes_that_are_partly_empty() -> None:
    plane = np.zeros((FRAME, FRAME), np.float32)
    plane[100:160] = planes(scene(5))[0][100:160]
    shifted = forward(plane + 1, 64) - forward(np.ones_like(plane), 64)  # no row of these is empty
    np.testing.assert_allclose(forward(plane, 64), shifted, atol=0.05)


@pytest.mark.parametrize("turned", [False, True])
def test_peaks_that_are_not_followed_up_are_not_measured(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = PixelCodec()
    picture = codec.embed(scene(), SECRET).image.rotate(20) if turned else scene(1)
    plane, unit = search.analysis_plane(planes(picture)[0])
    polar = log_polar(whiten(plane))
    found = candidates(polar, codec.layout.tones, search.ASPECTS, unit)
    least = search.MIN_PEAK
    monkeypatch.setattr(search, "MIN_PEAK", 1e-6)  # all are measured
    every = candidates(polar, codec.layout.tones, search.ASPECTS, unit)
    assert len(every) == search.CANDIDATES * 2 * len(search.ASPECTS)
    kept = [candidate for candidate in every if candidate.z >= least]
    assert [candidate for candidate in found if candidate.z >= least] == kept
    assert bool(kept) or not turned


def test_responses_are_those_of_the_tones_at_their_frequencies() -> None:
    tones = PixelCodec().layout.tones
    plane, unit = search.analysis_plane(planes(scene(2, (400, 300)))[0])
    white = whiten(plane)
    near = np.array([[1.002, -0.001], [0.002, 0.999]])
    matrix = linear(search.Candidate(9.0, 0.3, 1.1, False, 1.0))
    coherence = Coherence(white, unit, tones, matrix)
    away = tones.frequencies @ np.linalg.inv(near @ matrix) - tones.frequencies @ np.linalg.inv(matrix)
    waves = np.exp(-2j * np.pi * (away[:, :1, None] * coherence.x + away[:, 1:, None] * coherence.y[:, None]))
    values = (coherence.blocks * waves).sum(axis=(1, 2))
    expected = 3 * values / np.maximum(abs(values), coherence.limit)
    for _ in range(2):  # also the one that is kept
        np.testing.assert_allclose(coherence.responses(near @ matrix), expected, rtol=1e-9)
    assert not np.allclose(coherence.responses(matrix), expected)


def test_square_pictures_are_whitened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layout: Layout = PixelCodec().layout
    square = planes(scene(1, (256, 256)))
    read = reader.read(square, layout)
    known = search.views
    monkeypatch.setattr(reader, "views", lambda luma, tones, framed: known(luma, tones))
    np.testing.assert_allclose(reader.read(square, layout).scores, read.scores)
