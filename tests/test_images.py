from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, features

from diffmark.images import ImageError, read_image


@pytest.fixture
def picture():
    """A photograph-like RGB gradient, so that lossy formats stay near it."""
    y, x = np.mgrid[0:48, 0:64]
    return Image.fromarray(np.stack([4 * x, 5 * y, 2 * x + 2 * y], axis=-1).clip(0, 255).astype(np.uint8))


def saved(image, format, **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def distance(image, other):
    return np.abs(np.asarray(image, float) - np.asarray(other, float)).mean()


def test_paths_bytes_pil_numpy_and_tensors_agree(picture, tmp_path):
    path = tmp_path / "picture.png"
    picture.save(path)
    array = np.asarray(picture)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    forms = [path, str(path), path.read_bytes(), bytearray(path.read_bytes()), picture, array, tensor]
    forms += [array / 255.0, tensor / 255, array.astype(np.uint16) * 257, (tensor / 255).double()]
    for form in forms:
        read = read_image(form)
        assert distance(read.image, picture) == 0
        assert read.notes == ()
    assert read_image(path).source == str(path)
    assert read_image(read_image(path)).source == str(path)
    assert distance(read_image((tensor / 255).bfloat16()).image, picture) < 1


@pytest.mark.parametrize(
    "format", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "AVIF", "JPEG2000", "PPM", "HEIF"]
)
def test_formats(picture, format):
    if format == "HEIF":
        pytest.importorskip("pillow_heif")
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    read = read_image(saved(picture, format))
    assert read.image.mode == "RGB"
    assert distance(read.image, picture) < 6


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(picture, orientation):
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # how such a file stores the picture
    stored = picture if orientation == 1 else picture.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    read = read_image(saved(stored, "PNG", exif=exif))
    assert read.image.size == picture.size
    assert distance(read.image, picture) == 0


def test_alpha_is_laid_on_white_and_said(picture):
    see_through = picture.convert("RGBA")
    see_through.putalpha(128)
    read = read_image(saved(see_through, "PNG"))
    assert distance(read.image, (np.asarray(picture, float) + 255) / 2) < 1
    assert "white" in read.notes[0]
    see_through.putalpha(255)
    assert read_image(see_through).notes == ()
    assert distance(read_image(see_through).image, picture) == 0


def test_palette_grey_cmyk_and_bilevel(picture):
    assert (
        distance(
            read_image(saved(picture.convert("P", palette=Image.Palette.ADAPTIVE), "PNG")).image, picture
        )
        < 12
    )
    grey = read_image(saved(picture.convert("L"), "PNG")).image
    assert grey.mode == "RGB"
    assert distance(grey, picture.convert("L").convert("RGB")) == 0
    assert read_image(picture.convert("LA")).image.mode == "RGB"
    assert distance(read_image(saved(picture.convert("CMYK"), "TIFF")).image, picture) < 3
    assert read_image(saved(picture.convert("1"), "PNG")).image.mode == "RGB"
    clear = picture.convert("P")
    assert "white" in read_image(saved(clear, "PNG", transparency=clear.getpixel((0, 0)))).notes[0]


def test_sixteen_bits():
    ramp = np.linspace(0, 65535, 64 * 48).reshape(48, 64)
    read = read_image(saved(Image.fromarray(ramp.astype(np.uint16)), "PNG"))
    assert "8" in read.notes[0]
    assert distance(read.image, np.repeat((ramp / 257)[..., None], 3, -1)) < 1
    assert distance(read_image(Image.fromarray((ramp / 65535).astype(np.float32))).image, read.image) < 1
    assert distance(read_image(Image.fromarray(ramp.astype(np.int32))).image, read.image) < 1


