"""The HTTP service as a FastAPI application: `create_app(Service)`.

Every route under /v1 needs a token (`Authorization: Bearer ...`) with the right role. Names of accounts leave the
service only through the registry, which writes down who asked and why.
"""

import json  # annotations stay unquoted here: FastAPI reads those of the routes, which name local types
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError
from contextlib import asynccontextmanager
from typing import Annotated, Any

from anyio import to_thread
from fastapi import (
    Depends,
    FastAPI,
    File,
    Form,
    Header,
    HTTPException,
    Path,
    Query,
    Request,
    Response,
    UploadFile,
)
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from diffmark import __version__
from diffmark.images import ImageError
from diffmark.registry import Registry
from diffmark.registry.access import ROLES
from diffmark.registry.errors import NotPermitted, RegistryError
from diffmark.server.batching import OverloadError
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
from diffmark.server.page import add_page
from diffmark.server.public import Public, network
from diffmark.server.public_routes import public_caller, public_routes, well_known
from diffmark.server.reference import add_reference
from diffmark.server.resolver import resolver
from diffmark.server.service import Service
from diffmark.server.tokens import Token
from diffmark.verdict import PublicKeys

log = logging.getLogger("diffmark.server")
RETRY_AFTER = "2"
SPARE_THREADS = 40  # for what is answered at once


