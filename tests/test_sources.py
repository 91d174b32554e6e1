from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from diffmark.latent.vae import encode
from diffmark.training.sources import latents_of, open_pictures


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for index in range(6):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(tmp_path / f"{index}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    return tmp_path


def test_a_folder_is_split_and_resized(folder):
    split = open_pictures(str(folder), (64, 64), 3, 2)
    assert (split.train.count, split.held_out.count) == (3, 2)
    pixels = split.train.pixels(0)
    assert pixels.shape == (3, 64, 64)
    assert pixels.min() >= -1
    assert not np.array_equal(pixels, split.held_out.pixels(0))


def test_latents_are_encoded_once(folder, rig, tmp_path):
    autoencoder = rig("sd").pipe.vae
    pictures = open_pictures(str(folder), (64, 64), 4, 2).train
    cache = tmp_path / "cache"
    latents = latents_of(autoencoder, pictures, cache, batch=3)
    expected = encode(autoencoder, torch.from_numpy(np.stack([pictures.pixels(i) for i in range(4)])))
    torch.testing.assert_close(latents.float(), expected, atol=1e-2, rtol=1e-2)
    (file,) = cache.iterdir()
    np.save(file, np.zeros((4, 4, 8, 8), np.float16))
    assert latents_of(autoencoder, pictures, cache).abs().sum() == 0  # read, not encoded again
    other = rig("sdxl").pipe.vae
    assert latents_of(other, pictures, cache).abs().sum() > 0  # another autoencoder has its own


def test_what_is_no_folder_of_images_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder; pictures are a folder of images"):
        open_pictures(str(tmp_path / "none"), (64, 64), 3, 2)
    with pytest.raises(FileNotFoundError, match="has 0 images"):
        open_pictures(str(tmp_path), (64, 64), 3, 2)
