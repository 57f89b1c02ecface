"""Validates the names of images like a kubelet. Source: the grammar of https://github.com/distribution/reference."""

from __future__ import annotations

import re

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_NAME = rf"(?:{_DOMAIN}/)?{_COMPONENT}(?:/{_COMPONENT})*"
_TAIL = r"(?::[\w][\w.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
_REFERENCE = re.compile(_NAME + _TAIL, re.ASCII)
_MAX_NAME = 255  # characters of a name without its tag


def fault(image: str) -> str:
    """Returns the reason why ``image`` is not a valid image name; empty if it is valid."""
    if _REFERENCE.fullmatch(image):
        name = image.partition("@")[0]
        name = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
        return "" if len(name) <= _MAX_NAME else f"repository name must not be more than {_MAX_NAME} characters"
    if _REFERENCE.fullmatch(image.lower()):
        return "invalid reference format: repository name must be lowercase"
    return "invalid reference format"
