"""Marking an image that already exists: the decoded difference D(z + delta) - D(z) is added to it.

The difference is made at the codec's native size, at which the detector looks too, and resampled to the image's.
The image keeps its own detail, whatever the autoencoder would have lost of it, and its size costs nothing. A codec
that is fitted gives each bit as much of delta as this image asks for (diffmark.fitting).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from diffmark.codec import Codec
from diffmark.fitting import fitted_weights
from diffmark.images import ImageLike, Picture, read_image
from diffmark.latent_marks import look
from diffmark.secret import Bits, SecretLike, as_secrets
from diffmark.vae import check_family, decode, encode, own_vae, upcast


@torch.no_grad()
def embed(
    image: ImageLike, codec: Codec, vae: nn.Module, secret: SecretLike, strength: float | None = None
) -> Image.Image:
    """An upright RGB copy of the image that carries the secret; strength 0 gives the pixels as they were.

    By default the strength is the one that suits codec and autoencoder.
    """
    check_family(codec.config, vae)
    strength = suited_strength(codec, vae) if strength is None else strength
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength must be a finite number of at least 0, got {strength}")
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
    plain = decode(vae, z)

    def difference_of(delta: Tensor) -> Tensor:
        return (decode(vae, z + strength * delta.to(z)) - plain).float()

    if not codec.config.fitted:
        return difference_of(codec.delta(secrets)).cpu()
    own = own_vae(codec, vae, device)
    readers = [vae] if own is None else [vae, own]

    def read(delta: Tensor) -> Tensor:
        return look(codec, readers, small + difference_of(delta)).mean(dim=0)

    weights = fitted_weights(codec, secrets, look(codec, readers, small).mean(dim=0), read)
    return difference_of(codec.delta(secrets, weights=weights)).cpu()


def suited_strength(codec: Codec, vae: nn.Module) -> float:
    """`embed_strength` with our autoencoder of the codec's family, which it was chosen for, and 1 with any other.

    Other autoencoders answer delta more strongly. A codec without a family has no other.
    """
    config: Any = vae.config
    ours = getattr(config, "family", None) == codec.config.family
    return codec.config.embed_strength if ours else 1.0
