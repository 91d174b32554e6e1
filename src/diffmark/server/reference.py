"""`/docs`: the OpenAPI description as one plain page that loads nothing from elsewhere."""

from __future__ import annotations

import html
import json
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from diffmark.server.page import HEADERS


def add_reference(app: FastAPI) -> None:
    """The page at /docs; the description itself is at /openapi.json."""

    @app.get("/docs", include_in_schema=False)
    def reference() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers=HEADERS)


def page(description: dict[str, Any]) -> str:
    """All routes by tag: what they do, parameters, body, answers."""
    groups: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            groups.setdefault((route.get("tags") or ["other"])[0], []).append(
                _route(path, method, route, description)
            )
    body = "".join(
        f'<section id="{html.escape(tag)}"><h2>{html.escape(tag)}</h2>{"".join(routes)}</section>'
        for tag, routes in groups.items()
    )
    info = description["info"]
    links = "".join(f'<a href="#{html.escape(tag)}">{html.escape(tag)}</a>' for tag in groups)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(info['title'])} {html.escape(info['version'])}: HTTP interface</title>"
        '<link rel="icon" href="/page/mark.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="/page/style.css"><link rel="stylesheet" href="/page/public.css"></head>'
        '<body><header class="top"><p class="brand">DiffMark</p>'
        f'<nav class="languages" aria-label="Groups">{links}</nav></header><main>'
        f"<h1>HTTP interface</h1><p>{html.escape(info.get('description', ''))} "
        'For programs: <a href="/openapi.json">openapi.json</a>. Routes under /v1 need '
        "<code>Authorization: Bearer TOKEN</code> unless they say otherwise.</p>"
        f"{body}</main></body></html>\n"
    )


def _route(path: str, method: str, route: dict[str, Any], description: dict[str, Any]) -> str:
    rows = [
        (f"{entry['name']} ({entry['in']})", entry.get("required", False), entry.get("schema", {}))
        for entry in route.get("parameters", [])
        if entry["name"] not in ("authorization", "accept-language")
    ]
    for kind, content in route.get("requestBody", {}).get("content", {}).items():
        schema = _resolved(content.get("schema", {}), description)
        required = schema.get("required", [])
        rows += [(f"{n} ({kind})", n in required, value) for n, value in schema.get("properties", {}).items()]
        if "properties" not in schema:
            rows.append((f"body ({kind})", True, schema))
    listed = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{'yes' if required else 'no'}</td>"
        f"<td>{html.escape(_said(schema))}</td></tr>"
        for name, required, schema in rows
    )
    head = '<tr><th scope="col">Parameter</th><th scope="col">Needed</th><th scope="col">What</th></tr>'
    name = html.escape(f"Parameters of {method.upper()} {path}")
    table = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">'
        f"<table><thead>{head}</thead><tbody>{listed}</tbody></table></div>"
    )
    answers = ", ".join(
        f"{status} {answer.get('description', '')}" for status, answer in route.get("responses", {}).items()
    )
    return (
        f"<article><h3><code>{method.upper()} {html.escape(path)}</code></h3>"
        f"<p>{html.escape(route.get('description') or route.get('summary') or '')}</p>"
        f"{table if rows else ''}"
        f'<p class="fine">Answers: {html.escape(answers)}.</p></article>'
    )


def _resolved(schema: dict[str, Any], description: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    return dict(description["components"]["schemas"][schema["$ref"].rpartition("/")[2]])


def _said(schema: dict[str, Any]) -> str:
    """Type, description and example of a value."""
    kinds = [schema.get("type")] + [entry.get("type") for entry in schema.get("anyOf", [])]
    kind = " or ".join(str(name) for name in kinds if name and name != "null")
    example = (schema.get("examples") or [None])[0]
    parts = [kind, schema.get("description", "")]
    parts += [f"for example {json.dumps(example, ensure_ascii=False)}"] if example is not None else []
    return "; ".join(part.rstrip(".") for part in parts if part)
