"""The decision on what was read from one image: margins in, a typed verdict with its probability of error out.

Three questions, three tests, each stated in the result:

secret   "does it carry this secret?"   matching bits against a binomial; exact, because a secret drawn at random
                                        is independent of an image it was not written into, whatever the reader's
                                        habits are
payload  "does it verify under our key?" bits near a codeword whose check holds; exact for the same reason
blind    "does it carry any mark?"       the reader's evidence, against unmarked images in its calibration

Pure functions of margins: nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from diffmark import statistics
from diffmark.secret import Bits, to_hex

if TYPE_CHECKING:
    from diffmark.payload.scheme import Payload, PayloadScheme

Verdict = Literal["marked", "not marked", "undecided"]
Test = Literal["secret", "payload", "blind", "none"]
NOT_FINITE = "the decoder gave numbers that are not finite: try a vae in float32"


@dataclass(frozen=True)
class BlindTest:
    """A reader's evidence with its calibrated p-value, and the smallest that the calibration can state."""

    p_value: float
    smallest: float
    score: float


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
    reader: str = ""  # who read it: "pixel", or a latent codec's name
    tries: int = 1  # readers that were tried; the p-value counts them
    key_id: str | None = None  # of the operator key that it was read under
    # Evidence of some mark: nats in the pixel layer, energy of the scores of a codec of initial noise, of other
    # latent codecs the mean |margin|.
    score: float | None = None
    others: tuple[np.ndarray, ...] = ()  # logits under older operator keys, if the reader cannot tell which

    @property
    def secret(self) -> str:
        """The bits that were read, as hex."""
        return to_hex(self.bits)

    @property
    def margins(self) -> np.ndarray:
        """Logit of 1 minus logit of 0, (L,)."""
        return statistics.to_margins(self.logits)

    @property
    def marked(self) -> bool:
        return self.verdict == "marked"

    def __repr__(self) -> str:
        return (
            f"Detection({self.source!r}, {self.verdict}, p_value={self.p_value}, reader={self.reader!r}, "
            f"secret={self.secret!r})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the logits as margins rounded to four digits."""
        values = {
            name: getattr(self, name) for name in ("source", "verdict", "test", "p_value", "fpr", "secret")
        }
        for name in ("matched_secret", "matches", "threshold", "soft_p_value", "reader", "tries", "key_id"):
            values[name] = getattr(self, name)
        values["score"] = None if self.score is None else round(self.score, 4)
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
            Text(f"secret read  {self.secret}, by {self.reader}"),
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
            return f"no payload verifies under this key at a false-positive rate of {self.fpr:g}"
        if self.test == "blind" and self.verdict == "undecided":
            return (
                f"no secret was given; score {self.score:.3g}, and the calibration cannot state a rate of "
                f"{self.fpr:g}"
            )
        if self.test == "blind":
            return (
                f"no secret was given, so nobody is named; score {self.score:.3g}: unmarked images have it with "
                f"p = {self.p_value:.2g}"
            )
        return (
            "no secret was given and the codec is not calibrated for this reading: bits alone prove nothing"
        )


@dataclass(frozen=True)
class Question:
    """What is asked of an image: a false-positive rate, and perhaps secrets or a payload scheme to test against."""

    fpr: float = 1e-3
    secrets: Bits | None = None  # (n, L)
    payload: PayloadScheme | None = None
    tries: int = 1  # readers that are tried: p-values are corrected for them

    def check(self, length: int) -> None:
        """Raise if a reader of `length` bits cannot answer."""
        among = self.tries * (1 if self.secrets is None else len(self.secrets))
        statistics.match_threshold(length, statistics.per_try(self.fpr, among))
        if self.payload and self.payload.code.length != length:
            raise ValueError(
                f"the payload is for secrets of {self.payload.code.length} bits, the codec's have {length}"
            )


def decide(
    logits: NDArray[np.floating[Any]],
    question: Question,
    blind: BlindTest | None = None,
    source: str = "logits",
    notes: tuple[str, ...] = (),
    reader: str = "",
    key_id: str | None = None,
) -> Detection:
    """The verdict on one image's logits, (L, 2); `blind` is the test if there is nothing else to test."""
    logits = np.asarray(logits, np.float32)
    margins = statistics.to_margins(logits)
    bits = (margins > 0).astype(np.uint8)
    shared: dict[str, Any] = {"source": source, "bits": bits, "logits": logits, "fpr": question.fpr}
    shared |= {"notes": notes, "reader": reader, "tries": question.tries, "key_id": key_id}
    if not np.isfinite(logits).all():
        shared["logits"] = np.nan_to_num(logits, posinf=0, neginf=0)
        shared["notes"] = (*notes, NOT_FINITE)
        return Detection(verdict="undecided", test="none", p_value=None, **shared)
    shared["score"] = blind.score if blind else None
    payload = _payload(question, margins) if question.payload else None
    if question.secrets is not None:
        return _against(question, margins, bits, {**shared, "payload": payload})
    if payload is not None:
        p_value = statistics.family_wise(payload.p_value, question.tries)
        verdict = _verdict(p_value, question.fpr)
        return Detection(verdict=verdict, test="payload", p_value=p_value, payload=payload, **shared)
    if blind is not None:
        p_value = statistics.family_wise(blind.p_value, question.tries)
        verdict = _verdict(p_value, question.fpr)
        if statistics.family_wise(blind.smallest, question.tries) > question.fpr:
            verdict = "undecided"  # too few negatives to ever say "marked" at this rate
        return Detection(verdict=verdict, test="blind", p_value=p_value, **shared)
    return Detection(verdict="undecided", test="none", p_value=None, **shared)


def _payload(question: Question, margins: NDArray[np.floating[Any]]) -> Payload:
    """What a payload scheme reads; verified only if random bits would be so with at most the stated rate."""
    assert question.payload is not None
    found = question.payload.decode(margins)
    if found.verified and statistics.family_wise(found.p_value, question.tries) > question.fpr:
        return replace(found, verified=False, account=None, nonce=None)
    return found


def _against(
    question: Question, margins: NDArray[np.floating[Any]], bits: Bits, shared: dict[str, Any]
) -> Detection:
    assert question.secrets is not None
    secrets, length = question.secrets, len(bits)
    tries = len(secrets) * question.tries
    matches = (secrets == bits).sum(axis=1)
    best = int(matches.argmax())
    p_value = statistics.family_wise(statistics.match_tail(int(matches[best]), length), tries)
    weights = statistics.soft_weights(margins)
    cost = min(statistics.soft_cost(bits, secret, weights) for secret in secrets)
    return Detection(
        verdict=_verdict(p_value, question.fpr),
        test="secret",
        p_value=p_value,
        matched_secret=to_hex(secrets[best]),
        matches=int(matches[best]),
        threshold=statistics.match_threshold(length, statistics.per_try(question.fpr, tries)),
        soft_p_value=statistics.family_wise(statistics.soft_tail(cost, weights), tries),
        **shared,
    )


def _verdict(p_value: float, fpr: float) -> Verdict:
    return "marked" if p_value <= fpr else "not marked"
