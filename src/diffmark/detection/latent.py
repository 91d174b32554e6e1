"""Detection with a latent codec: images in, typed results out (diffmark.detection.decision)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from diffmark.detection.decision import BlindTest, Detection, Question, decide
from diffmark.detection.evidence_map import EvidenceMap
from diffmark.detection.reader import Open, Reader
from diffmark.images import MAX_PIXELS, ImageLike, Picture, read_image
from diffmark.keys.ring import KeyRing
from diffmark.latent.calibration import evidence
from diffmark.latent.codec import Codec, NoiseCodec
from diffmark.latent.families import FAMILIES
from diffmark.latent.files import find_codec, read_config
from diffmark.latent.noise import blind_p_value, energy
from diffmark.latent.vae import check_family, encode, load_vae
from diffmark.payload.scheme import PayloadScheme
from diffmark.provenance import weights_digest
from diffmark.secret import Bits
from diffmark.statistics import to_logits, to_margins

OTHER_VAE = "the codec is calibrated for another autoencoder: read with that one, or run diffmark calibrate"


class Detector(Reader):
    """Reads secrets from images with a codec and the autoencoder of its family, both of which it puts into eval.

    With a ring the codec is used under the operator's current key; older ones are read besides, each a try.
    """

    def __init__(
        self,
        codec: Codec,
        vae: nn.Module,
        *,
        fpr: float = 1e-3,
        payload: PayloadScheme | None = None,
        batch_size: int = 8,
        max_pixels: int = MAX_PIXELS,
        name: str = "codec",
        tries: int | None = None,
        ring: KeyRing | None = None,
    ) -> None:
        check_family(codec.config, vae)
        if ring is not None:
            codec.use_key(ring.current)
        self.older = tuple(codec.keyed_by(key) for key in ring.older) if ring else ()
        tries = 1 + len(self.older) if tries is None else tries
        if tries < 1 + len(self.older):
            raise ValueError(f"{1 + len(self.older)} keys are as many tries, got tries={tries}")
        Question(fpr, None, payload, tries).check(codec.config.length)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.codec = codec.eval()
        self.vae: Any = vae.eval()
        self.fpr, self.payload = fpr, payload
        self.name, self.tries = name, tries
        self.batch_size = self.chunk = batch_size
        self.max_pixels = max_pixels

    @classmethod
    def from_pretrained(
        cls,
        codec: str | Path | Codec,
        vae: str | Path | nn.Module | None = None,
        **options: Any,
    ) -> Detector:
        """Codec by name, folder or hub id; `vae` by folder or hub id, or the one that comes with the codec."""
        if not isinstance(codec, Codec):
            options.setdefault("name", Path(codec).name)
            if vae is None:
                vae = _own_vae(codec)
            codec = Codec.from_pretrained(codec)
        if vae is None:
            raise ValueError("a codec object comes without an autoencoder: give vae=")
        return cls(codec, vae if isinstance(vae, nn.Module) else load_vae(vae), **options)

    def to(self, device: str | torch.device) -> Detector:
        """Move codec and autoencoder to a device."""
        self.codec.to(device)
        self.vae.to(device)
        return self

    @property
    def pixel(self) -> None:
        """This reader has no pixel layer; readers of other kinds have."""
        return None

    @property
    def latent(self) -> Detector:
        """Itself: what reads latents."""
        return self

    @property
    def length(self) -> int:
        return self.codec.config.length

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) that images are resized to before they are read."""
        return self.codec.config.image_size

    def first(self, image: ImageLike, question: Question) -> Open:
        """The picture at the native size, so that a batch of huge images stays small."""
        return Open(read_image(image, self.max_pixels).resized(self.image_size))

    def logits_of(self, pictures: Sequence[Picture]) -> Iterator[np.ndarray]:
        """Logits (K, L, 2) of each picture at the native size, in batches."""
        for start in range(0, len(pictures), self.batch_size):
            batch = pictures[start : start + self.batch_size]
            yield from self.logits_by_key(np.stack([picture.pixels() for picture in batch]))

    def logits_by_key(self, pixels: np.ndarray | torch.Tensor) -> np.ndarray:
        """Pixels (B, 3, H, W) -> logits (B, K, L, 2) under the current key, then under older ones."""
        carried = self._carried(pixels)
        keys = (self.codec.keyed, *self.older)
        return np.stack([to_logits(self.codec.margins(carried, keyed)) for keyed in keys], axis=1)

    def logits(self, pixels: np.ndarray | torch.Tensor) -> np.ndarray:
        """Logits (B, L, 2) of secret bits under the current key, without lean."""
        return to_logits(self.codec.margins(self._carried(pixels), self.codec.keyed))

    def raw_margins(self, pixels: np.ndarray | torch.Tensor) -> np.ndarray:
        """Margins (B, L) of the bits that the network carries, as it gives them: what a calibration measures."""
        if isinstance(self.codec, NoiseCodec):  # its network carries no bits, and has no lean
            return to_margins(self.logits(pixels))
        return to_margins(self._carried(pixels))

    @torch.no_grad()
    def _carried(self, pixels: np.ndarray | torch.Tensor) -> np.ndarray:
        device = next(self.vae.parameters()).device
        return self.codec.decode(encode(self.vae, torch.as_tensor(pixels).to(device))).cpu().numpy()

    def evidence_map(self, image: ImageLike, found: Detection) -> EvidenceMap:
        from diffmark.detection.latent_evidence import EvidenceMapper

        return EvidenceMapper(self).map(image, found.matched_secret)

    def decide(
        self,
        logits: np.ndarray,
        secrets: Bits | None = None,
        source: str = "logits",
        notes: tuple[str, ...] = (),
    ) -> Detection:
        """The verdict on one image's logits, (L, 2)."""
        question = Question(self.fpr, secrets, self.payload, self.tries)
        return self.answer(np.asarray(logits)[None], question, source, notes)

    def answer(
        self, logits: np.ndarray, question: Question, source: str, notes: tuple[str, ...]
    ) -> Detection:
        """The answer to a question, from one image's logits (K, L, 2) under the keys of the ring."""
        if self._other_vae and question.secrets is None and question.payload is None:
            notes = (*notes, OTHER_VAE)
        keys = (self.codec.keyed, *self.older)[: len(logits)]
        answers = [
            decide(one, question, self._blind(one), source, notes, self.name, keyed.key_id)
            for keyed, one in zip(keys, np.asarray(logits, np.float32), strict=True)
        ]
        best = min(answers, key=lambda one: 1.0 if one.p_value is None else one.p_value)
        return replace(best, others=tuple(one.logits for one in answers if one is not best))

    def _blind(self, logits: np.ndarray) -> BlindTest | None:
        """None without a calibration for this autoencoder, where the codec needs one."""
        if isinstance(self.codec, NoiseCodec):
            margins = to_margins(logits)
            return BlindTest(blind_p_value(margins), 0.0, energy(margins))
        calibration = self.codec.calibration
        if calibration is None or self._other_vae:
            return None
        found = float(evidence(to_margins(logits)))
        return BlindTest(calibration.p_value(found), calibration.smallest, found)

    @property
    def _other_vae(self) -> bool:
        """Whether the calibration is for other autoencoders than this one."""
        if self.codec.calibration is None:
            return False
        known = self.codec.calibration.vaes
        return bool(known) and self._vae_digest not in known

    @cached_property
    def _vae_digest(self) -> str:
        return weights_digest(self.vae, half=True)


def _own_vae(codec: str | Path) -> str | Path | nn.Module:
    """The autoencoder that comes with a codec: in its folder, or the embedded family's."""
    folder = find_codec(codec)
    if (folder / "vae").is_dir():
        return folder / "vae"
    family = FAMILIES.get(read_config(folder)["config"].get("family"))
    if family is not None and family.package:
        return family.models().load_autoencoder()
    raise ValueError(
        f"the codec {str(codec)!r} comes without an autoencoder: give vae= (a pipeline's folder or hub id)"
    )
