"""Parses URLs as Go's ``url.ParseRequestURI`` does. It accepts absolute URLs, and paths that begin with a slash."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any

from .registry import FUNCTIONS, define, need
from .values import CelError, Url

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)?:")
_HOST = re.compile(r"[A-Za-z0-9!$&'()*+,;=:\[\]<>\"._~%-]|[^\x00-\x7f]")
_ESCAPED = re.compile(r"%(?![0-9A-Fa-f]{2})")
_IN_PATH = "/:@!$&'()*+,;=~-._"


def parse_url(text: str) -> Url:
    """Returns the parts of a URL.

    Raises :class:`CelError` for text that is not a URL.
    """

    def fault(why: str) -> CelError:
        return CelError(f'URL parse error during conversion from string: parse "{text}": {why}')

    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise fault("net/url: invalid control character in URL")
    if not text:
        raise fault("empty url")
    if text == "*":
        return Url("", "", "*", "")
    found = _SCHEME.match(text)
    if found and not found[1]:
        raise fault("missing protocol scheme")
    scheme = (found[1] or "").lower() if found else ""
    rest = text[found.end() :] if found else text
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme, "", "", query)
        raise fault("invalid URI for request")
    host = ""
    if scheme and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        host = authority.rpartition("@")[2]
        if not _is_host(host) or _ESCAPED.search(authority.rpartition("@")[0]):
            raise fault(f'invalid character or port in host name "{host}"')
    if bad := _ESCAPED.search(rest):
        raise fault(f'invalid URL escape "{rest[bad.start() : bad.start() + 3]}"')
    return Url(scheme, host, rest, query)


def _is_host(host: str) -> bool:
    if not all(_HOST.fullmatch(c) for c in host):
        return False
    if host.startswith("["):
        end = host.rfind("]")
        return end > 0 and _is_port(host[end + 1 :])
    if "%" in host and _ESCAPED.search(host):
        return False
    _, colon, port = host.rpartition(":")
    return not colon or _is_port(colon + port)


def _is_port(text: str) -> bool:
    return not text or (text[0] == ":" and (not text[1:] or (text[1:].isascii() and text[1:].isdigit())))


def _port(u: Url) -> str:
    if u.host.endswith("]"):
        return ""
    _, colon, port = u.host.rpartition(":")
    return port if colon and port.isdigit() else ""


def _hostname(u: Url) -> str:
    name = u.host[: -len(_port(u)) - 1] if _port(u) else u.host.removesuffix(":")
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name


def _escaped_path(u: Url) -> str:
    if re.fullmatch(r"(?:[A-Za-z0-9/:@!$&'()*+,;=~._\[\]-]|%[0-9A-Fa-f]{2})*", u.path):
        return u.path
    return urllib.parse.quote(urllib.parse.unquote_to_bytes(u.path), safe=_IN_PATH)


def _query(u: Url) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for pair in u.query.split("&"):
        if not pair or ";" in pair or _ESCAPED.search(pair):
            continue
        key, _, value = (urllib.parse.unquote_plus(p) for p in pair.partition("="))
        out.setdefault(key, []).append(value)
    return out


@define("isURL")
def is_url(a: Any) -> bool:
    text = need(a, str)
    try:
        parse_url(text)
    except CelError:
        return False
    return True


FUNCTIONS["url"] = lambda a: parse_url(need(a, str))
FUNCTIONS["getScheme"] = lambda a: need(a, Url).scheme
FUNCTIONS["getHost"] = lambda a: need(a, Url).host
FUNCTIONS["getHostname"] = lambda a: _hostname(need(a, Url))
FUNCTIONS["getPort"] = lambda a: _port(need(a, Url))
FUNCTIONS["getEscapedPath"] = lambda a: _escaped_path(need(a, Url))
FUNCTIONS["getQuery"] = lambda a: _query(need(a, Url))
