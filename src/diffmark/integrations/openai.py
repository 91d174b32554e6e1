"""ASGI middleware that marks every image of OpenAI-compatible responses, for the account of the request's token.

    app.add_middleware(MarkImages)                                      # FastAPI, Starlette
    vllm serve Qwen/Qwen-Image --omni --middleware diffmark.integrations.openai.MarkImages

Responses of paths with /images, /videos, /chat/completions or /responses in them are marked: `b64_json`, results
of image calls, data addresses (in chat messages too), image files and ZIP archives of them, whole responses and
streams of events. What cannot be marked is not passed on, and videos are among it: the client gets an error 502.
Web sockets are not looked into.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffmark.images import ImageError
from diffmark.integrations.accounts import Marker, principal_of_token
from diffmark.integrations.pictures import mark_archive, mark_values

PATHS = (
    "/images",
    "/videos",
    "/chat/completions",
    "/responses",
)  # /images/ID/content of SGLang, /chat/completions/batch too
EVENT_STREAM = "text/event-stream"


class MarkImages:
    """Marks the images of responses. The registry is DIFFMARK_REGISTRY's unless a marker is given."""

    def __init__(
        self,
        app: ASGIApp,
        marker: Marker | None = None,
        principal_of: Callable[[Mapping[str, str]], str] = principal_of_token,
        paths: tuple[str, ...] = PATHS,
    ) -> None:
        self.app, self.marker, self.principal_of, self.paths = app, marker or Marker(), principal_of, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not any(f"{part}/" in f"{scope['path']}/" for part in self.paths):
            await self.app(scope, receive, send)
            return
        principal = self.principal_of(Headers(scope=scope))
        # A compressed response could not be read here.
        headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        response = _Response(send, lambda data: self.marker.mark(data, principal))
        try:
            await self.app({**scope, "headers": headers}, receive, response.take)
        except _UnmarkedError as error:
            if response.passing:  # part of a stream is out already: it ends here, without the unmarked rest
                raise error.__cause__ or error from None
            await _refusal(error)(scope, receive, send)


class _UnmarkedError(Exception):
    """A response that cannot be marked."""


def _refusal(error: _UnmarkedError) -> JSONResponse:
    message = f"the image of this response could not be marked: {error}"
    return JSONResponse({"error": {"message": message, "type": "unmarked_image", "code": 502}}, 502)


class _Response:
    """One response on its way out: held back until its images are marked."""

    def __init__(self, send: Send, mark: Callable[[bytes], bytes]) -> None:
        self.passing = False  # whether its start was sent on
        self._send, self._mark = send, mark
        self._start: Message = {}
        self._kind = ""
        self._body = b""

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            self._kind = (
                Headers(raw=message["headers"]).get("content-type", "").partition(";")[0].strip().lower()
            )
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            last = not message.get("more_body", False)
            if self._kind == EVENT_STREAM:
                await self._pass_events(last)
            elif last:
                await self._pass(await self._marked(self._body))
        else:
            await self._send(message)

    async def _pass(self, body: bytes) -> None:
        headers = MutableHeaders(raw=list(self._start["headers"]))
        headers["content-length"] = str(len(body))
        await self._send({**self._start, "headers": headers.raw})
        self.passing = True
        await self._send({"type": "http.response.body", "body": body})

    async def _pass_events(self, last: bool) -> None:
        """Whole events only; what is left is the beginning of the next one."""
        *events, self._body = self._body.replace(b"\r\n", b"\n").split(b"\n\n")
        if last and self._body.strip():
            events, self._body = [*events, self._body], b""
        marked = [await self._event(event) for event in events]
        if not self.passing:
            await self._send(self._start)
            self.passing = True
        body = b"".join(event + b"\n\n" for event in marked)
        if body or last:
            await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def _event(self, event: bytes) -> bytes:
        lines = event.split(b"\n")
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        if not data.startswith((b"{", b"[")) or data == b"[DONE]":
            return event
        rest = [line for line in lines if not line.startswith(b"data:")]
        return b"\n".join([*rest, b"data: " + await self._marked(data, "application/json")])

    async def _marked(self, body: bytes, kind: str | None = None) -> bytes:
        if not body:
            return body
        try:
            return await anyio.to_thread.run_sync(self._marked_as, kind or self._kind, body)
        except Exception as error:  # whatever it is: the picture stays here
            raise _UnmarkedError(str(error)) from error

    def _marked_as(self, kind: str, body: bytes) -> bytes:
        if kind.startswith("image/"):
            return self._mark(body)
        if kind == "application/zip":
            return mark_archive(body, self._mark)
        if kind.startswith("text/"):
            return mark_values(body.decode(), self._mark).encode()
        if kind == "application/json":
            found: Any = json.loads(body)
            marked = mark_values(found, self._mark)
            return body if marked == found else json.dumps(marked).encode()
        if self._start["status"] >= 400:  # an error, in whatever form
            return body
        raise ImageError(f"a response of type {kind or 'unknown'}: only pictures are marked here")
