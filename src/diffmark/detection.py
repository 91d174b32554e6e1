"""Detection: images in, typed results out, with an exact probability of error where a secret is at hand.

Three questions, three tests, each stated in the result:

secret   "does it carry this secret?"   matching bits against a binomial; exact, because a secret drawn at random
                                        is independent of an image it was not written into, whatever the decoder's
                                        habits are
payload  "does it verify under our key?" bits near a codeword whose check holds; exact for the same reason
blind    "does it carry any mark?"       how sure the decoder is, against unmarked images in the codec's calibration
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from diffmark import statistics
from diffmark.alignment import CLEAR, Aligner, View
from diffmark.calibration import evidence
from diffmark.codec import Codec
from diffmark.codec_files import find_codec, read_config
from diffmark.fast import PixelDecoder, load_pixel_decoder
from diffmark.images import MAX_PIXELS, ImageError, ImageLike, Picture, read_image
from diffmark.payload import Payload, PayloadScheme
from diffmark.provenance import weights_digest
from diffmark.secret import Bits, SecretLike, as_secrets, to_hex
from diffmark.vae import check_family, encode, load_vae

Verdict = Literal["marked", "not marked", "undecided"]
Test = Literal["secret", "payload", "blind", "none"]

OTHER_VAE = "the codec is calibrated for another autoencoder: read with that one, or run diffmark calibrate"


@dataclass(frozen=True, eq=False)
class Detection:
    """What was read from one image and how sure that is."""

    source: str
    bits: Bits  # (L,) hard decisions
    logits: np.ndarray  # (L, 2) float32
    verdict: Verdict
    test: Test
    p_value: float | None  # of `test`; None if there was nothing to test against
    fpr: float  # the false-positive rate that the verdict is stated at
    matched_secret: str | None = None  # hex of the given secret that fits best
    matches: int | None = None  # bits that agree with it
    threshold: int | None = None  # matching bits that the verdict asks for
    soft_p_value: float | None = None  # the same question, bits weighted by how sure the decoder is
    payload: Payload | None = None
    notes: tuple[str, ...] = ()

    @property
    def secret(self) -> str:
        """The bits that were read, as hex."""
        return to_hex(self.bits)

    @property
    def margins(self) -> np.ndarray:
        """Logit of 1 minus logit of 0, (L,)."""
        return self.logits[:, 1] - self.logits[:, 0]

    @property
    def marked(self) -> bool:
        return self.verdict == "marked"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the logits as margins rounded to four digits."""
        values = {
            name: getattr(self, name) for name in ("source", "verdict", "test", "p_value", "fpr", "secret")
        }
        for name in ("matched_secret", "matches", "threshold", "soft_p_value"):
            values[name] = getattr(self, name)
        values["payload"] = asdict(self.payload) if self.payload else None
        values["margins"] = [round(float(margin), 4) for margin in self.margins]
        values["notes"] = list(self.notes)
        return values

    def __rich__(self) -> Any:
        """A panel for people: `rich.print(detection)`."""
        from rich.panel import Panel
        from rich.text import Text

        colour = {"marked": "green", "not marked": "yellow", "undecided": "red"}[self.verdict]
        lines = [
            Text(f"{self.verdict}", style=f"bold {colour}"),
            Text(self.explanation),
            Text(f"secret read  {self.secret}"),
        ]
        lines += [Text(f"note  {note}", style="dim") for note in self.notes]
        return Panel(Text("\n").join(lines), title=self.source, title_align="left", expand=False)

    @property
    def explanation(self) -> str:
        """One sentence on what the verdict rests on."""
        if self.test == "secret":
            return (
                f"{self.matches} of {len(self.bits)} bits match {self.matched_secret}; {self.threshold} are needed "
                f"at a false-positive rate of {self.fpr:g}; p = {self.p_value:.2g}"
            )
        if self.test == "payload" and self.payload and self.payload.verified:
            return (
                f"payload verified: account {self.payload.account}, nonce {self.payload.nonce}, "
                f"{self.payload.errors} bits corrected; p = {self.p_value:.2g}"
            )
        if self.test == "payload":
            return "no payload verifies under this key"
        if self.test == "blind" and self.verdict == "undecided":
            return f"no secret was given, and the calibration cannot state a rate of {self.fpr:g}"
        if self.test == "blind":
            return f"no secret was given; unmarked images are read this surely with p = {self.p_value:.2g}"
        return (
            "no secret was given and the codec is not calibrated for this reading: bits alone prove nothing"
        )


