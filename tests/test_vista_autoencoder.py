"""The autoencoder: diffusers' interface, round trips, and independence of far pixels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene
from diffmark.vista.training.autoencoder import gradient_loss, reconstruction_psnr, scaling_factor


@pytest.fixture
def vae() -> PatchAutoencoder:
    torch.manual_seed(0)
    return PatchAutoencoder(block_out_channels=(4, 4, 8, 16), layers_per_block=1).eval()


def test_starts_as_a_mosaic(vae: PatchAutoencoder) -> None:
    x = torch.rand(2, 3, 32, 32) * 2 - 1
    y = vae(x).sample
    tiles = torch.nn.functional.avg_pool2d(x, 8)
    assert torch.allclose(y[..., ::8, ::8], tiles, atol=1e-5)


def test_shapes_and_outputs(vae: PatchAutoencoder) -> None:
    x = torch.rand(2, 3, 64, 48) * 2 - 1
    posterior = vae.encode(x).latent_dist
    assert posterior.mean.shape == (2, 4, 8, 6)
    assert vae.decode(posterior.mode()).sample.shape == x.shape
    assert torch.equal(vae.decode(posterior.mode(), return_dict=False)[0], vae(x).sample)
    assert 2 ** (len(vae.config.block_out_channels) - 1) == 8


def test_odd_sizes_are_refused(vae: PatchAutoencoder) -> None:
    with pytest.raises(ValueError, match="multiples of 8"):
        vae.encode(torch.zeros(1, 3, 30, 32))


def test_saved_and_loaded_is_the_same(vae: PatchAutoencoder, tmp_path: Path) -> None:
    vae.register_to_config(scaling_factor=0.7)
    vae.save_pretrained(tmp_path)
    again = PatchAutoencoder.from_pretrained(tmp_path)
    x = torch.rand(1, 3, 32, 32)
    assert again.config.scaling_factor == 0.7
    assert torch.equal(again.eval()(x).sample, vae(x).sample)


def test_slicing_changes_nothing(vae: PatchAutoencoder) -> None:
    x = torch.rand(3, 3, 32, 32)
    whole = vae(x).sample
    vae.enable_slicing()
    assert torch.allclose(vae(x).sample, whole, atol=1e-6)
    vae.disable_slicing()
    assert not vae.use_slicing


def test_a_pixel_reaches_only_its_neighbourhood(vae: PatchAutoencoder) -> None:
    for parameter in vae.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    x = torch.rand(1, 3, 256, 64)
    changed = x.clone()
    changed[..., :8, :8] = 1
    difference = (vae.encode(x).latent_dist.mode() - vae.encode(changed).latent_dist.mode()).abs()
    assert difference[..., :1, :1].max() > 0
    assert difference[..., 16:, :].max() == 0


def test_scaling_factor_gives_unit_deviation(vae: PatchAutoencoder) -> None:
    pictures = np.stack([paint(random_scene(HELD_OUT + i), 64) for i in range(20)])
    factor = scaling_factor(vae, pictures)
    x = torch.from_numpy(pictures).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        latents = vae.encode(x).latent_dist.mode() * factor
    assert float(latents.std()) == pytest.approx(1, abs=1e-3)


def test_losses_see_what_they_should(vae: PatchAutoencoder) -> None:
    x = torch.rand(1, 3, 16, 16)
    assert gradient_loss(x + 0.5, x) == pytest.approx(0, abs=1e-6)
    assert gradient_loss(x.flip(3), x) > 0.1
    flat = paint(random_scene(HELD_OUT), 64)
    flat[:] = 128
    assert reconstruction_psnr(vae, [flat])[0] > 60
