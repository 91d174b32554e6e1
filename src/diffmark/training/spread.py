"""How a codec of a family starts: as a spread-spectrum code, each bit turning the sign of a pattern of its own.

With matched filters the start is solved for the channel. Whitened photographs, delta's way through pixels and its
cost there are nearly the same at every place, so each is a small matrix a frequency. A pattern is a random map
under a 3x3 kernel, and the kernels are those that a linear filter reads best among all that cost as much in pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffmark.codec import Codec, whiten
from diffmark.training.chance import Chance
from diffmark.training.channel import Channel

STRAIGHT = 4.0  # bias at which SiLU is almost a straight line, for values of deviation 1
GOOD = 0.7  # kernels are used that are worth so much of the best one


@torch.no_grad()
def start_spread(codec: Codec) -> None:
    """Each bit turns the sign of random patterns, almost linearly.

    From random weights the networks need thousands of steps to find such a code.
    """
    encoder = codec.encoder
    _one_map_a_bit(codec)
    for layer in encoder.refine:
        if isinstance(layer, nn.Conv2d):
            layer.weight.mul_(1 / math.sqrt(layer.weight[0].numel()) / layer.weight.std())
            if layer.bias is not None:
                layer.bias.fill_(2.0)
    _centre(codec)


@torch.no_grad()
def start_matched(codec: Codec, hosts: Tensor, channel: Channel, psnr: float) -> float:
    """Patterns and filters solved for the channel; the decoder's other layers say nothing at first.

    Hosts (B, C, h, w) are latents of photographs, `psnr` the strength that the logits are scaled for. Returns how
    many deviations a bit stands above the noise at it.
    """
    config, encoder, decoder = codec.config, codec.encoder, codec.decoder
    if len(config.encoder_widths) != 1 or config.encoder_widths[0] < config.channels:
        raise ValueError(
            f"a matched start needs one encoder width of {config.channels} channels or more, "
            f"got {config.encoder_widths}"
        )
    _one_map_a_bit(codec)
    noise, seen, cost = spectra(hosts, channel)
    filtered = torch.linalg.solve(noise, seen)  # what a filter multiplies delta's spectrum by
    kernels = best_kernels(seen.mH @ filtered, cost, config.length)
    encoder.basis[: config.length] = encoder.basis[: config.length].sign()
    patterns = F.conv2d(
        encoder.basis[: config.length, None].transpose(0, 1),
        kernels.flatten(0, 1)[:, None],
        padding=1,
        groups=config.length,
    ).view(config.length, config.channels, config.height, config.width)
    _write_kernels(codec, kernels / patterns.sum(dim=0).std())
    spectrum = torch.fft.fft2(patterns)
    filters = torch.fft.ifft2(torch.einsum("hwcd,bdhw->bchw", filtered, spectrum)).real.flatten(1)
    arriving = torch.fft.ifft2(torch.einsum("hwcd,bdhw->bchw", seen, spectrum)).real.flatten(1)
    crosstalk = filters @ arriving.T
    filters = torch.linalg.solve(crosstalk, filters)  # no bit is heard in another's filter
    chance = Chance(0, 0)
    secrets = chance.secrets(len(hosts), config.length)
    delta = channel.scaled(encoder.distribution(secrets)[0], psnr)
    scores = whiten(hosts + channel.received(delta, chance)).flatten(1) @ filters.T
    signed = scores * (2 * secrets - 1)
    decoder.filters.weight.copy_(filters * (2 * signed.mean() / signed.var()))  # a log-likelihood ratio
    last = decoder.head[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return float(signed.mean() / signed.std())


def spectra(hosts: Tensor, channel: Channel) -> tuple[Tensor, Tensor, Tensor]:
    """Of every frequency (h, w) matrices across channels: whitened hosts, delta as whitening sees it, its cost."""
    size = hosts.shape[-2:]
    channels = hosts.shape[1]
    white = whiten(hosts)
    frequencies = torch.fft.fft2(white)
    noise = torch.einsum("bchw,bdhw->hwcd", frequencies, frequencies.conj()) / frequencies.numel() * channels
    noise = (noise + sum(noise.roll(by, (0, 1)) for by in ((0, 1), (1, 0), (0, -1), (-1, 0)))) / 5
    strength = torch.diagonal(noise, dim1=-2, dim2=-1).real.mean()
    noise = noise + 1e-3 * strength * torch.eye(channels)
    around = torch.full((1, 1, 3, 3), -1 / 9)
    around[..., 1, 1] += 1
    detail = F.conv2d(hosts.flatten(0, 1)[:, None], around).view(*hosts.shape[:2], size[0] - 2, size[1] - 2)
    gain = white.std(dim=(0, 2, 3)) / detail.std(dim=(0, 2, 3))
    seen = gain[:, None] * _response(around, size) * _response(channel.transfer, size)
    pixels = _response(channel.cost, size)
    cost = pixels.mH @ pixels / pixels.shape[-2] + channel.cost_rest * torch.eye(channels)
    return noise, seen, cost


def best_kernels(worth: Tensor, cost: Tensor, count: int) -> Tensor:
    """`count` kernels (count, C, 3, 3): the best one, and those nearly as good, in turn."""
    height, width, channels, _ = worth.shape
    shifts = torch.eye(9).view(9, 1, 3, 3)
    taps = _response(shifts, (height, width))[..., 0]  # (h, w, 9)

    def over_kernels(matrix: Tensor) -> Tensor:
        pairs = torch.einsum("hwi,hwcd,hwj->cidj", taps.conj(), matrix, taps).real
        return pairs.reshape(9 * channels, 9 * channels) / (height * width)

    root = torch.linalg.inv(torch.linalg.cholesky(over_kernels(cost)))
    values, vectors = torch.linalg.eigh(root @ over_kernels(worth) @ root.T)
    good = (root.T @ vectors[:, values >= GOOD * values[-1]]).T.flip(0)
    return good[torch.arange(count) % len(good)].view(count, channels, 3, 3)


def _response(kernels: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Of a convolution (O, C, 3, 3) at every frequency, (h, w, O, C)."""
    height, width = size
    placed = torch.zeros(*kernels.shape[:2], height, width)
    rows, columns = (1 - torch.arange(3)) % height, (1 - torch.arange(3)) % width
    placed[..., rows[:, None], columns] = kernels
    return torch.fft.fft2(placed).permute(2, 3, 0, 1)


