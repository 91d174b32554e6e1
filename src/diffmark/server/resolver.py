"""The C2PA Soft Binding Resolution API: from a mark, in an image or as its handle, to the manifest of the image.

Routes, parameters and answers are those of the C2PA 2.4 specification under /v1. The optional /matches/byReference,
which would fetch addresses that strangers name, is left out.
"""

import base64  # annotations stay unquoted here: FastAPI reads those of the routes, which name local types
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel, Field

from diffmark.c2pa import ALGORITHM, active_only
from diffmark.server.service import Service
from diffmark.server.tokens import Token

NAME = r"^urn:(c2pa|uuid):[0-9A-Za-z:._-]{1,200}$"
EXAMPLE = "urn:c2pa:9ef1fc98-dbb4-4b7c-b11e-37bdf8618e96"
IMAGE = {"content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}, "required": True}


class Algorithm(BaseModel):
    alg: str = Field(examples=[ALGORITHM])


class Algorithms(BaseModel):
    watermarks: list[Algorithm]
    fingerprints: list[Algorithm]


class Binding(BaseModel):
    """A soft binding as a manifest states it."""

    alg: str = Field(max_length=100, examples=[ALGORITHM])
    value: str = Field(
        max_length=100, examples=["W2jVS9cVX4qC3m2kQH0e0w=="], description="The handle, base64."
    )


class Match(BaseModel):
    manifestId: str = Field(examples=[EXAMPLE])  # noqa: N815 - the specification's word
    similarityScore: int = Field(ge=0, le=100)  # noqa: N815


class Matches(BaseModel):
    matches: list[Match]


def resolver(
    service: Service, auditor: Any, anyone: Any, prefix: str = "/v1", coarse: bool = False
) -> APIRouter:
    """The routes; `auditor` and `anyone` are dependencies that give the caller's token.

    `coarse` states no similarity but 100, so that strangers cannot see how well a mark is read.
    """
    router = APIRouter(prefix=prefix, tags=["c2pa"])
    Auditor = Annotated[Token, auditor]
    Anyone = Annotated[Token, anyone]
    Limit = Annotated[int, Query(ge=1, le=1000, alias="maxResults")]

    async def content(request: Request) -> bytes:
        kind = request.headers.get("content-type", "")
        if not kind.startswith("image/"):
            raise HTTPException(415, f"an image is needed, got {kind[:100] or 'no content type'!r}")
        return await request.body()

    @router.get("/services/supportedAlgorithms")
    def supported() -> Algorithms:
        """The algorithms whose marks are resolved here. No token needed."""
        return Algorithms(watermarks=[Algorithm(alg=ALGORITHM)], fingerprints=[])

    @router.get("/matches/byBinding")
    def by_binding(token: Anyone, binding: Annotated[Binding, Depends()], limit: Limit = 10) -> Matches:
        """Manifests whose soft binding has this value."""
        return matching(token, binding, limit)

    @router.post("/matches/byBinding")
    def by_large_binding(token: Anyone, binding: Binding, limit: Limit = 10) -> Matches:
        """The same with the value in the body."""
        return matching(token, binding, limit)

    @router.post("/matches/byContent", openapi_extra={"requestBody": IMAGE})
    def by_content(
        token: Auditor,
        data: Annotated[bytes, Depends(content)],
        alg: Annotated[str | None, Query(max_length=100)] = None,
        limit: Limit = 10,
    ) -> Matches:
        """Manifests of the key that the image in the body carries; the look-up is an identification in the log."""
        check(alg or ALGORITHM)
        registry = service.registry_of(token.name)
        (found,) = service.detect([("image", data)])
        if not len(registry):
            return Matches(matches=[])
        names = registry.manifests.of(registry.identify(found, reason="C2PA matches by content"), limit)
        matches = [
            Match(manifestId=name, similarityScore=100 if coarse else round(100 * score))
            for name, score in names
        ]
        return Matches(matches=matches)

    @router.get(
        "/manifests/{manifestId}",
        response_class=Response,
        responses={
            200: {"content": {"application/c2pa": {}}},
            404: {"description": "There is no such manifest"},
        },
    )
    def manifest(
        token: Anyone,
        name: Annotated[str, Path(alias="manifestId", pattern=NAME, examples=[EXAMPLE])],
        active: Annotated[bool, Query(alias="returnActiveManifest")] = False,
    ) -> Response:
        """A manifest store, or its active manifest alone, as JUMBF."""
        data = service.registry_of(token.name).manifests.get(name)
        if data is None:
            raise HTTPException(404, "there is no such manifest")
        return Response(active_only(data) if active else data, media_type="application/c2pa")

    def matching(token: Token, binding: Binding, limit: int) -> Matches:
        check(binding.alg)
        try:
            known = len(base64.b64decode(binding.value, validate=True)) == 16
        except ValueError:
            known = False
        if not known:
            raise HTTPException(400, "the value of this algorithm is 16 bytes in base64")
        names = service.registry_of(token.name).manifests.with_handle(binding.value, limit)
        return Matches(matches=[Match(manifestId=name, similarityScore=100) for name in names])

    def check(alg: str) -> None:
        if alg != ALGORITHM:
            raise HTTPException(400, f"this service resolves {ALGORITHM}")

    return router
