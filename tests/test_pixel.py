"""The pixel layer: keys, bands, tones, the writer under its visibility budget, the reader and its search."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from pixel_vectors import marked_in_chroma

from diffmark.images import ImageError
from diffmark.pixel.codec import MarkWarning, PixelCodec
from diffmark.pixel.keys import PUBLIC_KEY, OperatorKey, as_key
from diffmark.pixel.layout import PixelConfig, evidence, gains, margins
from diffmark.pixel.reader import PROMISING_NATS
from diffmark.pixel.search import View, undo
from diffmark.pixel.spectrum import planes
from diffmark.pixel.tones import APART, COUNT, HIGH, LOW
from diffmark.pixel.visibility import Visibility
from diffmark.secret import from_hex, random_secrets, to_hex

SECRET = "0123456789abcdef"


def scene(seed: int = 0, size: tuple[int, int] = (512, 512)) -> Image.Image:
    """A picture with a natural spectrum: fractal noise in colour, smooth and busy parts, an edge."""
    rng = np.random.default_rng(seed)
    height, width = size[1], size[0]
    fy, fx = np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width
    amplitude = 1 / np.maximum(np.hypot(fx, fy), 1) ** 1.2
    layers = []
    for _ in range(3):
        spectrum = amplitude * np.exp(2j * np.pi * rng.random(amplitude.shape))
        layer = np.fft.irfft2(spectrum, (height, width))
        layers.append(layer / layer.std())
    y = np.linspace(-1, 1, height)[:, None]
    luma = 128 + 40 * layers[0] * (1.2 + y) / 2 + 30 * np.sign(layers[1])
    rgb = np.stack([luma + 12 * layers[2], luma, luma - 12 * layers[2]], axis=-1)
    return Image.fromarray(np.clip(rgb, 0, 255).astype(np.uint8))


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


@pytest.fixture(scope="module")
def codec() -> PixelCodec:
    return PixelCodec()


@pytest.fixture(scope="module")
def marked(codec: PixelCodec) -> Image.Image:
    return codec.embed(scene(), SECRET).image


def wrong(codec: PixelCodec, image: Image.Image, secret: str = SECRET) -> int:
    """Bits that are read otherwise than they were written."""
    return int(np.sum((codec.read(image).margins > 0) != (from_hex(secret, codec.length) > 0)))


class TestKeys:
    def test_numbers_are_fixed(self) -> None:
        assert PUBLIC_KEY.id == "01fe9b9d"
        again = OperatorKey(bytes(range(32))).numbers("tone phases", 3)
        assert again.dtype == np.uint32
        assert again.tolist() == OperatorKey(bytes(range(32))).numbers("tone phases", 9)[:3].tolist()
        assert again.tolist() != OperatorKey(bytes(range(32))).numbers("luma-1 signs", 3).tolist()

    def test_repr_keeps_the_key(self) -> None:
        key = OperatorKey(bytes(range(32)))
        assert "0001" not in repr(key)
        assert key.id in repr(key)

    def test_key_files(self, tmp_path: Path) -> None:
        file = tmp_path / "key"
        file.write_text("ab" * 32 + "\n")
        file.chmod(0o644)
        with pytest.raises(PermissionError, match="chmod 600"):
            as_key(file)
        file.chmod(0o600)
        assert as_key(file) == OperatorKey.from_hex("ab" * 32) == as_key("ab" * 32)
        file.write_text("ab")
        with pytest.raises(ValueError, match="64 hex digits"):
            as_key(file)

    @pytest.mark.parametrize("bad", [b"short", bytes(31), bytes(33)])
    def test_wrong_length(self, bad: bytes) -> None:
        with pytest.raises(ValueError, match="32 bytes"):
            OperatorKey(bad)

    def test_missing_file(self) -> None:
        with pytest.raises(FileNotFoundError):
            as_key("no/such/key")


class TestLayout:
    def test_every_bit_has_its_share(self, codec: PixelCodec) -> None:
        for band in codec.layout.bands:
            counts = np.bincount(band.owner, minlength=64)
            assert counts.max() - counts.min() <= 1
            assert abs(float(band.sign.mean())) < 4 / np.sqrt(len(band.sign))

    def test_bands_do_not_overlap(self, codec: PixelCodec) -> None:
        luma = np.concatenate([band.index for band in codec.layout.bands if band.plane == 0])
        assert len(np.unique(luma)) == len(luma)

    def test_tones(self, codec: PixelCodec) -> None:
        k = codec.layout.tones.frequencies
        assert k.shape == (COUNT, 2)
        radii = np.hypot(*k.T)
        assert radii.min() >= LOW
        assert radii.max() < HIGH
        gaps = np.hypot(*(k[:, None] - k[None]).transpose(2, 0, 1)) + 99 * np.eye(COUNT)
        assert gaps.min() >= APART

    @pytest.mark.parametrize("length", [0, 129])
    def test_lengths(self, length: int) -> None:
        with pytest.raises(ValueError, match="1 to 128 bits"):
            PixelConfig(length=length)

    def test_margins_are_log_likelihood_ratios(self) -> None:
        """For known gains the margin is log p(s | 1) / p(s | 0) of Gaussian scores."""
        rng = np.random.default_rng(0)
        bits = rng.integers(0, 2, 64) * 2 - 1
        scores = np.stack([5.0 * bits, 3.0 * bits]) + rng.normal(size=(2, 64))
        assert np.allclose(gains(scores), (5, 3), atol=0.5)
        assert np.allclose(margins(scores), 2 * gains(scores) @ scores)
        assert evidence(scores) > 500
        assert evidence(rng.normal(size=(7, 64))) < 15


class TestWriter:
    def test_seen_as_little_as_asked(self, codec: PixelCodec) -> None:
        cover = scene(1)
        strong, weak = codec.embed(cover, SECRET, 75), codec.embed(cover, SECRET, 92)
        assert weak.psnr > strong.psnr
        assert weak.quality >= 91
        assert strong.quality >= 74
        assert weak.bits_read == strong.bits_read == 64
        assert Visibility(cover).ssimulacra2(weak.image) == pytest.approx(weak.quality, abs=0.01)
        assert Visibility(cover).ssimulacra2(cover) == 100

    def test_deterministic(self, codec: PixelCodec, marked: Image.Image) -> None:
        assert PixelCodec().embed(scene(), SECRET).image.tobytes() == marked.tobytes()

    def test_quality_100_is_identity(self, codec: PixelCodec) -> None:
        with pytest.warns(MarkWarning, match="not marked"):
            found = codec.embed(scene(), SECRET, 100)
        assert found.image.tobytes() == scene().tobytes()

    def test_ruinous_quality_warns(self, codec: PixelCodec) -> None:
        with pytest.warns(MarkWarning, match="can be seen"):
            codec.embed(scene(), SECRET, 40)

    @pytest.mark.parametrize("quality", [-1, 101, float("nan")])
    def test_bad_quality(self, codec: PixelCodec, quality: float) -> None:
        with pytest.raises(ValueError, match="SSIMULACRA2"):
            codec.embed(scene(), SECRET, quality)

    def test_marked_already(self, codec: PixelCodec, marked: Image.Image) -> None:
        with pytest.warns(MarkWarning, match="already"):
            codec.embed(marked, "f" * 16)

    def test_flat_pictures_warn_or_carry(self, codec: PixelCodec) -> None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = codec.embed(Image.new("RGB", (300, 200), "navy"), SECRET)
        assert found.bits_read == 64 or any("cannot carry" in str(w.message) for w in said)

    def test_too_small(self, codec: PixelCodec) -> None:
        with pytest.raises(ImageError, match="too small"):
            codec.embed(Image.new("RGB", (63, 200)), SECRET)

    def test_two_secrets_are_refused(self, codec: PixelCodec) -> None:
        with pytest.raises(ValueError, match="one secret"):
            codec.embed(scene(), [SECRET, SECRET])

    @pytest.mark.parametrize("size", [(256, 256), (640, 400), (300, 900), (1600, 1200)])
    def test_sizes(self, codec: PixelCodec, size: tuple[int, int]) -> None:
        found = codec.embed(scene(3, size), SECRET)
        assert found.image.size == size
        assert found.bits_read >= 63
        assert wrong(codec, jpeg(found.image, 75)) <= 2

    @pytest.mark.parametrize("length", [8, 100, 128])
    def test_lengths(self, length: int) -> None:
        codec = PixelCodec(config=PixelConfig(length=length))
        secret = random_secrets(1, length)[0]
        found = codec.embed(scene(4), secret)
        assert found.bits_read == length
        assert to_hex(codec.read(found.image).margins > 0) == to_hex(secret)

    def test_residual_is_what_embed_adds(self, codec: PixelCodec, marked: Image.Image) -> None:
        pixels = np.asarray(scene(), np.float32) + codec.residual(scene(), SECRET)
        assert np.array_equal(np.clip(np.rint(pixels), 0, 255).astype(np.uint8), np.asarray(marked))

    @settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(secret=st.integers(0, 2**64 - 1), seed=st.integers(0, 1000))
    def test_any_secret_on_any_picture(self, codec: PixelCodec, secret: int, seed: int) -> None:
        found = codec.embed(scene(seed), secret)
        assert found.bits_read == 64


class TestReader:
    @pytest.mark.parametrize(
        "attack",
        [
            lambda image: image,
            lambda image: jpeg(image, 50),
            lambda image: image.resize((256, 256), Image.Resampling.BICUBIC),
            lambda image: image.resize((1024, 1024), Image.Resampling.BICUBIC),
            lambda image: ImageEnhance.Brightness(image).enhance(1.6),
            lambda image: ImageOps.grayscale(image),
            lambda image: image.rotate(9),
            lambda image: image.rotate(-141.5, Image.Resampling.BICUBIC),
            lambda image: image.rotate(90),
            ImageOps.mirror,
            ImageOps.flip,
            lambda image: image.crop((40, 90, 400, 450)).resize((512, 512), Image.Resampling.BILINEAR),
            lambda image: image.crop((60, 100, 460, 380)),
            lambda image: ImageOps.expand(image, 90, "white"),
            lambda image: jpeg(ImageOps.expand(image, (30, 60, 190, 80), (240, 240, 245)), 85),
        ],
        ids=[
            *("plain", "jpeg", "half", "double", "brightness", "grey", "turn", "turn-far", "quarter"),
            *("mirror", "flip", "crop", "crop-aspect", "border", "screenshot"),
        ],
    )  # fmt: skip
    def test_survives(self, codec: PixelCodec, marked: Image.Image, attack) -> None:  # type: ignore[no-untyped-def]
        assert wrong(codec, attack(marked)) <= 3

    @pytest.mark.parametrize("change", [ImageOps.mirror, lambda image: image.crop((40, 30, 500, 480))])
    def test_a_view_is_found_by_chroma_alone(self, codec: PixelCodec, change) -> None:  # type: ignore[no-untyped-def]
        image = change(marked_in_chroma(scene(3), codec))
        reading = codec.read(image)
        assert reading.view is not None
        assert evidence(reading.scores[:5]) < PROMISING_NATS  # luma says nothing
        assert wrong(codec, image) <= 1

    def test_unmarked_says_nothing(self, codec: PixelCodec) -> None:
        for seed in range(4):
            reading = codec.read(scene(seed).rotate(11 * seed))
            assert reading.evidence < 12
            assert reading.view is None

    def test_another_key_reads_chance(self, codec: PixelCodec, marked: Image.Image) -> None:
        other = PixelCodec(bytes(32))
        assert other.read(marked).evidence < 12
        assert 12 <= wrong(other, marked) <= 52

    def test_description_has_no_key(self) -> None:
        codec = PixelCodec(b"\x07" * 32)
        assert "0707" not in str(codec.description)
        assert codec.description["key_id"] == codec.key.id

    def test_view_in_words(self, codec: PixelCodec, marked: Image.Image) -> None:
        view = codec.read(ImageOps.mirror(marked.rotate(25))).view
        assert view is not None
        assert view.mirrored
        assert abs(view.rotation) == pytest.approx(25, abs=0.2)
        assert view.scale == pytest.approx(1, abs=0.01)
        assert "mirrored" in str(view)

    def test_undo_of_the_identity(self) -> None:
        received = planes(scene())
        frame, present = undo(received, View(((1.0, 0.0), (0.0, 1.0)), (0.0, 0.0)))
        assert present.all()
        assert np.abs(frame - received).max() < 1e-3
