"""The paper's networks: `DeltaEncoder` writes a secret as a perturbation of latents, `SecretDecoder` reads it back.

Appendix on architectures: 295,265 and 2,339,704 parameters at 64 bits and 4 x 64 x 64 latents. The network that
reads initial noise is in `diffmark.latent.noise`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffmark.latent.config import CodecConfig


class DeltaEncoder(nn.Module):
    """E_phi: secret (B, L) -> delta (B, C, h, w), of exactly this standard deviation if one is given."""

    def __init__(self, config: CodecConfig, deviation: float | None = None) -> None:
        super().__init__()
        self.config, self.deviation = config, deviation
        self.embedding = nn.Embedding(2 * config.length, config.embed_dim)  # W
        self.basis = nn.Parameter(torch.randn(config.embed_dim, config.height, config.width))  # B
        layers: list[nn.Module] = []
        previous = config.embed_dim
        for index, width in enumerate(config.encoder_widths):
            layers += [nn.Conv2d(previous, width, 3, padding=1), nn.SiLU()]
            if index < len(config.encoder_widths) - 1:  # none after the last: it would fix delta's scale
                layers.append(nn.BatchNorm2d(width))
            previous = width
        self.refine = nn.Sequential(*layers)
        self.mean = nn.Conv2d(previous, config.channels, 3, padding=1)  # mu
        self.log_variance = nn.Conv2d(previous, config.channels, 3, padding=1)  # log sigma^2
        self.alpha = nn.Parameter(torch.tensor(0.1))

    def distribution(self, secrets: Tensor) -> tuple[Tensor, Tensor]:
        """(mu, log sigma^2) before alpha, each (B, C, h, w)."""
        rows = 2 * torch.arange(self.config.length, device=secrets.device) + secrets.long()  # 2i + s_i
        x = self.embedding(rows).sum(dim=1)  # (B, L, d_e) -> (B, d_e)
        features = self.refine(x[:, :, None, None] * self.basis)  # (B, d_e, h, w) -> (B, 8, h, w)
        return self.mean(features), self.log_variance(features)

    def forward(self, secrets: Tensor) -> Tensor:
        """delta = alpha * (mu + sigma * eps) in training, alpha * mu in inference."""
        mean, log_variance = self.distribution(secrets)
        if self.training:
            mean = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        delta = self.alpha * mean
        return delta if self.deviation is None else rescale(delta, self.deviation)


class SecretDecoder(nn.Module):
    """D_psi: latents (B, C, h, w) -> logits (B, L, 2)."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        previous = config.decoder_widths[0] // 2
        layers: list[nn.Module] = [nn.Conv2d(config.channels, previous, 3, padding=1), nn.SiLU()]
        for index, width in enumerate(config.decoder_widths):
            layers += [nn.Conv2d(previous, width, 4, stride=2, padding=1), nn.SiLU()]
            if index < len(config.decoder_widths) - 1:
                layers.append(nn.BatchNorm2d(width))
            previous = width
        self.features = nn.Sequential(*layers)
        shrink = 2 ** len(config.decoder_widths)
        size = previous * (config.height // shrink) * (config.width // shrink)
        head: list[nn.Module] = []
        for hidden in config.decoder_hidden:
            head += [nn.Linear(size, hidden), nn.SiLU()]
            size = hidden
        self.head = nn.Sequential(nn.Flatten(), *head, nn.Linear(size, 2 * config.length))
        if config.linear_readout:
            self.filters = nn.Linear(
                config.channels * config.height * config.width, config.length, bias=False
            )
            nn.init.zeros_(self.filters.weight)

    def forward(self, latents: Tensor) -> Tensor:
        if not self.config.linear_readout:
            return self.head(self.features(latents)).view(-1, self.config.length, 2)
        white = whiten(latents)
        logits = self.head(self.features(white)).view(-1, self.config.length, 2)
        linear = self.filters(white.flatten(1)) / 2
        return logits + torch.stack([-linear, linear], dim=-1)


def rescale(delta: Tensor, deviation: float) -> Tensor:
    """Each image's delta with exactly this standard deviation, so that strength is one number."""
    return delta * (deviation / delta.std(dim=(1, 2, 3), keepdim=True).clamp_min(1e-12))


def whiten(latents: Tensor, floor: float = 0.03) -> Tensor:
    """Latents (B, C, h, w) less their mean around each place, over their deviation around it.

    A picture's own latents are the noise that a mark is read in: strong at low frequencies, and in rough places.
    `floor` is about the error of a round trip through an autoencoder and 8 bits.
    """
    detail = latents - local_mean(latents, 3)
    return detail / (local_mean(detail.square(), 5) + floor**2).sqrt()


def local_mean(values: Tensor, side: int) -> Tensor:
    """The mean of (B, C, h, w) over side x side around each place; edges are mirrored."""
    return F.avg_pool2d(F.pad(values, (side // 2,) * 4, mode="reflect"), side, stride=1)
