"""The page of a cluster: one HTML file without external parts. It fetches a view as JSON, draws it, and decides nothing.

Nothing is kept between requests, so an unused page costs nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from dra_kubeletplugin.base.http_server import pages
from dra_kubeletplugin.base.http_server.server import Request, Response

from ..usage.details import sections
from ..usage.rows import Overview
from ..usage.view import view

DATA = frozenset({"/overview.json", "/view.json", "/details.json"})
FILE = Path(__file__).with_name("page.html")


def page() -> Response:
    """Returns the page, which contains no data."""
    return pages.html(FILE.read_text(encoding="utf-8"))


def data(request: Request, found: Overview) -> Response:
    """Returns the data of one of :data:`DATA`: the view, the details of devices, or all rows."""
    if request.path == "/details.json":
        return pages.json(sections(found, request.query.get("devices", "").split()))
    content = view(found, request.query) if request.path == "/view.json" else found
    tag = f'"{hashlib.sha256(pages.encoded(replace(content, at=0.0))).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(304, headers={**pages.HEADERS, "ETag": tag})
    return pages.json(content, ETag=tag)
