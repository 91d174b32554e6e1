"""Marking an image that already exists: the decoded difference D(z + delta) - D(z) is added to it.

The difference is made at the codec's native size, at which the detector looks too, and resampled to the image's.
The image keeps its own detail, whatever the autoencoder would have lost of it, and its size costs nothing.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from diffmark.images import ImageLike, Picture, read_image
from diffmark.latent.codec import Codec
from diffmark.latent.vae import check_family, decode, encode, upcast
from diffmark.mark.latents import check_strength, mark_latents
from diffmark.secret import Bits, SecretLike, as_secrets


@torch.no_grad()
def embed(
    image: ImageLike, codec: Codec, vae: nn.Module, secret: SecretLike, strength: float = 1.0
) -> Image.Image:
    """An upright RGB copy of the image that carries the secret; strength 0 gives the pixels as they were."""
    check_family(codec.config, vae)
    check_strength(strength)
    secrets = as_secrets(secret, codec.config.length)
    if len(secrets) != 1:
        raise ValueError(f"an image carries one secret, got {len(secrets)}")
    picture = read_image(image)
    if strength == 0:
        return picture.image
    with upcast(vae):
        difference = _difference(picture, codec, vae, secrets, strength)
    if not difference.isfinite().all():
        raise ValueError("the autoencoder gave values that are not finite: give it float32 weights")
    height, width = picture.image.height, picture.image.width
    if difference.shape[-2:] != (height, width):
        difference = F.interpolate(difference, (height, width), mode="bicubic", antialias=True)
    pixels = np.asarray(picture.image, np.float32) + 127.5 * difference[0].permute(1, 2, 0).numpy()
    return Image.fromarray(np.rint(pixels).clip(0, 255).astype(np.uint8))


def _difference(picture: Picture, codec: Codec, vae: nn.Module, secrets: Bits, strength: float) -> Tensor:
    """D(z + delta) - D(z) at the native size, (1, 3, H, W)."""
    device = next(vae.parameters()).device
    small = torch.from_numpy(picture.resized(codec.config.image_size).pixels())[None].to(device)
    z = encode(vae, small)
    return (decode(vae, mark_latents(codec, z, secrets, strength)) - decode(vae, z)).float().cpu()
