"""A gateway before an image server of any make: requests go through, images come back marked.

    DIFFMARK_UPSTREAM=http://localhost:30010 DIFFMARK_REGISTRY=sqlite:///registry.db \
        uvicorn --factory diffmark.integrations.gateway:create --port 8080

For engines that take no middleware (SGLang, HF Endpoints, hosted ones). Nobody may reach the engine but through it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from diffmark.integrations.accounts import Marker
from diffmark.integrations.openai import MarkImages

UPSTREAM = "DIFFMARK_UPSTREAM"
TIMEOUT = 600.0  # seconds: a video takes minutes
OF_A_CONNECTION = {"host", "connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer"}
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def create(
    upstream: str | None = None,
    marker: Marker | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Starlette:
    """The gateway to an address, by default that of DIFFMARK_UPSTREAM."""
    address = upstream or os.environ.get(UPSTREAM)
    if not address:
        raise ValueError(f"no server to stand before: set {UPSTREAM} to its address")
    client = httpx.AsyncClient(base_url=address, transport=transport, timeout=TIMEOUT)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    async def forward(request: Request) -> StreamingResponse:
        headers = {k: v for k, v in request.headers.items() if k not in OF_A_CONNECTION}
        asked = client.build_request(
            request.method,
            httpx.URL(request.url.path, query=request.url.query.encode()),
            headers=headers,
            content=request.stream() if request.method in ("POST", "PUT", "PATCH") else None,
        )
        answer = await client.send(asked, stream=True)
        given = {k: v for k, v in answer.headers.items() if k not in OF_A_CONNECTION}
        for name in ("content-length", "content-encoding"):
            given.pop(name, None)  # what follows is decoded
        return StreamingResponse(answer.aiter_bytes(), answer.status_code, given)

    return Starlette(
        routes=[Route("/{path:path}", forward, methods=METHODS)],
        middleware=[Middleware(MarkImages, marker=marker)],
        lifespan=lifespan,
    )
