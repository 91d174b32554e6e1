"""The HTTP service as a FastAPI application: `create_app(Service)`.

Every route under /v1 needs a token (`Authorization: Bearer ...`) with the right role. Names of accounts leave the
service only through the registry, which writes down who asked and why.
"""

import json  # annotations stay unquoted here: FastAPI reads those of the handlers
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError
from contextlib import asynccontextmanager
from typing import Any

from anyio import to_thread
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from diffmark import __version__
from diffmark.images import ImageError
from diffmark.registry.access import ROLES
from diffmark.registry.errors import NotPermitted, RegistryError
from diffmark.server.batching import OverloadError
from diffmark.server.callers import Callers
from diffmark.server.page import add_page
from diffmark.server.public import Public
from diffmark.server.public_routes import public_caller, public_routes, well_known
from diffmark.server.reference import add_reference
from diffmark.server.resolver import resolver
from diffmark.server.routes import RETRY_AFTER, image_routes, key_routes, state_routes
from diffmark.server.service import Service
from diffmark.verdict import PublicKeys

log = logging.getLogger("diffmark.server")
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
        service.metrics.waiting.set(service.reading.waiting)
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
        return JSONResponse({"detail": str(error)}, 503, RETRY_AFTER)

    @app.exception_handler(TimeoutError)
    async def too_slow(request: Request, error: TimeoutError) -> JSONResponse:
        return JSONResponse({"detail": "the request took too long"}, 504, RETRY_AFTER)

    if public is not None:
        app.include_router(public_routes(public))
    if service.signing is not None:
        app.include_router(well_known(PublicKeys(service.signing.public)))
    add_page(app, "/auditor" if public is not None else "/")
    add_reference(app)

    callers = Callers(service)
    for routes in (state_routes, image_routes, key_routes):
        app.include_router(routes(service, callers))
    app.include_router(resolver(service, callers.one_of("auditor"), callers.one_of(*ROLES)))
    if public is not None:
        caller = Depends(public_caller(public))
        app.include_router(resolver(service, caller, caller, "/public", coarse=True))

    return app
