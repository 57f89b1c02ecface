"""Reads YAML with the line of every key and item, for messages. Duplicate keys are faults, and an address is never a number.

This is not for manifests, which are read as kubectl reads them: there ``yes`` is a bool, ``0440`` is 288, and of duplicate keys
only the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import SettingsError

Place = tuple[str | int, ...]
_MAX_VALUES = 1_000_000
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]+")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


def read(path: Path) -> tuple[Any, Mapping[Place, int]]:
    """Reads a file like :func:`parse`. Raises :class:`SettingsError`, also if the file cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as e:
        raise SettingsError(f"{path} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not text in UTF-8") from None


def parse(text: str, source: str) -> tuple[Any, Mapping[Place, int]]:
    """Returns the value of a text, and the line of each place in it, counted from one.

    Every value is text, except decimal and hexadecimal integers, decimal fractions, ``true``, ``false`` and ``null``. YAML 1.1
    would read ``0000:17:00.0`` as a number with base sixty.

    Raises :class:`SettingsError` for invalid YAML; ``source`` is the name of the text in the message.
    """
    import yaml

    from . import loader, stream

    lines: dict[Place, int] = {}

    def pairs(node: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yields key, key node and value node: first the pairs that ``<<`` merges, then the mapping's own, which replace them."""
        own: dict[Any, tuple[Any, Any]] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise SettingsError(f"{source}:{line}: a key must be a word or a number")
            if key_node.tag == loader.MERGE:
                for merged in reversed(value_node.value) if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    if not isinstance(merged, yaml.MappingNode):
                        raise SettingsError(f"{source}:{line}: '<<' merges only mappings")
                    yield from pairs(merged)
                continue
            key = _scalar(key_node)
            if key in own:
                raise SettingsError(f"{source}:{line}: duplicate key {key!r}")
            own[key] = key_node, value_node
        for key, nodes in own.items():
            yield key, *nodes

    def value(node: Any, place: Place) -> Any:
        lines[place] = node.start_mark.line + 1
        if len(lines) > _MAX_VALUES:
            raise SettingsError(f"{source}:{lines[place]}: more than {_MAX_VALUES} values: write the aliases out")
        if isinstance(node, yaml.MappingNode):
            out: dict[Any, Any] = {}
            for key, key_node, value_node in pairs(node):
                out[key] = value(value_node, (*place, key))
                lines[*place, key] = key_node.start_mark.line + 1
            return out
        if isinstance(node, yaml.SequenceNode):
            return [value(item, (*place, i)) for i, item in enumerate(node.value)]
        return _scalar(node)

    try:
        roots = list(loader.composed(text))
        if len(roots) > 1:
            second = roots[1].start_mark.line + 1
            raise SettingsError(f"{source}:{second}: a second document: put everything into one document")
        return (value(roots[0], ()) if roots else None), lines
    except (yaml.YAMLError, RecursionError) as e:
        raise SettingsError(f"{source}:{stream.parse_fault(text, e)}") from None


def _scalar(node: Any) -> Any:
    text: str = node.value
    if node.style:  # quoted
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text
