"""What a watermarking method is, as the experiments see it.

A method marks either while a picture is generated (`generate`) or afterwards (`embed`); it reads with `decode`, and
`score` says how much an image looks marked. One file a method; the experiments need no change for a new one.
A method that touches only the last latents may define `finish` as well: pictures then share one run of the model.
A method that reads from something which takes long to find, and others of its kind read from too, may define
`state` and `read_state` as well: it is then found once for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from diffmark.mark.generation import ImageSpec
from diffmark.secret import Bits
from diffmark.statistics import match_tail


class Method(ABC):
    """Common base; subclasses define `generate` or `embed`."""

    name: str
    bits: int  # length of a secret; 0 if the method only tells presence
    compared = True  # another's method, which DiffMark is compared with
    costly = False  # whether reading an image takes about as long as making one; measured on fewer

    def generate(self, spec: ImageSpec) -> Image.Image:
        """The marked picture of a spec, for methods that mark during generation."""
        raise TypeError(f"{self.name} marks finished images: use embed")

    def generate_all(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        """The marked pictures of some specs; to be overridden where a batch is faster."""
        return [self.generate(spec) for spec in specs]

    def finish(self, z0: Tensor, secrets: NDArray[np.uint8]) -> list[Image.Image]:
        """Marked pictures from the latents that the model ends with when nothing marks it, (B, C, h, w)."""
        raise TypeError(f"{self.name} does not mark finished latents")

    def embed(self, image: Image.Image, secret: Bits) -> Image.Image:
        """A marked copy of a finished image, for methods that mark afterwards."""
        raise TypeError(f"{self.name} marks during generation: use generate")

    @property
    def upon(self) -> Method | None:
        """The method whose pictures this one marks once more with `embed`, if it is such a one."""
        return None

    @property
    def generates(self) -> bool:
        return type(self).generate is not Method.generate

    @property
    def finishes(self) -> bool:
        return type(self).finish is not Method.finish

    @property
    def repaints(self) -> bool:
        """Whether each marked picture takes a whole run of the model."""
        return self.generates and not self.finishes

    @property
    def counts(self) -> bool:
        """Whether the score is the number of matching bits, so that exact thresholds hold."""
        return self.bits > 0 and type(self).score is Method.score

    def carried(self, secret: Bits) -> Bits:
        """The bits that an image of a spec with this secret carries: its first ones, or a key that is fixed."""
        return secret[: self.bits]

    @property
    def has_one_key(self) -> bool:
        """Whether every image carries the same bits, or none, whatever secret is asked for."""
        zeros, ones = (self.carried(np.full(256, bit, np.uint8)) for bit in (0, 1))
        return np.array_equal(zeros, ones)

    def parts(self) -> dict[str, tuple[Any, str]]:
        """Costly parts of reading, each an object and the name of its method: their time is measured apart."""
        return {}

    @abstractmethod
    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        """Margins, (B, bits): the sign is the bit, the size how sure it is; +-1 where a method does not say.

        Where a method tells presence only, (B, 1): minus the log10 of a p-value.
        """

    def margins_of(self, pixels: Tensor) -> Tensor:
        """Margins of pixels in [-1, 1], (B, 3, H, W) -> (B, bits), with gradients; not for all methods."""
        raise TypeError(f"{self.name} has no gradients")

    @property
    def has_gradients(self) -> bool:
        return type(self).margins_of is not Method.margins_of

    def score(self, images: Sequence[Image.Image], secrets: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Matching bits with each image's secret, (B,); higher is more surely marked."""
        return ((self.decode(images) > 0) == secrets).sum(axis=1).astype(np.float64)

    def state(self, images: Sequence[Image.Image]) -> Tensor:
        """What reading starts from, (B, ...), where it is worth keeping."""
        raise TypeError(f"{self.name} reads from images: use decode and score")

    def state_recipe(self) -> dict[str, Any]:
        """What a state depends on beside the image; equal for methods that read from the same one."""
        raise TypeError(f"{self.name} reads from images")

    def read_state(
        self, state: Tensor, secrets: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Margins, (B, bits), and scores, (B,), of images whose state is known."""
        raise TypeError(f"{self.name} reads from images: use decode and score")

    @property
    def has_state(self) -> bool:
        return type(self).state is not Method.state

    def p_values(
        self, margins: NDArray[np.float64], scores: NDArray[np.float64], secrets: NDArray[np.uint8]
    ) -> NDArray[np.float64] | None:
        """How likely an unmarked image does as well, (B,), where theory tells; here by the matching bits."""
        if not self.bits:
            return None
        tails = np.array([match_tail(matches, self.bits) for matches in range(self.bits + 1)])
        return tails[((margins > 0) == secrets).sum(axis=1)]

    @property
    def least_p(self) -> float:
        """No p-value can be less than this."""
        return 2.0**-self.bits if self.bits else 0.0

    def fingerprint(self) -> dict[str, Any]:
        """What the method's pictures depend on; part of the key that they are kept under."""
        return {"method": self.name}

    def reader(self) -> dict[str, Any]:
        """What reading depends on: less than `fingerprint` where marking has settings, more where reading has."""
        return self.fingerprint()
