"""What goes over the wire."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field, field_validator

from diffmark.detection import Detection
from diffmark.registry.answers import Identification
from diffmark.registry.audit import Entry
from diffmark.registry.keys import check_principals


class Health(BaseModel):
    status: str
    version: str


class Found(BaseModel):
    """A detection without its logits."""

    source: str
    verdict: str = Field(examples=["marked"])
    explanation: str
    test: str
    p_value: float | None
    fpr: float
    secret: str = Field(description="The bits that were read, as hex.", examples=["3f9c01d2a4b8e677"])
    matches: int | None
    threshold: int | None
    notes: list[str]

    @classmethod
    def of(cls, found: Detection) -> Found:
        values = found.to_dict()
        return cls(
            **{name: values[name] for name in cls.model_fields if name in values},
            explanation=found.explanation,
        )


class CandidateOut(BaseModel):
    key: str
    principal: str
    status: str
    distance: int
    score: float
    p_value: float
    family_wise: float


class Answer(BaseModel):
    """Whose key an image carries."""

    answer: str = Field(examples=["user-42, family-wise error 3e-11"])
    principal: str | None
    family_wise: float
    keys: int
    candidates: list[CandidateOut]

    @classmethod
    def of(cls, found: Identification) -> Answer:
        candidates = [
            CandidateOut(**_only(asdict(candidate), CandidateOut)) for candidate in found.candidates
        ]
        verdict = found.verdict
        return cls(
            answer=str(verdict),
            principal=verdict.principal,
            family_wise=verdict.family_wise,
            keys=found.keys,
            candidates=candidates,
        )


class KeyRequest(BaseModel):
    principal: str = Field(min_length=1, max_length=200, examples=["user-42"])
    context: dict[str, str] | None = Field(None, examples=[{"model": "vista"}])
    reason: str = Field("", max_length=500)

    @field_validator("principal")
    @classmethod
    def _is_a_pseudonym(cls, value: str) -> str:
        check_principals([value])
        return value


class KeyOut(BaseModel):
    key: str = Field(examples=["3f9c01d2a4b8e677"])
    principal: str


class LogEntry(BaseModel):
    seq: int
    time: int
    actor: str
    role: str
    action: str
    reason: str
    digest: str

    @classmethod
    def of(cls, entry: Entry) -> LogEntry:
        return cls(**_only(asdict(entry), cls), digest=entry.digest)


def _only(values: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in model.model_fields}
