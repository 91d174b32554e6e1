"""What goes over the wire."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field, field_validator

from diffmark.detection.decision import Detection
from diffmark.detection.evidence_map import EvidenceMap
from diffmark.registry.answers import Identification
from diffmark.registry.audit_log import Entry
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
    reader: str = Field(description="Who read it.", examples=["pixel"])
    tries: int = Field(description="Readers that were tried; the p-value counts them.")
    key_id: str | None = Field(description="Of the operator key that it was read with.")
    notes: list[str]

    @classmethod
    def of(cls, found: Detection) -> Found:
        values = found.to_dict()
        return cls(
            **{name: values[name] for name in cls.model_fields if name in values},
            explanation=found.explanation,
        )


class CandidateOut(BaseModel):
    """An account whose key is near. A key is a secret: all but the one that was found stay in the registry."""

    key: str | None = Field(
        description="As hex, if an account is named by it.", examples=["3f9c01d2a4b8e677"]
    )
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
    rate: float | None = Field(description="Family-wise error that a name may have.", examples=[1e-6])
    keys: int
    readers: list[str] = Field(description="Who read the bits.", examples=[["pixel"]])
    candidates: list[CandidateOut]

    @classmethod
    def of(cls, found: Identification, *read: Detection) -> Answer:
        verdict = found.verdict
        candidates = [
            CandidateOut(**_only(asdict(candidate), CandidateOut)) for candidate in found.candidates
        ]
        for place, candidate in enumerate(candidates):
            if place or verdict.principal is None:  # the nearest is who is named; other keys of his stay too
                candidate.key = None
        return cls(
            answer=str(verdict),
            principal=verdict.principal,
            family_wise=verdict.family_wise,
            rate=verdict.rate,
            keys=found.keys,
            readers=sorted({one.reader for one in read}),
            candidates=candidates,
        )


class Evidence(BaseModel):
    """Where in the image the mark is."""

    secret: str = Field(description="The key that the map speaks for, as hex.", examples=["3f9c01d2a4b8e677"])
    way: str = Field(examples=["matched"])
    scores: list[list[float]] = Field(description="Rows of standard deviations above chance.")
    missing: float | None = Field(description="Share of the places that should show the mark and do not.")


class Examination(BaseModel):
    """All there is to say about one image."""

    found: Found
    margins: list[float] | None = Field(
        description="How sure each bit is; positive reads 1. None unless an auditor asks."
    )
    width: int
    height: int
    answer: Answer | None = Field(description="None if the token may not ask for names.")
    evidence: Evidence | None = Field(description="None if no mark was found, or the caller is no auditor.")

    @classmethod
    def of(
        cls,
        found: Detection,
        size: tuple[int, int],
        identification: Identification | None,
        evidence: EvidenceMap | None,
    ) -> Examination:
        return cls(
            found=Found.of(found),
            margins=found.to_dict()["margins"],
            width=size[0],
            height=size[1],
            answer=Answer.of(identification, found) if identification else None,
            evidence=Evidence(**evidence.to_dict()) if evidence else None,
        )


class Caller(BaseModel):
    """What a token is good for, and what a request may be."""

    name: str
    role: str = Field(examples=["auditor"])
    expires: int = Field(description="Seconds since 1970.")
    upload_bytes: int
    pixels: int
    image_size: list[int] | None = Field(
        description="Height and width that images are made for; null if any will do.", examples=[[256, 256]]
    )
    model: str | None = Field(description="The model behind /v1/generate.", examples=["vista"])


class GenerateRequest(BaseModel):
    principal: str = Field(min_length=1, max_length=200, examples=["user-42"])
    prompt: str = Field(min_length=1, max_length=1000, examples=["snowy mountains at dawn above a lake"])
    negative_prompt: str = Field("", max_length=1000)
    seed: int | None = Field(None, ge=0, lt=2**63, description="Random if left out.")
    steps: int = Field(50, ge=1, le=100)
    guidance: float | None = Field(None, ge=1, le=30, description="What suits the model if left out.")
    reason: str = Field("", max_length=500)


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
