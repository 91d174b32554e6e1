"""Routes of the service that need a token, but for its state.

Annotations stay unquoted here: FastAPI reads those of the routes, which name local types.
"""

from typing import Annotated

from fastapi import APIRouter, File, Form, HTTPException, Path, Query, Response, UploadFile
from prometheus_client import CONTENT_TYPE_LATEST

from diffmark import __version__
from diffmark.server.callers import Callers
from diffmark.server.models import (
    Answer,
    Caller,
    Examination,
    Found,
    GenerateRequest,
    Health,
    KeyOut,
    KeyRequest,
    LogEntry,
)
from diffmark.server.oracle import coarse
from diffmark.server.service import Service
from diffmark.server.tokens import Token

RETRY_AFTER = {"Retry-After": "2"}


def state_routes(service: Service, callers: Callers) -> APIRouter:
    """Whether it lives, whether it is ready, what it counts, what a token is good for."""
    router = APIRouter()
    Anyone = Annotated[Token, callers.one_of("operator", "auditor", "investigator")]

    @router.get("/health", tags=["state"])
    async def health() -> Health:
        """The process is alive. No token needed."""
        return Health(status="ok", version=__version__)

    @router.get("/ready", tags=["state"])
    def ready() -> Health:
        """Database and decoder answer. No token needed."""
        try:
            service.check()
        except Exception as error:  # whatever it is, traffic should go elsewhere
            raise HTTPException(503, f"not ready: {type(error).__name__}", RETRY_AFTER) from error
        return Health(status="ready", version=__version__)

    @router.get("/metrics", tags=["state"])
    def metrics() -> Response:
        """Prometheus."""
        service.metrics.waiting.set(service.reading.waiting)
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/me", tags=["state"])
    def me(token: Anyone) -> Caller:
        """What the token is good for."""
        return Caller(
            name=token.name,
            role=token.role,
            expires=token.expires,
            upload_bytes=service.limits.upload_bytes,
            pixels=service.limits.pixels,
            image_size=service.native_size,
            model=service.painter.model if service.painter else None,
        )

    return router


