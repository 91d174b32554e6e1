"""The autoencoder: diffusers' interface, round trips, and independence of far pixels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene
from diffmark.vista.training.autoencoder import gradient_loss, reconstruction_psnr, scaling_factor
from diffmark.vista.training.decoder import contrast_loss, grid_loss, with_refinement


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


def test_an_untrained_refinement_changes_nothing(vae: PatchAutoencoder, tmp_path: Path) -> None:
    refined = with_refinement(vae, channels=4, layers=1).eval()
    x = torch.rand(2, 3, 32, 48) * 2 - 1
    assert torch.equal(refined(x).sample, vae(x).sample)
    refined.save_pretrained(tmp_path)
    again = PatchAutoencoder.from_pretrained(tmp_path).eval()
    assert again.config.refinement_channels == 4
    assert torch.equal(again(x).sample, vae(x).sample)


def test_a_refinement_can_paint_across_tiles(vae: PatchAutoencoder) -> None:
    """A step between two tiles becomes a slope, which no tile could paint alone."""
    refined = with_refinement(vae, channels=8, layers=1)
    x = torch.zeros(1, 3, 32, 32)
    x[..., 16:] = 1
    slope = torch.linspace(0, 1, 32).expand(1, 3, 32, 32)
    with torch.no_grad():
        z = refined.encode(x).latent_dist.mode()
    optimizer = torch.optim.Adam(refined.refinement.parameters(), 1e-2)  # type: ignore[union-attr]
    for _ in range(60):
        loss = (refined.decode(z).sample - slope).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    steps = refined.decode(z).sample.detach().diff(dim=-1).abs().mean((0, 1, 2))
    assert float(steps[15]) < 0.2  # it was 1


def test_a_refinement_wants_the_decoder_that_it_was_made_for(vae: PatchAutoencoder) -> None:
    refined = with_refinement(vae, channels=4, layers=1)
    with pytest.raises(ValueError, match="another decoder"):
        with_refinement(refined, channels=0, layers=1)


def test_contrast_is_missed_in_soft_pictures() -> None:
    x = torch.rand(1, 3, 32, 32)
    soft = torch.nn.functional.avg_pool2d(x, 3, stride=1, padding=1)
    assert contrast_loss(x, x) == 0
    assert contrast_loss(x.flip(3), x) < 0.3 * contrast_loss(soft, x)


def test_tiles_are_missed_on_their_grid() -> None:
    tiles = torch.rand(1, 3, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
    flat = torch.zeros_like(tiles)
    assert grid_loss(tiles, flat) > 0.1
    assert grid_loss(tiles.roll((4, 4), (2, 3)), flat) == 0
