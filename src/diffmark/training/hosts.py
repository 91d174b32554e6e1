"""Latents that a codec for a real latent space is trained on: mosaics of encoded photographs.

A host is put together of four drawn photographs, rolled around its edges, mirrored and transposed. A decoder whose
last layer is tied to positions then cannot learn the few photographs by heart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffmark.training.chance import Chance


def draw_hosts(latents: Tensor, chance: Chance, count: int, roll: bool = True) -> Tensor:
    """`count` mosaics of latents (N, C, h, w), (count, C, 2 h, 2 w) in float32."""
    tiles = latents[chance.indices(4 * count, len(latents))].float()
    a, b, c, d = tiles.chunk(4)
    hosts = torch.cat([torch.cat([a, b], dim=3), torch.cat([c, d], dim=3)], dim=2)
    if not roll:
        return hosts
    height, width = hosts.shape[-2:]
    rows, columns = chance.indices(count, height).tolist(), chance.indices(count, width).tolist()
    rolled = [host.roll(by, dims=(1, 2)) for host, *by in zip(hosts, rows, columns, strict=True)]
    hosts = torch.stack(rolled)
    turn = int(chance.indices(1, 8))
    dims = [dim for bit, dim in ((1, 2), (2, 3)) if turn & bit]
    hosts = hosts.flip(dims) if dims else hosts
    return hosts.transpose(2, 3) if turn & 4 and height == width else hosts
