"""What the sampling-based methods share: a start z_T of their own, real DDIM inversion, and Fourier rings."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import stats
from torch import Tensor

from diffmark.baselines.base import Method
from diffmark.images import read_image
from diffmark.latent.bridge import Trajectory, ddim_inversion, denoiser_of, sampler_trajectory
from diffmark.latent.vae import decode, encode
from diffmark.mark.generation import ImageSpec, Sampling
from diffmark.provenance import weights_digest


class InversionMethod(Method):
    """Marks z_T (or a later state) and reads it back by running DDIM backwards with the empty prompt."""

    costly = True
    time = 1.0  # diffusion time of the state that is marked

    def __init__(
        self, pipe: Any, sampling: Sampling | None = None, inversion_steps: int | None = None
    ) -> None:
        """Inversion takes as many steps as sampling, as in the authors' code, unless it is given another number."""
        self.pipe, self.sampling = pipe, sampling or Sampling()
        self.trajectory = sampler_trajectory(pipe.scheduler, inversion_steps or self.sampling.steps)
        self.side = pipe.unet.config.sample_size
        self.channels = pipe.vae.config.latent_channels

    def start(self, spec: ImageSpec) -> Tensor:
        """The z_T that the pipeline itself would draw for this seed, (1, C, h, w)."""
        generator = torch.Generator("cpu").manual_seed(spec.seed)
        return torch.randn(1, self.channels, self.side, self.side, generator=generator)

    def paint(self, specs: Sequence[ImageSpec], latents: Tensor, **more: Any) -> list[Image.Image]:
        """The pipeline's pictures from these z_T, (B, C, h, w)."""
        steps, guidance = self.sampling.steps, self.sampling.guidance
        settings = {"num_inference_steps": steps, "guidance_scale": guidance, "latents": latents}
        return self.pipe([spec.prompt for spec in specs], **settings, **more).images

    def decoded(self, z0: Tensor) -> list[Image.Image]:
        """Pictures of last latents, (B, C, h, w), as the pipeline makes them."""
        return self.pipe.image_processor.postprocess(decode(self.pipe.vae, z0), output_type="pil")

    @abstractmethod
    def imprint(self, latents: Tensor, spec: ImageSpec) -> Tensor:
        """Latents with the mark of a spec's secret, (B, C, h, w)."""

    def generate_all(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        """The marked pictures of some specs in one batch."""
        return self.paint(specs, torch.cat([self.imprint(self.start(spec), spec) for spec in specs]))

    def generate(self, spec: ImageSpec) -> Image.Image:
        return self.generate_all([spec])[0]

    def state(self, images: Sequence[Image.Image]) -> Tensor:
        return self.invert(images, self.time)

    def state_recipe(self) -> dict[str, Any]:
        digest = weights_digest(self.pipe.unet, self.pipe.vae)
        return {"inverted to": self.time, "steps": len(self.trajectory.timesteps), "model": digest}

    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        if not self.bits:
            raise TypeError(f"{self.name} tells presence only: use score")
        return self.read_state(self.state(images), np.zeros((len(images), self.bits), np.uint8))[0]

    def score(self, images: Sequence[Image.Image], secrets: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.read_state(self.state(images), secrets)[1]

    @torch.no_grad()
    def invert(self, images: Sequence[Image.Image], until: float = 1.0) -> Tensor:
        """Latents at diffusion time `until` that DDIM would take to these images, (B, C, h, w)."""
        size = (8 * self.side, 8 * self.side)
        pixels = np.stack([read_image(image).resized(size).pixels() for image in images])
        z0 = encode(self.pipe.vae, torch.from_numpy(pixels))
        empty = self.pipe.encode_prompt("", z0.device, 1, False)[0].expand(len(z0), -1, -1)
        denoise = denoiser_of(self.pipe.unet, self.pipe.scheduler, empty)
        return ddim_inversion(denoise, z0, parted(self.trajectory, until)[1])

    def parts(self) -> dict[str, tuple[Any, str]]:
        return {"vae encode": (self.pipe.vae, "encode"), "inversion": (self.pipe.unet, "forward")}

    def fingerprint(self) -> dict[str, Any]:
        run = {"sampling": [self.sampling.steps, self.sampling.guidance], "time": self.time}
        blank = torch.ones(1, self.channels, self.side, self.side)
        mark = self.imprint(blank, ImageSpec("", np.ones(self.bits, np.uint8), 0))
        return {"method": self.name, **run, "mark": hashlib.sha256(mark.numpy().tobytes()).hexdigest()}

    def reader(self) -> dict[str, Any]:
        return self.fingerprint() | self.state_recipe()


class RingMethod(InversionMethod):
    """Presence of one ring pattern in one channel's spectrum: its authors' ranking, and an exact test beside it.

    The score is minus the mean L1 distance of spectrum and key in the disc, as in their code. The one margin,
    (B, 1), is minus the log10 of a p-value. The p-value is not theirs: of each two opposite frequencies, which in
    real latents say the same, one is tested, against what real latents keep of a complex key. Testing both, as the
    authors do, gives p-values that are too small.
    """

    bits, channel = 0, -1
    mask: Tensor  # frequencies that carry the pattern, (h, w)
    pattern: Tensor  # complex, (h, w)

    @abstractmethod
    def transform(self, latents: Tensor) -> Tensor:
        """The spectrum that the pattern is in, of one channel of latents, (B, h, w)."""

    def distances(self, state: Tensor) -> Tensor:
        """Mean absolute difference of spectrum and key in the disc, (B,)."""
        spectra = self.transform(state[:, self.channel])
        return (spectra[:, self.mask] - self.pattern[self.mask]).abs().mean(dim=1)

    def read_state(
        self, state: Tensor, secrets: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        tested, spectra = self.mask & one_of_each_pair(self.side), self.transform(state[:, self.channel])
        wanted = hermitian(self.pattern)[tested]
        p_values = [pattern_p_value(found, wanted) for found in spectra[:, tested]]
        evidence = -np.log10(np.maximum(p_values, 1e-300))
        return evidence[:, None], -self.distances(state).double().numpy()

    def p_values(
        self, margins: NDArray[np.float64], scores: NDArray[np.float64], secrets: NDArray[np.uint8]
    ) -> NDArray[np.float64]:
        return 10.0 ** -margins[:, 0]


def key_noise(side: int, seed: int) -> Tensor:
    """The noise that a key's pattern is drawn from, (side, side)."""
    return torch.randn(side, side, generator=torch.Generator().manual_seed(seed))


def parted(trajectory: Trajectory, until: float) -> tuple[Trajectory, Trajectory]:
    """The part of a trajectory from noise to diffusion time `until`, and the part from there to the image."""
    first = next(k for k, time in enumerate(trajectory.times) if time <= until)
    timesteps, abar, train_steps = trajectory.timesteps, trajectory.abar, trajectory.train_steps
    return (
        Trajectory(timesteps[:first], abar[: first + 1], train_steps),
        Trajectory(timesteps[first:], abar[first:], train_steps),
    )


def spectrum(z: Tensor) -> Tensor:
    """Centred 2D Fourier transform of each channel."""
    return torch.fft.fftshift(torch.fft.fft2(z), dim=(-2, -1))


def from_spectrum(spectrum: Tensor) -> Tensor:
    """Back to latents; the imaginary part is dropped, as latents are real."""
    return torch.fft.ifft2(torch.fft.ifftshift(spectrum, dim=(-2, -1))).real


def mirrored(spectrum: Tensor) -> Tensor:
    """At each frequency the value at its opposite, centred or not, (..., h, w)."""
    return spectrum.flip((-2, -1)).roll((1, 1), (-2, -1))


def hermitian(spectrum: Tensor) -> Tensor:
    """What is left of a spectrum when latents, being real, drop the imaginary part, (..., h, w)."""
    return (spectrum + mirrored(spectrum).conj()) / 2


def one_of_each_pair(side: int) -> Tensor:
    """Frequencies of which none is the opposite of another or of itself: a real signal's are independent there."""
    place = torch.arange(side**2).view(side, side)
    return place < mirrored(place)


def radii(side: int) -> Tensor:
    """Distance of each frequency from the centre, (side, side)."""
    line = torch.arange(side) - side // 2
    return (line[:, None] ** 2 + line[None] ** 2).sqrt()


def ring_pattern(drawn: Tensor, radius: int) -> tuple[Tensor, Tensor]:
    """Disc of frequencies around the centre, and rings on it that each take one value of the drawn spectrum.

    Values come from the first row, as in Tree-Ring's code; the innermost ring, of radius 1, covers the centre.
    """
    distance, pattern = radii(drawn.shape[-1]), torch.zeros_like(drawn)
    for ring in range(radius, 0, -1):  # from outside in
        pattern[distance <= ring] = drawn[0, ring]
    return distance <= radius, pattern


def pattern_p_value(observed: Tensor, pattern: Tensor) -> float:
    """P(a Gaussian spectrum comes this near to the pattern): non-central chi-square, Tree-Ring's test.

    Both complex, (n,). Small for a marked image.
    """
    real, wanted = (torch.view_as_real(x).flatten().double() for x in (observed, pattern))
    variance = float(real.var(correction=0))
    statistic = float(((real - wanted) ** 2).sum()) / variance
    centrality = float((wanted**2).sum()) / variance
    return float(stats.ncx2.cdf(statistic, len(real), centrality))
