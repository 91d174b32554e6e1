"""Alignment: views are undone as they were made, found by the picture alone, and read with exact tests."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from conftest import _vae, tiny_codec
from PIL import Image

from diffmark.alignment import CLEAR, Search, View, places
from diffmark.codec import Codec, rescale, whiten
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.studio import painted_scenes
from diffmark.images import read_image
from diffmark.vista import load_autoencoder


def smooth(width: int, height: int) -> Image.Image:
    """A picture in which every place has a colour of its own."""
    x, y = np.meshgrid(np.linspace(40, 210, width), np.linspace(40, 210, height))
    return Image.fromarray(np.stack([x, y, (x + y) / 2], axis=-1).round().astype(np.uint8))


@pytest.mark.parametrize(
    ("change", "view"),
    [
        (lambda image: image.rotate(7, Image.Resampling.BICUBIC), View(turn=7)),
        (lambda image: image.crop((30, 40, 270, 200)), View(0, 0.8, 0.8, 0.0, 0.2)),
        (lambda image: image.crop((0, 0, 300, 150)), View(0, 1, 0.75, 0, -0.25)),
        (
            lambda image: image.rotate(-5, Image.Resampling.BICUBIC).crop((15, 10, 285, 190)),
            View(-5, 0.9, 0.9, 0, 0),
        ),
    ],
)
def test_a_view_is_undone_as_it_was_made(change, view):
    original = smooth(300, 200)
    undone = view.undo(read_image(change(original)).resized((256, 256)))
    expected = np.asarray(original.resize((256, 256), Image.Resampling.LANCZOS), float)
    assert undone.image.size == (256, 256)
    middle = (slice(96, 160), slice(96, 160))  # shown in every one of these views
    np.testing.assert_allclose(np.asarray(undone.image, float)[middle], expected[middle], atol=4)
    assert undone.notes == (str(view),)


def test_the_view_of_a_picture_as_it_is_changes_no_place():
    assert torch.equal(places(torch.tensor([[0.0, 1, 1, 0, 0]]), 1.7), torch.eye(2, 3)[None])


def matched_codec(side: int = 64) -> Codec:
    """A codec whose filters are random patterns."""
    codec = tiny_codec(height=side, width=side, matched_filter=True)
    torch.nn.init.normal_(codec.decoder.filters.weight)
    return codec


def search_in(codec: Codec, patterns: torch.Tensor) -> Search:
    """A search among latents (1, C, 2h, 2w), half a latent apart."""
    search = Search(codec, whiten(patterns[..., ::2, ::2]), 1.0)
    search.latents = patterns
    return search


@pytest.mark.parametrize("fitted", [False, True])
def test_fitted_marks_are_heard_below_the_noise(fitted):
    """Scores of the bits that are as loud as each other tell of a fitted mark, at no more energy than noise has."""
    codec = matched_codec(16)
    codec.config = replace(codec.config, fitted=fitted)
    rng = torch.Generator().manual_seed(0)
    search = Search(codec, torch.randn(1, 4, 16, 16, generator=rng), 1.0)
    noise, power = torch.ones(1, 64), torch.ones(1)
    signs = torch.randn(64, generator=rng).sign()
    even, uneven = (
        torch.linalg.solve(search._unmixed, scores)
        for scores in (signs, search._unmixed @ torch.randn(64, generator=rng))
    )
    even, uneven = (scores[None] * 8 / scores.norm() for scores in (even, uneven))  # chi-squared of 64
    assert (search.evidence(even, noise, power).item() > CLEAR) == fitted
    assert search.evidence(uneven, noise, power).item() < 1


def test_offsets_are_all_heard_at_once():
    codec = matched_codec(16)
    latents = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    search = Search(codec, latents[:1], 1.0)
    scores = search.at_offsets(search.spectra(latents))
    for row, down in enumerate(search.down.tolist()):
        for column, right in enumerate(search.right.tolist()):
            moved = latents.roll((down, right), (2, 3)).flatten(1)
            torch.testing.assert_close(
                scores[..., row, column], moved @ search.filters.T, atol=1e-3, rtol=1e-3
            )


def test_latents_are_looked_up_where_the_picture_shows_them():
    codec = matched_codec(16)
    ramp = torch.arange(32.0).expand(1, 4, 32, 32)  # each its own place, in halves of a latent
    search = search_in(codec, ramp)
    views = torch.tensor([[0, 1, 1, 0, 0], [0, 1, 1, 2 / 16, 0], [0, 0.5, 0.5, 0, 0]])
    plain, moved, halved = search.look_up(views)
    torch.testing.assert_close(plain, ramp[0, :, ::2, ::2], atol=1e-4, rtol=0)
    torch.testing.assert_close(moved[..., 1:], plain[..., :-1], atol=1e-4, rtol=0)
    assert halved[:, :, :4].eq(0).all()  # outside the picture
    assert halved[0, 8, 5].item() == pytest.approx(5, abs=0.1)  # twice as far from the middle, at 15


def test_a_mark_is_found_where_it_is_and_noise_is_not():
    codec = matched_codec()
    chance = torch.Generator().manual_seed(1)
    noise = torch.randn(1, 4, 128, 128, generator=chance)
    bits = torch.randint(0, 2, (64,), generator=chance) * 2.0 - 1
    mark = (bits @ codec.decoder.filters.weight.detach()).view(1, 4, 64, 64)
    mark = rescale(torch.nn.functional.interpolate(mark, scale_factor=2, mode="bilinear"), 0.8)
    true = View(turn=3.1, x=0.02, y=-0.01)
    # What the picture shows at its own places is what the mark has where these lie in it.
    inverse = torch.linalg.inv(
        torch.cat([places(torch.tensor([[3.1, 1, 1, 0.02, -0.01]]), 1.0), torch.tensor([[[0, 0, 1.0]]])], 1)
    )
    grid = torch.nn.functional.affine_grid(inverse[:, :2], [1, 4, 128, 128], align_corners=False)
    turned = torch.nn.functional.grid_sample(mark, grid, align_corners=False)
    around = torch.tensor([[turn, 1, 1, 0, 0] for turn in np.arange(-5, 5.1, 0.5)]).float()
    search = search_in(codec, noise + turned)
    view, found = search.refined(*search.heard(around))
    assert found >= CLEAR
    assert view.turn == pytest.approx(true.turn, abs=0.2)
    empty = search_in(codec, noise)
    assert empty.refined(*empty.heard(around))[1] < CLEAR


@pytest.fixture(scope="module")
def marked():
    """A scene with its secret, and a detector that aligns."""
    detector = Detector(Codec.from_pretrained("vista"), load_autoencoder(), align=True, fpr=1e-6)
    (scene,) = painted_scenes(1, first=95_000)
    secret = np.random.default_rng(0).integers(0, 2, 64).astype(np.uint8)
    return embed(scene, detector.codec, detector.vae, secret), secret, detector


def cropped(image: Image.Image) -> Image.Image:
    """To 80% of the sides, not in the middle."""
    return image.crop((10, 40, 215, 245))


def test_a_cropped_mark_is_read_and_what_was_undone_is_noted(marked):
    image, secret, detector = marked
    plain = Detector(detector.codec, detector.vae, fpr=1e-6)
    assert not plain.detect(cropped(image), secret).marked
    found = detector.detect(cropped(image), secret)
    assert found.marked
    view, evidence = detector.aligner.find(read_image(cropped(image)).resized((256, 256)))
    assert evidence >= CLEAR
    assert astuple(view)[1:] == pytest.approx((0.8, 0.8, -0.12, 0.11), abs=0.02)
    assert found.notes == (str(view),)
    # The view was found without the secret, so any other is compared with the same bits.
    other = detector.detect(cropped(image), 1 - secret)
    assert np.array_equal(other.bits, found.bits)
    assert not other.marked


def test_a_mark_that_was_turned_and_cropped_is_read(marked):
    image, secret, detector = marked
    changed = image.rotate(-6, Image.Resampling.BICUBIC).crop((20, 10, 250, 240))
    found = detector.detect(changed, secret)
    assert found.marked
    assert "turned by -" in found.notes[0]


def test_a_blind_verdict_on_a_chosen_view_is_left_open(marked):
    image, _, detector = marked
    assert detector.codec.calibration is not None
    changed = detector.detect(cropped(image))
    assert (changed.verdict, changed.test) == ("undecided", "none")
    plain = detector.detect(image)
    assert (plain.test, plain.notes) == ("blind", ())


def test_it_needs_filters_and_an_autoencoder():
    with pytest.raises(ValueError, match="matched filters"):
        Detector(tiny_codec(), _vae(scaling_factor=0.18215), align=True)
    with pytest.raises(ValueError, match="needs an autoencoder"):
        Detector(tiny_codec(), None, pixel_decoder=object(), align=True)  # type: ignore[arg-type]
