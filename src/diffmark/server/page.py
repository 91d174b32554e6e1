"""The auditor's page: static files of the package, under a content security policy that lets nothing else in."""

from __future__ import annotations

from importlib import resources
from pathlib import PurePath

from fastapi import FastAPI, HTTPException
from fastapi.responses import Response

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI, path: str = "/") -> None:
    """The auditor's page at `path` and the files of all pages under /page/."""
    folder = resources.files("diffmark.server") / "static"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if PurePath(file.name).suffix in TYPES}

    def answer(name: str) -> Response:
        return Response(files[name], media_type=TYPES[PurePath(name).suffix], headers=HEADERS)

    @app.get(path, include_in_schema=False)
    def page() -> Response:
        return answer("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, f"the page has no file {name!r}")
        return answer(name)