class Detector:
    """Reads secrets from images with a codec and the autoencoder of its family, both of which it puts into eval."""

    def __init__(
        self,
        codec: Codec,
        vae: nn.Module | None,
        *,
        pixel_decoder: PixelDecoder | None = None,
        align: bool = False,
        fpr: float = 1e-3,
        payload: PayloadScheme | None = None,
        batch_size: int = 8,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        if vae is not None:
            check_family(codec.config, vae)
        elif pixel_decoder is None:
            raise ValueError("a detector needs an autoencoder, or a pixel decoder in its place")
        if align and vae is None:
            raise ValueError("alignment needs an autoencoder")
        statistics.match_threshold(codec.config.length, fpr)  # raises if the rate cannot be reached
        if payload and payload.code.length != codec.config.length:
            raise ValueError(
                f"the payload is for secrets of {payload.code.length} bits, the codec's have {codec.config.length}"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.codec = codec.eval()
        self.vae: Any = vae.eval() if vae is not None else None
        self.pixel_decoder = pixel_decoder
        self.aligner = Aligner(codec, vae) if align and vae is not None else None
        self.fpr, self.payload = fpr, payload
        self.batch_size, self.max_pixels = batch_size, max_pixels

    @classmethod
    def from_pretrained(
        cls,
        codec: str | Path | Codec,
        vae: str | Path | nn.Module | None = None,
        fast: bool = False,
        **options: Any,
    ) -> Detector:
        """Codec by name, folder or hub id; `vae` by folder or hub id, or the one that comes with the codec.

        `fast` reads with the codec's pixel decoder instead of an autoencoder. `align=True` looks for marks that
        were turned or cropped (`diffmark.alignment`).
        """
        if fast:
            if isinstance(codec, Codec) or vae is not None:
                raise ValueError("fast reading takes a codec by name, folder or hub id, and no autoencoder")
            return cls(Codec.from_pretrained(codec), None, pixel_decoder=load_pixel_decoder(codec), **options)
        if not isinstance(codec, Codec):
            if vae is None:
                vae = _own_vae(codec)
            codec = Codec.from_pretrained(codec)
        if vae is None:
            raise ValueError("a codec object comes without an autoencoder: give vae=")
        return cls(codec, vae if isinstance(vae, nn.Module) else load_vae(vae), **options)

    def to(self, device: str | torch.device) -> Detector:
        """Move codec and autoencoder to a device."""
        for part in (self.codec, self.vae, self.pixel_decoder):
            if part is not None:
                part.to(device)
        return self

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) that images are resized to before they are read."""
        return self.pixel_decoder.image_size if self.pixel_decoder else self.codec.config.image_size

    def detect(self, image: ImageLike, secret: SecretLike | None = None) -> Detection:
        """One image. `secret` may be several: the p-value then counts the tries."""
        return next(iter(self.detect_many([image], secret)))

    def detect_many(
        self, images: Iterable[ImageLike], secret: SecretLike | None = None
    ) -> Iterator[Detection]:
        """A stream of images, decoded in batches; at most `batch_size` are in memory at a time."""
        for outcome in self.scan(images, secret):
            if isinstance(outcome, ImageError):
                raise outcome
            yield outcome

    def scan(
        self, images: Iterable[ImageLike], secret: SecretLike | None = None
    ) -> Iterator[Detection | ImageError]:
        """Like `detect_many`, but an image that cannot be read is yielded as its error, in its place."""
        candidates = None if secret is None else as_secrets(secret, self.codec.config.length)
        if candidates is not None:  # raises if the rate cannot be reached among so many
            statistics.match_threshold(
                self.codec.config.length, statistics.per_try(self.fpr, len(candidates))
            )
        batch: list[Picture | ImageError] = []
        for image in images:
            try:
                # Only the native size is kept, so that a batch of huge images stays small.
                batch.append(read_image(image, self.max_pixels).resized(self.image_size))
            except ImageError as error:
                batch.append(error)
            if len(batch) == self.batch_size:
                yield from self._decide_batch(batch, candidates)
                batch = []
        yield from self._decide_batch(batch, candidates)

    @torch.no_grad()
    def logits(self, pixels: torch.Tensor) -> np.ndarray:
        """Pixels in [-1, 1] at `image_size`, (B, 3, H, W) -> logits (B, L, 2)."""
        if self.pixel_decoder is not None:
            return self.pixel_decoder.eval()(pixels.to(self.codec.device)).cpu().numpy()
        device = next(self.vae.parameters()).device
        return self.codec.decode(encode(self.vae, pixels.to(device))).cpu().numpy()

    def decide(
        self,
        logits: np.ndarray,
        secrets: Bits | None = None,
        source: str = "logits",
        notes: tuple[str, ...] = (),
        calibrated: bool = True,
    ) -> Detection:
        """The verdict on one image's logits, (L, 2); blind only if they were read as the calibration was."""
        logits = np.asarray(logits, np.float32)
        margins = logits[:, 1] - logits[:, 0]
        bits = (margins > 0).astype(np.uint8)
        shared: dict[str, Any] = {
            "source": source,
            "bits": bits,
            "logits": logits,
            "fpr": self.fpr,
            "notes": notes,
        }
        if not np.isfinite(logits).all():
            shared["logits"] = np.nan_to_num(logits, posinf=0, neginf=0)
            shared["notes"] = (*notes, "the decoder gave numbers that are not finite: try a vae in float32")
            return Detection(verdict="undecided", test="none", p_value=None, **shared)
        payload = self.payload.decode(margins) if self.payload else None
        if secrets is not None:
            return self._against(secrets, margins, bits, {**shared, "payload": payload})
        if payload is not None:
            verdict = _verdict(payload.p_value, self.fpr)
            return Detection(
                verdict=verdict, test="payload", p_value=payload.p_value, payload=payload, **shared
            )
        # The calibration was measured through an autoencoder; a pixel decoder is sure of itself in another way.
        if self.codec.calibration is not None and self.pixel_decoder is None and calibrated:
            known = self.codec.calibration.vaes
            if known and self._vae_digest not in known:
                shared["notes"] = (*notes, OTHER_VAE)
                return Detection(verdict="undecided", test="none", p_value=None, **shared)
            known_kind = self.codec.calibration.kind
            p_value = self.codec.calibration.p_value(float(evidence(margins, known_kind)))
            verdict = _verdict(p_value, self.fpr)
            if (
                self.codec.calibration.smallest > self.fpr
            ):  # too few negatives to ever say "marked" at this rate
                verdict = "undecided"
            return Detection(verdict=verdict, test="blind", p_value=p_value, **shared)
        return Detection(verdict="undecided", test="none", p_value=None, **shared)

    @cached_property
    def _vae_digest(self) -> str:
        return weights_digest(self.vae, half=True)

    def _against(self, secrets: Bits, margins: np.ndarray, bits: Bits, shared: dict[str, Any]) -> Detection:
        length, tries = len(bits), len(secrets)
        matches = (secrets == bits).sum(axis=1)
        best = int(matches.argmax())
        p_value = statistics.family_wise(statistics.match_tail(int(matches[best]), length), tries)
        weights = statistics.soft_weights(margins)
        cost = min(statistics.soft_cost(bits, secret, weights) for secret in secrets)
        return Detection(
            verdict=_verdict(p_value, self.fpr),
            test="secret",
            p_value=p_value,
            matched_secret=to_hex(secrets[best]),
            matches=int(matches[best]),
            threshold=statistics.match_threshold(length, statistics.per_try(self.fpr, tries)),
            soft_p_value=statistics.family_wise(statistics.soft_tail(cost, weights), tries),
            **shared,
        )

    def _decide_batch(
        self, batch: list[Picture | ImageError], secrets: Bits | None
    ) -> Iterator[Detection | ImageError]:
        views = [self._view(item) if isinstance(item, Picture) else View() for item in batch]
        batch = [
            view.undo(item) if isinstance(item, Picture) and view != View() else item
            for item, view in zip(batch, views, strict=True)
        ]
        pictures = [item for item in batch if isinstance(item, Picture)]
        rows: Iterator[np.ndarray] = iter(())
        if pictures:
            pixels = np.stack([picture.pixels() for picture in pictures])
            rows = iter(self.logits(torch.from_numpy(pixels)))
        for item, view in zip(batch, views, strict=True):
            if isinstance(item, ImageError):
                yield item
            else:  # a view is chosen for its evidence, which the calibration knows of pictures as they come
                yield self.decide(next(rows), secrets, item.source, item.notes, calibrated=view == View())

    def _view(self, picture: Picture) -> View:
        """The view that the picture is read in: as it is, unless a mark is clear in another."""
        if self.aligner is None:
            return View()
        view, found = self.aligner.find(picture)
        return view if found >= CLEAR else View()


def _verdict(p_value: float, fpr: float) -> Verdict:
    return "marked" if p_value <= fpr else "not marked"


def _own_vae(codec: str | Path) -> str | Path | nn.Module:
    """The autoencoder that comes with a codec: in its folder, or the embedded family's."""
    folder = find_codec(codec)
    if (folder / "vae").is_dir():
        return folder / "vae"
    if read_config(folder)["config"].get("family") == "vista":
        from diffmark.vista import load_autoencoder

        return load_autoencoder()
    raise ValueError(
        f"the codec {str(codec)!r} comes without an autoencoder: give vae= (a pipeline's folder or hub id)"
    )
