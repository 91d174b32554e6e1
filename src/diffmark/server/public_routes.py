"""Routes of the public verifier; none needs a token, all are limited by the network that asks."""

import html  # annotations stay unquoted here: FastAPI reads those of the routes, which name local types
import json
import threading
import time
from collections.abc import Callable
from importlib import resources
from typing import Annotated

from fastapi import (
    APIRouter,
    Depends,
    File,
    Form,
    Header,
    HTTPException,
    Query,
    Request,
    Response,
    UploadFile,
)
from fastapi.responses import HTMLResponse

from diffmark.records import append_record
from diffmark.server.page import HEADERS
from diffmark.server.public import Feedback, Public, PublicAnswer, network
from diffmark.server.tokens import Token
from diffmark.server.words import LANGUAGES, Words, chosen
from diffmark.verdict import BadSignature, PublicKeys, check
from diffmark.verdict.sheet import sheet

PAGE_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": HEADERS["Content-Security-Policy"].replace(
        "form-action 'none'", "form-action 'self'"
    ),
    "Vary": "Accept-Language",
}
SHEET_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
}
FEEDBACK_BYTES = 10_000_000  # of the file that feedback is kept in


def public_routes(public: Public) -> APIRouter:
    """The page, its API, and the public keys of signed verdicts."""
    router = APIRouter(tags=["public"])
    template = (resources.files("diffmark.server") / "static" / "public.html").read_text("utf-8")
    writing = threading.Lock()

    def words_of(
        lang: Annotated[str | None, Query(max_length=10)] = None,
        accept_language: Annotated[str, Header()] = "",
    ) -> Words:
        return chosen(lang, accept_language)

    def limited(request: Request) -> None:
        """A place within the rate of the caller's network; the address itself is kept nowhere else."""
        wait = public.limiter.wait(network(request.client.host if request.client else "unknown"))
        if wait:
            raise HTTPException(429, "too many questions", {"Retry-After": str(int(wait) + 1)})

    Language = Annotated[Words, Depends(words_of)]
    Limited = [Depends(limited)]

    @router.get("/", include_in_schema=False)
    def page(words: Language) -> HTMLResponse:
        links = "".join(
            f'<a href="?lang={code}" lang="{code}" hreflang="{code}"'
            f"{' aria-current=true' if code == words.language else ''}>{name}</a>"
            for code, name in LANGUAGES.items()
        )
        texts = json.dumps(words.texts, ensure_ascii=False).replace("<", "\\u003c")
        filled = template.replace("{t:language}", words.language)
        filled = words.fill(filled.replace("{languages}", links)).replace("{words}", texts)
        return HTMLResponse(filled, headers=PAGE_HEADERS | {"Content-Language": words.language})

    @router.post("/public/verify", dependencies=Limited)
    def verify(
        words: Language,
        image: Annotated[UploadFile | None, File(description="The picture; or give its address.")] = None,
        url: Annotated[str | None, Form(max_length=2000, description="Address of the picture.")] = None,
    ) -> PublicAnswer:
        """What a picture says of its origin. Nothing of it is kept."""
        if (image is None) == (not url):
            raise HTTPException(422, "give either an image or a url")
        if image is not None:
            data = image.file.read(public.service.limits.upload_bytes + 1)
            if len(data) > public.service.limits.upload_bytes:
                raise HTTPException(413, f"at most {public.service.limits.upload_bytes:,} bytes")
        else:
            data = public.download(url or "")
        return public.verify(data, words)

    @router.post("/public/feedback", dependencies=Limited, status_code=201)
    def feedback(given: Feedback) -> dict[str, str]:
        """Keep what somebody thinks of an answer, without who it was."""
        with writing:
            path = public.feedback
            if path.exists() and path.stat().st_size > FEEDBACK_BYTES:
                raise HTTPException(503, "no more feedback is taken for now", {"Retry-After": "3600"})
            append_record(path, {"time": time.strftime("%Y-%m-%d", time.gmtime()), **given.model_dump()})
        return {"status": "kept"}

    @router.post("/public/sheet", dependencies=Limited, response_class=HTMLResponse)
    def page_to_print(words: Language, verdict: Annotated[str, Form(max_length=65_536)]) -> HTMLResponse:
        """A signed verdict of this service as a page to print."""
        if public.signing is None:
            raise HTTPException(404, "verdicts are not signed here")
        try:
            statement, key = check(verdict, PublicKeys(public.signing.public))
        except BadSignature as error:
            raise HTTPException(422, html.escape(str(error))) from error
        return HTMLResponse(sheet(verdict, statement, key, words.language), headers=SHEET_HEADERS)

    return router


def public_caller(public: Public) -> Callable[[Request], Token]:
    """A dependency of the public resolver: the rate of a network, and the service itself as who asks."""

    def caller(request: Request) -> Token:
        wait = public.limiter.wait(network(request.client.host if request.client else "unknown"))
        if wait:
            raise HTTPException(429, "too many questions", {"Retry-After": str(int(wait) + 1)})
        return Token(0, public.service.registry.access.actor, "auditor", 0, 0, None)

    return caller


def well_known(public_keys: PublicKeys) -> APIRouter:
    """The public keys of signed verdicts."""
    router = APIRouter(tags=["state"])

    @router.get("/.well-known/jwks.json")
    def keys() -> Response:
        """The keys that verdicts are checked with, as a JWK set. No token needed."""
        return Response(json.dumps(public_keys.to_jwks()), media_type="application/jwk-set+json")

    return router