def image_routes(service: Service, callers: Callers) -> APIRouter:
    """Reading and marking."""
    router = APIRouter()
    Reader = Annotated[Token, callers.one_of("auditor", "operator")]
    Auditor = Annotated[Token, callers.one_of("auditor")]
    Operator = Annotated[Token, callers.one_of("operator")]

    @router.post("/v1/detect", tags=["images"])
    def detect(
        token: Reader,
        images: Annotated[list[UploadFile], File(description="One or several images.")],
        secret: Annotated[str | None, Form(description="Hex of a secret to look for.")] = None,
    ) -> list[Found]:
        """What each image carries."""
        answers = [Found.of(found) for found in service.detect(callers.uploads(images, token), secret)]
        return answers if token.role == "auditor" else [coarse(answer) for answer in answers]

    @router.post("/v1/identify", tags=["images"])
    def identify(
        token: Auditor,
        images: Annotated[list[UploadFile], File(description="One or several images.")],
        reason: Annotated[str, Form(max_length=500, description="Why; goes into the audit log.")] = "",
        together: Annotated[
            bool, Form(description="All images come from one account: sum the evidence.")
        ] = False,
        top: Annotated[int, Form(ge=1, le=100)] = 10,
    ) -> list[Answer]:
        """Whose key each image carries, among all keys of the registry."""
        found = service.detect(callers.uploads(images, token))
        registry = callers.registry(token)
        if together:
            return [Answer.of(registry.identify_together(found, top, reason=reason), *found)]
        answers = registry.identify_many(found, top, reason=reason)
        return [Answer.of(answer, one) for answer, one in zip(answers, found, strict=True)]

    @router.post("/v1/examine", tags=["images"])
    def examine(
        token: Reader,
        image: Annotated[UploadFile, File(description="The image.")],
        reason: Annotated[str, Form(max_length=500, description="Why; goes into the audit log.")] = "",
        top: Annotated[int, Form(ge=1, le=100)] = 5,
    ) -> Examination:
        """All there is to say about one image: its bits, whose key it carries, where in it the mark is."""
        (upload,) = callers.uploads([image], token)
        return service.examine(upload, token, reason, top)

    @router.post("/v1/generate", tags=["images"], response_class=Response)
    def generate(token: Operator, request: GenerateRequest) -> Response:
        """A marked image, as PNG, under a fresh key for the principal (X-Diffmark-Key, X-Diffmark-Seed)."""
        if service.painter is None:
            raise HTTPException(409, "this service has no model: start it with --model")
        try:
            made = service.generate(service.painter, request, token.name)
        except ValueError as error:  # a principal or a prompt that will not do
            raise HTTPException(422, str(error)) from error
        headers = {"X-Diffmark-Key": made.key, "X-Diffmark-Seed": str(made.seed)}
        return Response(made.png, media_type="image/png", headers=headers)

    @router.post("/v1/embed", tags=["images"], response_class=Response)
    def embed(
        token: Operator,
        image: Annotated[UploadFile, File(description="The image to mark.")],
        secret: Annotated[str | None, Form(description="Hex of the secret.")] = None,
        principal: Annotated[
            str | None, Form(max_length=200, description="Issue a key to this principal instead.")
        ] = None,
        quality: Annotated[
            float | None,
            Form(
                ge=0,
                le=100,
                description="SSIMULACRA2 of the marked picture (pixel layer); 80 to 90 by default.",
            ),
        ] = None,
        strength: Annotated[float, Form(ge=0, le=10, description="Scale of a latent codec's mark.")] = 1.0,
    ) -> Response:
        """The image with a mark, as PNG: of a given secret, or of a fresh key for a principal (X-Diffmark-Key)."""
        (upload,) = callers.uploads([image])
        if secret is not None and principal is None:
            return Response(service.embed(upload, secret, quality, strength), media_type="image/png")
        if principal is None or secret is not None:
            raise HTTPException(422, "give either a secret or a principal")
        registry = callers.registry(token)
        try:
            key = registry.issue(principal, reason="embed")
        except ValueError as error:  # a principal that will not do
            raise HTTPException(422, str(error)) from error
        try:
            marked = service.embed(upload, key.hex, quality, strength)
        except BaseException:
            registry.revoke(key=key.hex, reason="its image was not marked")
            raise
        service.keep_fingerprint(registry, marked, key.hex, "embed")
        return Response(marked, media_type="image/png", headers={"X-Diffmark-Key": key.hex})

    return router


def key_routes(service: Service, callers: Callers) -> APIRouter:
    """Issued keys and the audit log."""
    router = APIRouter()
    Operator = Annotated[Token, callers.one_of("operator")]
    Anyone = Annotated[Token, callers.one_of("operator", "auditor", "investigator")]

    @router.post("/v1/keys", tags=["keys"], status_code=201)
    def issue(token: Operator, request: KeyRequest) -> KeyOut:
        """A new key for a principal."""
        key = callers.registry(token).issue(request.principal, context=request.context, reason=request.reason)
        return KeyOut(key=key.hex, principal=key.principal)

    @router.delete("/v1/keys/{key}", tags=["keys"], status_code=204)
    def revoke(
        token: Operator,
        key: Annotated[str, Path(pattern="^[0-9a-fA-F]{16}$")],
        reason: Annotated[str, Query(max_length=500)] = "",
    ) -> None:
        """Revoke a key. Images that carry it are still identified."""
        callers.registry(token).revoke(key=key, reason=reason)

    @router.get("/v1/audit", tags=["audit"])
    def audit(token: Anyone, last: Annotated[int, Query(ge=1, le=1000)] = 20) -> list[LogEntry]:
        """The latest entries of the audit log."""
        return [LogEntry.of(entry) for entry in callers.registry(token).log(last)]

    return router
