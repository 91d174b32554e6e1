"""A service that answers before it is ready: alive at once, 503 until its models are loaded, then itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI

log = logging.getLogger("diffmark.server")
Scope = dict[str, Any]


class Starting:
    """An ASGI application that makes another one in a thread; `failed` is called if that cannot be made."""

    def __init__(self, build: Callable[[], FastAPI], failed: Callable[[Exception], None]) -> None:
        self._build, self._failed = build, failed
        self._app: FastAPI | None = None
        self._context: AbstractAsyncContextManager[Any] | None = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            alive = scope["path"] == "/health"
            await _answer(send, 200 if alive else 503, "ok" if alive else "loading")

    async def _live(self, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        loading = asyncio.create_task(self._load())
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        await loading  # a thread cannot be stopped: what it opens is closed
        if self._context is not None:
            await self._context.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    async def _load(self) -> None:
        try:
            app = await asyncio.to_thread(self._build)
        except Exception as error:  # whoever started the service must hear of it
            self._failed(error)
            return
        self._context = app.router.lifespan_context(app)
        await self._context.__aenter__()
        self._app = app
        log.info(json.dumps({"ready": True}))


async def _answer(send: Any, status: int, words: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"2")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"status": words}).encode()})