def test_colour_profiles(picture):
    own = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert distance(read_image(saved(picture, "PNG", icc_profile=own)).image, picture) < 2
    # A profile with red and blue exchanged: red light is stored as (0, 0, 255).
    swapped = own.replace(b"rXYZ", b"????").replace(b"bXYZ", b"rXYZ").replace(b"????", b"bXYZ")
    turned = read_image(saved(picture, "PNG", icc_profile=swapped)).image
    assert distance(turned, Image.merge("RGB", picture.split()[::-1])) < 3
    broken = read_image(saved(picture, "PNG", icc_profile=b"no profile"))
    assert "colour profile" in broken.notes[0]
    assert distance(broken.image, picture) == 0
    alpha = picture.convert("RGBA")
    alpha.putalpha(200)
    assert "white" in read_image(saved(alpha, "PNG", icc_profile=own)).notes[0]
    assert distance(read_image(saved(picture.convert("P"), "PNG", icc_profile=own)).image, picture) < 25


def test_animated_says_that_one_frame_was_read(picture):
    frames = [picture, Image.new("RGB", picture.size, "red")]
    for format in ("GIF", "WEBP", "PNG"):
        read = read_image(saved(frames[0], format, save_all=True, append_images=frames[1:]))
        assert "first of 2 frames" in read.notes[0]
        assert distance(read.image, picture) < 10


def test_one_pixel_and_odd_shapes():
    assert read_image(Image.new("RGB", (1, 1), "red")).resized((64, 64)).pixels().shape == (3, 64, 64)
    assert read_image(np.zeros((1, 3000, 3), np.uint8)).resized((32, 64)).pixels().shape == (3, 32, 64)


def test_pixels_run_from_minus_one_to_one(picture):
    pixels = read_image(picture).pixels()
    assert pixels.dtype == np.float32
    assert pixels.shape == (3, 48, 64)
    assert pixels.min() >= -1
    assert pixels.max() <= 1
    np.testing.assert_allclose((pixels.transpose(1, 2, 0) + 1) * 127.5, np.asarray(picture), atol=1e-3)


def test_bombs_are_refused_before_they_are_decoded(picture):
    huge = saved(Image.new("1", (20000, 20000)), "PNG")  # 50 kB that would become 1.2 GB
    with pytest.raises(ImageError, match="limit of 100,000,000"):
        read_image(huge)
    with pytest.raises(ImageError, match="48 is more than the limit of 100 pixels"):
        read_image(picture, max_pixels=100)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP"])
def test_truncated_files(picture, format):
    whole = saved(picture, format)
    with pytest.raises(ImageError, match="damaged or truncated|not an image"):
        read_image(whole[: len(whole) // 2])


def test_formats_that_run_programs_are_not_opened():
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage"
    with pytest.raises(ImageError, match="not an image, or of a format"):
        read_image(postscript)


def test_a_truncated_image_that_was_opened_lazily(picture):
    whole = saved(picture, "PNG")
    with (
        Image.open(io.BytesIO(whole[: len(whole) // 2])) as opened,
        pytest.raises(ImageError, match="truncated"),
    ):
        read_image(opened)


def test_what_is_not_an_image(tmp_path):
    (tmp_path / "text.png").write_text("hello")
    for value, says in [
        (tmp_path / "text.png", "text.png: not an image"),
        (tmp_path / "nothing.png", "no such file"),
        (tmp_path, "is a folder"),
        (b"", "not an image"),
        (42, "cannot read an image from int"),
        (np.zeros((2, 3, 64, 64)), "has shape"),
        (np.zeros((8, 8, 2), np.uint8), "has shape"),
        (np.zeros((0, 8, 3), np.uint8), "has shape"),
        (np.full((8, 8, 3), 7.0), r"lies in \[0, 1\]"),
        (np.full((8, 8, 3), np.nan), r"lies in \[0, 1\]"),
        (np.zeros((8, 8, 3), np.int64), "uint8, uint16 or float"),
        (torch.zeros(8, 8, 3), r"\(C, H, W\)"),
    ]:
        with pytest.raises(ImageError, match=says):
            read_image(value)


def test_damaged_bytes_never_crash(picture):
    rng = np.random.default_rng(0)
    for format in ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP", "AVIF", "JPEG2000", "PPM"):
        whole = np.frombuffer(saved(picture, format), np.uint8)
        for _ in range(60):
            damaged = whole.copy()
            damaged[rng.integers(0, len(damaged), 6)] = rng.integers(0, 256, 6)
            try:
                read_image(damaged.tobytes(), max_pixels=10**6)
            except ImageError as error:
                assert str(error)
