"""DiffMark itself, in any injection mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from diffmark.baselines.base import Method
from diffmark.detection.latent import Detector
from diffmark.latent.injection import Injection
from diffmark.latent.vae import decode as vae_decode
from diffmark.latent.vae import encode
from diffmark.mark.context import watermark
from diffmark.mark.generation import ImageSpec, Sampling, generate
from diffmark.mark.latents import mark_latents
from diffmark.provenance import weights_digest
from diffmark.statistics import to_margins


class DiffMark(Method):
    """A codec on a pipeline; the name tells the injection mode where it is not the codec's own."""

    compared = False

    def __init__(
        self,
        pipe: Any,
        detector: Detector,
        sampling: Sampling | None = None,
        injection: Injection | None = None,
    ) -> None:
        self.pipe, self.detector = pipe, detector
        self.codec = detector.codec
        self.injection = injection or self.codec.injection
        self.sampling = replace(sampling or Sampling(), injection=self.injection)
        self.bits = self.codec.config.length
        self.name = "diffmark" if injection is None else f"diffmark-{injection.mode}"

    def generate(self, spec: ImageSpec) -> Image.Image:
        return generate(self.pipe, self.codec, spec, self.sampling, verify=None)

    def generate_all(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        secrets = np.stack([spec.secret for spec in specs])
        with watermark(
            self.pipe, self.codec, secrets, self.sampling.strength, self.injection, pixel=False, verify=None
        ):
            output = self.pipe(
                [spec.prompt for spec in specs],
                num_inference_steps=self.sampling.steps,
                guidance_scale=self.sampling.guidance,
                generator=[torch.Generator("cpu").manual_seed(spec.seed) for spec in specs],
            )
        return output.images

    @property
    def finishes(self) -> bool:
        return self.injection.mode == "final"

    @torch.no_grad()
    def finish(self, z0: Tensor, secrets: NDArray[np.uint8]) -> list[Image.Image]:
        """With injection `final` the mark is added to z0 alone."""
        dose = self.sampling.strength * self.injection.dose
        z0, vae = z0.to(self.pipe.device), self.pipe.vae
        pixels = vae_decode(vae, mark_latents(self.codec, z0, secrets, dose))
        return self.pipe.image_processor.postprocess(pixels, output_type="pil")

    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        return np.stack([found.margins for found in self.detector.detect_many(images)]).astype(np.float64)

    def margins_of(self, pixels: Tensor) -> Tensor:
        return to_margins(self.codec.decoder(encode(self.detector.vae, pixels)))

    def parts(self) -> dict[str, tuple[Any, str]]:
        return {"vae encode": (self.detector.vae, "encode"), "decode": (self.codec, "decode")}

    @cached_property
    def digest(self) -> str:
        """Of the codec's weights."""
        return weights_digest(self.codec.encoder, self.codec.decoder)

    def fingerprint(self) -> dict[str, Any]:
        return {"method": "diffmark", "sampling": asdict(self.sampling), "codec": self.digest}

    def reader(self) -> dict[str, Any]:
        return {"method": "diffmark", "codec": self.digest, "vae": weights_digest(self.detector.vae)}