def create_app(service: Service, public: Public | None = None) -> FastAPI:
    """The application; it closes the service when it stops. `public` adds the verifier that needs no token."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> Any:
        # A request that waits for its reading holds a thread: all that are let in have one, and some are left.
        to_thread.current_default_thread_limiter().total_tokens = service.limits.requests + SPARE_THREADS
        yield
        if public is not None:
            public.close()
        service.close()

    app = FastAPI(
        title="DiffMark",
        version=__version__,
        description="Reads marks from images and names the accounts they were issued to.",
        lifespan=lifespan,
        docs_url=None,  # those of FastAPI load scripts from elsewhere
        redoc_url=None,
    )

    def slow_down(wait: float, what: str = "too many requests") -> None:
        if wait:
            raise HTTPException(429, what, {"Retry-After": str(int(wait) + 1)})

    def allowed(*roles: str) -> Callable[..., Token]:
        """A dependency: the caller's token, live, of one of these roles, within its rate."""

        def check(request: Request, authorization: Annotated[str, Header()] = "") -> Token:
            asking = network(request.client.host if request.client else "unknown")
            slow_down(service.addresses.wait(f"network {asking}"))
            kind, _, text = authorization.partition(" ")
            token = service.tokens.find(text) if kind.lower() == "bearer" else None
            if token is None:
                raise HTTPException(401, "a live token is needed", {"WWW-Authenticate": "Bearer"})
            if token.role not in roles:
                raise HTTPException(
                    403, f"this needs the role {' or '.join(roles)}, the token has {token.role}"
                )
            slow_down(service.limiter.wait(token.id))
            return token

        return check

    Reader = Annotated[Token, Depends(allowed("auditor", "operator"))]
    Auditor = Annotated[Token, Depends(allowed("auditor"))]
    Operator = Annotated[Token, Depends(allowed("operator"))]
    Anyone = Annotated[Token, Depends(allowed("operator", "auditor", "investigator"))]

    active = 0

    @app.middleware("http")
    async def trace(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """A request id, a bound on the body, a count and one log line without contents."""
        nonlocal active
        number, start = request.headers.get("x-request-id") or uuid.uuid4().hex, time.perf_counter()
        length = request.headers.get("content-length", "0")
        if "transfer-encoding" in request.headers:  # a body without a length could fill the disk
            response: Response = JSONResponse({"detail": "a request states its Content-Length"}, 411)
        elif not length.isdigit() or int(length) > service.limits.upload_bytes:
            limit = service.limits.upload_bytes
            response = JSONResponse({"detail": f"at most {limit:,} bytes a request"}, 413)
        elif active >= service.limits.requests and request.url.path.startswith(("/v1", "/public")):
            response = await overloaded(request, OverloadError(f"{active} requests are being served already"))
        else:
            active += 1
            try:
                response = await call_next(request)
            finally:
                active -= 1
        response.headers["X-Request-Id"] = number[:64]
        seconds = time.perf_counter() - start
        route = getattr(request.scope.get("route"), "path", "none")
        service.metrics.requests.labels(route, response.status_code).inc()
        service.metrics.seconds.labels(route).observe(seconds)
        line = {"id": number[:64], "method": request.method, "route": route, "status": response.status_code}
        log.info(json.dumps(line | {"seconds": round(seconds, 4)}))
        return response

    @app.exception_handler(ImageError)
    async def bad_image(request: Request, error: ImageError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(RegistryError)
    async def bad_call(request: Request, error: RegistryError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 403 if isinstance(error, NotPermitted) else 409)

    @app.exception_handler(OverloadError)
    async def overloaded(request: Request, error: OverloadError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": RETRY_AFTER})

    @app.exception_handler(TimeoutError)
    async def too_slow(request: Request, error: TimeoutError) -> JSONResponse:
        return JSONResponse({"detail": "the request took too long"}, 504, {"Retry-After": RETRY_AFTER})

    if public is not None:
        app.include_router(public_routes(public))
    if service.signing is not None:
        app.include_router(well_known(PublicKeys(service.signing.public)))
    add_page(app, "/auditor" if public is not None else "/")
    add_reference(app)

    @app.get("/health", tags=["state"])
    async def health() -> Health:
        """The process is alive. No token needed."""
        return Health(status="ok", version=__version__)

    @app.get("/ready", tags=["state"])
    def ready() -> Health:
        """Database and decoder answer. No token needed."""
        try:
            service.check()
        except Exception as error:  # whatever it is, traffic should go elsewhere
            raise HTTPException(
                503, f"not ready: {type(error).__name__}", {"Retry-After": RETRY_AFTER}
            ) from error
        return Health(status="ready", version=__version__)

    @app.get("/metrics", tags=["state"])
    def metrics() -> Response:
        """Prometheus."""
        service.metrics.waiting.set(service.reading.waiting)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/me", tags=["state"])
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

    @app.post("/v1/detect", tags=["images"])
    def detect(
        token: Reader,
        images: Annotated[list[UploadFile], File(description="One or several images.")],
        secret: Annotated[str | None, Form(description="Hex of a secret to look for.")] = None,
    ) -> list[Found]:
        """What each image carries."""
        answers = [Found.of(found) for found in service.detect(_uploads(images, token), secret)]
        return answers if token.role == "auditor" else [coarse(answer) for answer in answers]

    @app.post("/v1/identify", tags=["images"])
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
        found = service.detect(_uploads(images, token))
        registry = _registry(token)
        if together:
            return [Answer.of(registry.identify_together(found, top, reason=reason), *found)]
        answers = registry.identify_many(found, top, reason=reason)
        return [Answer.of(answer, one) for answer, one in zip(answers, found, strict=True)]

    @app.post("/v1/examine", tags=["images"])
    def examine(
        token: Reader,
        image: Annotated[UploadFile, File(description="The image.")],
        reason: Annotated[str, Form(max_length=500, description="Why; goes into the audit log.")] = "",
        top: Annotated[int, Form(ge=1, le=100)] = 5,
    ) -> Examination:
        """All there is to say about one image: its bits, whose key it carries, where in it the mark is."""
        (upload,) = _uploads([image], token)
        return service.examine(upload, token, reason, top)

    @app.post("/v1/generate", tags=["images"], response_class=Response)
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

    @app.post("/v1/embed", tags=["images"], response_class=Response)
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
        (upload,) = _uploads([image])
        if secret is not None and principal is None:
            return Response(service.embed(upload, secret, quality, strength), media_type="image/png")
        if principal is None or secret is not None:
            raise HTTPException(422, "give either a secret or a principal")
        registry = _registry(token)
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

    @app.post("/v1/keys", tags=["keys"], status_code=201)
    def issue(token: Operator, request: KeyRequest) -> KeyOut:
        """A new key for a principal."""
        key = _registry(token).issue(request.principal, context=request.context, reason=request.reason)
        return KeyOut(key=key.hex, principal=key.principal)

    @app.delete("/v1/keys/{key}", tags=["keys"], status_code=204)
    def revoke(
        token: Operator,
        key: Annotated[str, Path(pattern="^[0-9a-fA-F]{16}$")],
        reason: Annotated[str, Query(max_length=500)] = "",
    ) -> None:
        """Revoke a key. Images that carry it are still identified."""
        _registry(token).revoke(key=key, reason=reason)

    @app.get("/v1/audit", tags=["audit"])
    def audit(token: Anyone, last: Annotated[int, Query(ge=1, le=1000)] = 20) -> list[LogEntry]:
        """The latest entries of the audit log."""
        return [LogEntry.of(entry) for entry in _registry(token).log(last)]

    app.include_router(resolver(service, Depends(allowed("auditor")), Depends(allowed(*ROLES))))
    if public is not None:
        caller = Depends(public_caller(public))
        app.include_router(resolver(service, caller, caller, "/public", coarse=True))

    def _registry(token: Token) -> Registry:
        return service.registry_of(token.name)

    def _uploads(files: list[UploadFile], token: Token | None = None) -> list[tuple[str, bytes]]:
        """Names and contents; too many or too large ones are refused before they are decoded.

        With a token they are questions, and go off its budget.
        """
        if len(files) > service.limits.images:
            raise HTTPException(413, f"at most {service.limits.images} images a request, got {len(files)}")
        contents = [
            (file.filename or "image", file.file.read(service.limits.upload_bytes + 1)) for file in files
        ]
        if sum(len(data) for _, data in contents) > service.limits.upload_bytes:
            raise HTTPException(413, f"at most {service.limits.upload_bytes:,} bytes a request")
        if token is not None:
            slow_down(
                service.spend(token, len(contents)), "the token has asked about too many pictures today"
            )
        return contents

    return app
