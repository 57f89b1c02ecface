"""The status page: one HTML file without external parts. It fetches a view as JSON, draws it, and decides nothing.

Nothing is kept between requests, so an unused page costs nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import msgspec

from ..base.http_server.origin import host_of, is_own_page, is_safe_host
from ..base.http_server.server import Request, Response
from ..resourceapi.usage.details import sections
from ..resourceapi.usage.rows import Overview
from ..resourceapi.usage.view import view

DATA = frozenset({"/overview.json", "/view.json", "/details.json"})
FILE = Path(__file__).with_name("page.html")
_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def page() -> Response:
    """Returns the page, which contains no data. Its policy allows only its own script and style, and requests to this server."""
    text = FILE.read_text(encoding="utf-8")
    hashes = {kind: f"'sha256-{_digest(body)}'" for kind, body in _INLINE.findall(text)}
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return Response(200, text.encode(), "text/html; charset=utf-8", {**_HEADERS, "Content-Security-Policy": policy})


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def data(request: Request, found: Overview) -> Response:
    """Returns the data of one of :data:`DATA`: the view, the details of devices, or all rows."""
    if request.path == "/details.json":
        return _json(sections(found, request.query.get("devices", "").split()))
    content = view(found, request.query) if request.path == "/view.json" else found
    tag = f'"{hashlib.sha256(_encoded(replace(content, at=0.0))).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(304, headers={**_HEADERS, "ETag": tag})
    return _json(content, ETag=tag)


def _json(value: object, **headers: str) -> Response:
    return Response(200, _encoded(value), headers={**_HEADERS, **headers})


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=dict)  # for mappings of other types


def text(message: str, status: int = 200) -> Response:
    return Response(status, message.encode(), "text/plain; charset=utf-8", dict(_HEADERS))


def refusal(request: Request, names: Collection[str] = (), *, writes: bool = False) -> Response | None:
    """Returns an error response for a request of another web page, for another host name, or with a forbidden method; else None.

    Another web page may request ``/``, because that page contains no data.

    Args:
        request: the request.
        names: host names of the server in addition to the machine's own.
        writes: the request must be a POST; else a GET or HEAD.
    """
    if request.method not in ({"POST"} if writes else {"GET", "HEAD"}):
        return text(f"use {'POST' if writes else 'GET'} for this path\n", 405)
    if not is_safe_host(host_of(request), names):
        host = request.headers.get("host", "")
        return text(f"the request names the host {host!r}: use the address of this server, or localhost\n", 403)
    if request.path != "/" and not is_own_page(request):
        return text("the request was rejected, because another web page made it\n", 403)
    return None
