"""Rules and limits of names, with the API server's messages."""

from __future__ import annotations

import re
from functools import lru_cache

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

MAX_SUBDOMAIN = 253
MAX_LABEL = 63
MAX_DRIVER = 63
MAX_DOMAIN = 63
MAX_IDENTIFIER = 32

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_C_RULE = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or "
    "'_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_QUALIFIED_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def subdomain(value: str) -> list[str]:
    """Returns the errors of ``value`` as a DNS subdomain (RFC 1123); empty if it is valid."""
    out = [] if _size(value) <= MAX_SUBDOMAIN else [f"must be no more than {MAX_SUBDOMAIN} characters"]
    return out if SUBDOMAIN.fullmatch(value) else [*out, _SUBDOMAIN_RULE]


def label(value: str) -> list[str]:
    """Returns the errors of ``value`` as a DNS label (RFC 1123)."""
    out = [] if _size(value) <= MAX_LABEL else [f"must be no more than {MAX_LABEL} characters"]
    if LABEL.fullmatch(value):
        return out
    return [*out, "must not contain dots" if SUBDOMAIN.fullmatch(value) else _LABEL_RULE]


@lru_cache(maxsize=4096)
def is_label(value: str) -> bool:
    """Returns whether ``value`` is a valid DNS label. Cached, for names that occur repeatedly."""
    return not label(value)


def _size(value: str) -> int:
    """Returns the size in bytes. The limits are in bytes, although the messages mention characters."""
    return len(value.encode(errors="surrogatepass"))


def c_identifier(value: str) -> list[str]:
    return [] if C_IDENTIFIER.fullmatch(value) else [_C_RULE]


def label_value(value: str) -> list[str]:
    """Returns the errors of ``value`` as the value of a label: at most 63 bytes, may be empty."""
    out = [] if _size(value) <= MAX_LABEL else [f"must be no more than {MAX_LABEL} bytes"]
    if value and not QUALIFIED.fullmatch(value):
        out.append(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
            "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for "
            "validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
        )
    return out


def qualified(value: str) -> list[str]:
    """Returns the errors of ``value`` as a qualified name: [DNS subdomain/]name of at most 63 characters."""
    parts = value.split("/")
    if len(parts) > 2:
        return [
            "a qualified name "
            + _QUALIFIED_RULE
            + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    out = []
    if len(parts) == 2:
        if not parts[0]:
            out.append("prefix part must be non-empty")
        else:
            out += ["prefix part " + m for m in subdomain(parts[0])]
    name = parts[-1]
    if not name:
        out.append("name part must be non-empty")
    elif _size(name) > MAX_LABEL:
        out.append(f"name part must be no more than {MAX_LABEL} characters")
    if not QUALIFIED.fullmatch(name):
        out.append("name part " + _QUALIFIED_RULE)
    return out


def sanitize(text: str, limit: int = MAX_LABEL) -> str:
    """Makes a device name from any text: lower case, other characters become '-', never empty."""
    out = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return out[:limit].rstrip("-") or "device"
