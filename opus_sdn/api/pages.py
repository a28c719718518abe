"""The API's own pages: `/docs`, `/redoc` and `/openapi.json`, all from local files."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from opus_sdn.api.openapi import document_of

STATIC = Path(__file__).parent / "static"
ASSETS = "/docs-assets"
# The bundles style their elements from script, which only 'unsafe-inline' styles allow, and Redoc searches in
# a worker that it makes from a blob. Scripts come from files of ours only.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self'; worker-src blob:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
_HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Opus SDN API</title>
<link rel="icon" type="image/png" href="{assets}/favicon.png">
{styles}
</head>
<body>
<div id="docs"></div>
<script src="{assets}/{bundle}"></script>
<script src="{assets}/{starter}"></script>
</body>
</html>
"""


def install(app: FastAPI) -> None:
    """Attach the pages. They are not part of the API document."""
    app.add_route("/docs", _swagger, include_in_schema=False)
    app.add_route("/redoc", _redoc, include_in_schema=False)
    app.add_route("/openapi.json", _document, include_in_schema=False)
    app.mount(ASSETS, StaticFiles(directory=STATIC))


async def _swagger(_request: Request) -> Response:
    styles = f'<link rel="stylesheet" href="{ASSETS}/swagger-ui/swagger-ui.css">'
    return _page(styles, "swagger-ui/swagger-ui-bundle.js", "docs.js")


async def _redoc(_request: Request) -> Response:
    return _page("", "redoc/redoc.standalone.js", "redoc.js")


def _page(styles: str, bundle: str, starter: str) -> Response:
    text = _PAGE.format(assets=ASSETS, styles=styles, bundle=bundle, starter=starter)
    return HTMLResponse(text, headers=_HEADERS)


async def _document(request: Request) -> Response:
    return Response(json.dumps(document_of(request.app)), media_type="application/json")
