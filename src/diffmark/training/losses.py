"""The paper's losses, one function an equation. Functions of tensors: they know no networks and no schedule.

Secrets are {0,1} of shape (B, L), logits (B, L, 2), delta and latents (B, C, h, w), pixels (B, 3, H, W).
Every loss is a mean over the batch and returns a scalar.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

REGION = 32  # side in pixels of the regions of L_prvl
LOW_RADIUS = 10  # of the disk around DC that L_freq calls low


def cross_entropy(logits: Tensor, secrets: Tensor) -> Tensor:
    """Eq. 11, L_CE: cross-entropy a bit in nats. L_lcm, L_ddim and L_regen are this on different latents."""
    return F.cross_entropy(logits.float().flatten(0, 1), secrets.long().flatten())


def magnitude(delta: Tensor, target: float) -> Tensor:
    """Eq. 9, L_mag: squared distance of each delta's standard deviation from the annealed target."""
    return (deviation(delta) - target).square().mean()


def kl_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Eq. 10, L_KL: the encoder's Gaussian, before alpha, against the standard normal."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()


def orthogonality(delta: Tensor, squared: bool = False) -> Tensor:
    """Eq. 12, L_orth: mean cosine between the deltas of different images; squared it cannot go negative."""
    cosine = cosines(delta)
    return (cosine.square() if squared else cosine).mean()


def latent_fidelity(marked: Tensor, clean: Tensor) -> Tensor:
    """Eq. 16 and 21, L_lafid: mean squared distance of marked latents from clean ones of the same noise."""
    return F.mse_loss(marked, clean.detach())


def peak_region(marked: Tensor, clean: Tensor, side: int = REGION) -> Tensor:
    """Eq. 22, L_prvl: the largest mean absolute difference of any side x side region, pixels in [-1, 1]."""
    if min(marked.shape[-2:]) < side:
        raise ValueError(
            f"L_prvl looks at regions of {side}x{side} pixels, the images are only "
            f"{marked.shape[-2]}x{marked.shape[-1]}: use a smaller region"
        )
    difference = (marked - clean.detach()).abs().mean(dim=1, keepdim=True)  # (B, 1, H, W)
    # The uniform kernel is separable: 2 * side additions a pixel instead of side^2.
    means = F.avg_pool2d(F.avg_pool2d(difference, (side, 1), stride=1), (1, side), stride=1)
    return means.flatten(1).amax(dim=1).mean()


def low_frequency(delta: Tensor, radius: float = LOW_RADIUS) -> Tensor:
    """Eq. 23, L_freq: mean power inside the disk around DC over the mean power of all frequencies."""
    power = torch.fft.fft2(delta.float()).abs().square()  # (B, C, h, w), DC at the corner
    rows = torch.fft.fftfreq(delta.shape[-2], 1 / delta.shape[-2], device=delta.device)
    columns = torch.fft.fftfreq(delta.shape[-1], 1 / delta.shape[-1], device=delta.device)
    low = torch.hypot(rows[:, None], columns[None, :]) <= radius  # (h, w)
    return (power[..., low].mean(dim=(1, 2)) / (power.mean(dim=(1, 2, 3)) + 1e-8)).mean()


def negative_entropy(logits: Tensor) -> Tensor:
    """Eq. 17, L_neg: minus the entropy a bit in nats, on latents that carry no mark."""
    log_p = F.log_softmax(logits.float(), dim=-1)
    return (log_p.exp() * log_p).sum(dim=-1).mean()


# --- what is logged, and what losses are made of -------------------------------------------------------------


def deviation(delta: Tensor) -> Tensor:
    """Standard deviation of each image's delta, (B, C, h, w) -> (B,)."""
    return delta.flatten(1).std(dim=1)


def cosines(delta: Tensor) -> Tensor:
    """Cosine between the deltas of every two different images, (B, C, h, w) -> (B * (B - 1),)."""
    batch = len(delta)
    if batch < 2:
        raise ValueError(f"the deltas of a batch are compared with each other: it needs two, got {batch}")
    unit = F.normalize(delta.flatten(1).float(), dim=1)
    different = ~torch.eye(batch, dtype=torch.bool, device=delta.device)
    return (unit @ unit.T)[different]


@torch.no_grad()
def bit_accuracy(logits: Tensor, secrets: Tensor) -> Tensor:
    """Share of images in which each bit was read right, (B, L, 2) and (B, L) -> (L,)."""
    return (logits.argmax(dim=-1) == secrets).float().mean(dim=0)
