"""Responses of pages for browsers: their headers, their content security policy, and which requests they reject."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection

import msgspec

from .origin import host_of, is_own_page, is_safe_host
from .server import Request, Response

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def html(text: str) -> Response:
    """Returns a page. Its policy allows only its own inline scripts and styles, and requests to this server."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, body in _INLINE.findall(text):
        allowed[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'")
    script, style = (" ".join(hashes) or "'none'" for hashes in allowed.values())
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return Response(
        200, text.encode(errors="replace"), "text/html; charset=utf-8", {**HEADERS, "Content-Security-Policy": policy}
    )


def text(message: str, status: int = 200) -> Response:
    return Response(status, message.encode(errors="replace"), "text/plain; charset=utf-8", dict(HEADERS))


def json(value: object, **headers: str) -> Response:
    """Returns a dataclass, struct or mapping as JSON."""
    return Response(200, encoded(value), headers={**HEADERS, **headers})


def encoded(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=dict)  # for mappings of other types


def rejection(
    request: Request, names: Collection[str] = (), *, writes: bool = False, has_data: bool = False
) -> Response | None:
    """Returns an error response for a request of another web page, for another host name, or with a forbidden method; else None.

    Another web page may request ``/``. If the page there contains data, another page may only have a link to it.

    Args:
        request: the request.
        names: host names of the server in addition to the machine's own.
        writes: the request must be a POST; else a GET or HEAD.
        has_data: whether the page at ``/`` contains data.
    """
    if request.method not in ({"POST"} if writes else {"GET", "HEAD"}):
        return text(f"use {'POST' if writes else 'GET'} for this path\n", 405)
    if not is_safe_host(host_of(request), names):
        host = request.headers.get("host", "")
        return text(f"the request names the host {host!r}: use the address of this server, or localhost\n", 403)
    is_open = request.path == "/" and (not has_data or request.headers.get("sec-fetch-mode") == "navigate")
    if not is_open and not is_own_page(request):
        return text("the request was rejected, because another web page made it\n", 403)
    return None
