"""Finds the places of parameters in a manifest, as paths for kustomize's ``replacements``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .source import JSON, PARAMETER, SourceError

_DELIMITERS = '"/:-.'


@dataclass(frozen=True)
class ReplacementPath:
    """One place of a parameter.

    ``delimiter`` is empty if the parameter is the whole value; else ``index`` is the position of its part between delimiters.
    """

    parameter: str
    path: str
    delimiter: str = ""
    index: int = 0


def places(manifest: JSON) -> Iterator[ReplacementPath]:
    """Yields every place of a parameter. Raises :class:`SourceError` for a place that kustomize cannot replace."""
    for path, text in _texts(manifest, ()):
        for parameter in dict.fromkeys(PARAMETER.findall(text)):
            yield from _in_text(parameter, ".".join(path), text)


def _in_text(parameter: str, path: str, text: str) -> Iterator[ReplacementPath]:
    written = f"${{{parameter}}}"
    if text == written:
        yield ReplacementPath(parameter, path)
        return
    for delimiter in _DELIMITERS:
        parts = text.split(delimiter)
        found = [i for i, part in enumerate(parts) if part == written]
        if len(found) == text.count(written):
            for index in found:
                yield ReplacementPath(parameter, path, delimiter, index)
            return
    raise SourceError(
        f"{path}: {written} is not always between two of the characters {_DELIMITERS}, so kustomize cannot replace it"
    )


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*path, key.replace(".", "\\.")))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            name = inner.get("name", "") if isinstance(inner, dict) else ""
            by_name = name and not PARAMETER.search(name)  # a path by name fails after the name itself was replaced
            yield from _texts(inner, (*path, f"[name={name}]" if by_name else str(i)))
    elif isinstance(value, str) and PARAMETER.search(value):
        yield path, value
