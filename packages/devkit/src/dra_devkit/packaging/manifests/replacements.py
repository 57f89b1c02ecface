"""Finds the places of parameters in a manifest, as paths for kustomize's ``replacements``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

_DELIMITERS = '"/:-.'
MARKER = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class ReplacementPath:
    """One place of a parameter in an object.

    ``delimiter`` is empty if the parameter is the whole value at ``path``. Otherwise, the value is split at ``delimiter``, and ``index``
    is the position of the part that is the parameter.
    """

    parameter: str
    path: str
    delimiter: str = ""
    index: int = 0


def markers(parameters: Iterable[str]) -> dict[str, str]:
    """Returns a marker for each parameter, by name. :func:`places` finds the markers in a manifest that is rendered with them."""
    return {name: f"${{{name}}}" for name in parameters}


def places(manifest: JSON) -> Iterator[ReplacementPath]:
    """Yields every place of a parameter. Raises ``ValueError`` for a place that kustomize cannot replace.

    Args:
        manifest: an object in which the value of each parameter is its marker.
    """
    for path, text in _texts(manifest, ()):
        for parameter in dict.fromkeys(MARKER.findall(text)):
            yield from _in_text(parameter, ".".join(path), text)


def _in_text(parameter: str, path: str, text: str) -> Iterator[ReplacementPath]:
    marker = f"${{{parameter}}}"
    if text == marker:
        yield ReplacementPath(parameter, path)
        return
    for delimiter in _DELIMITERS:
        found = [i for i, part in enumerate(text.split(delimiter)) if part == marker]
        if len(found) == text.count(marker):
            yield from (ReplacementPath(parameter, path, delimiter, index) for index in found)
            return
    raise ValueError(
        f"{path}: none of the characters {_DELIMITERS} alone separates each {marker} from the rest of the text, so kustomize cannot "
        "replace it"
    )


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*path, key.replace(".", "\\.")))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            name = inner.get("name", "") if isinstance(inner, dict) else ""
            by_name = name and not MARKER.search(name)  # a path with a name fails after the name itself was replaced
            yield from _texts(inner, (*path, f"[name={name}]" if by_name else str(i)))
    elif isinstance(value, str) and MARKER.search(value):
        yield path, value