def _one_map_a_bit(codec: Codec) -> None:
    encoder, config = codec.encoder, codec.config
    if config.embed_dim < config.length:
        raise ValueError(
            f"a spread start needs embed_dim >= length, got {config.embed_dim} < {config.length}"
        )
    encoder.embedding.weight.zero_()
    bits = torch.arange(config.length)
    encoder.embedding.weight[2 * bits, bits] = -1
    encoder.embedding.weight[2 * bits + 1, bits] = 1


def _write_kernels(codec: Codec, kernels: Tensor) -> None:
    """The encoder as the sum of all bits' maps, each under its kernels (L, C, 3, 3)."""
    encoder, channels = codec.encoder, codec.config.channels
    first, last = encoder.refine[0], encoder.mean
    assert isinstance(first, nn.Conv2d)
    assert first.bias is not None
    nn.init.zeros_(first.weight)
    first.weight[:channels, : len(kernels)] = kernels.transpose(0, 1)
    nn.init.constant_(first.bias, STRAIGHT)
    nn.init.zeros_(last.weight)
    last.weight[range(channels), range(channels), 1, 1] = 1.0
    _centre(codec)


def _centre(codec: Codec) -> None:
    """Take from delta what all secrets have in common."""
    encoder = codec.encoder
    mean, _ = encoder.distribution(Chance(0, 0).secrets(16, codec.config.length))
    assert encoder.mean.bias is not None
    encoder.mean.bias.sub_(mean.mean(dim=(0, 2, 3)))
