"""Reads CDI spec files with the rules of the Go library, which reads every file as YAML.

A file may contain comments and several documents; only the first document is used. A duplicate key is an error. Field
names match without regard to case. A number or bool is converted to text if the field is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from .directory import content_of
from .spec import SPEC_SHAPE

JSON = dict[str, Any]
_MAX_VALUES = 100_000  # values of a document with its aliases expanded; _MAX_EXPANSION limits a larger document
_MAX_EXPANSION = 10  # expanded values for each value in the file


class SpecFileError(ValueError):
    """The file has no valid spec. The text is that of the Go library, shortened."""


class _Strict(yaml.SafeLoader):
    """YAML as Go reads it: no timestamps, no base-60 numbers, no duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise SpecFileError(
                        f"error converting YAML to JSON: yaml: unmarshal errors: line {key_node.start_mark.line + 1}: "
                        f'key "{key}" already set in map'
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


_Strict.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in found if tag not in {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int"}
    ]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Strict.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)


def read_spec(path: Path) -> JSON:
    """Reads the spec of a file. Returns it with the field names of the specification.

    Raises :class:`SpecFileError` if the file has no valid spec, and ``OSError``.
    """
    try:
        found = parse(content_of(str(path)).decode(errors="replace"))
    except SpecFileError:
        raise
    except ValueError as e:
        raise SpecFileError(str(e)) from None
    if found is None:
        raise SpecFileError("no Spec data")
    if not isinstance(found, dict):
        raise SpecFileError(f"error unmarshaling JSON: cannot unmarshal {type(found).__name__} into a spec")
    named: JSON = _named(found, SPEC_SHAPE)
    return named


def parse(text: str) -> Any:
    """Parses a file's text into any value. Raises :class:`SpecFileError`."""
    try:
        return _as_json(text)
    except (ValueError, RecursionError):
        return _as_yaml(text)


def _as_json(text: str) -> Any:
    """Parses plain JSON, which most files are, because that is much faster than YAML."""

    def once(pairs: list[tuple[str, Any]]) -> JSON:
        out = dict(pairs)
        if len(out) != len(pairs):
            raise ValueError("a key occurs twice")
        return out

    return json.loads(text, object_pairs_hook=once)


def _as_yaml(text: str) -> Any:
    try:
        loader = _Strict(text)
        try:
            node = loader.get_node() if loader.check_node() else None
            if node is None:
                return None
            _check_aliases(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except SpecFileError:
        raise
    except yaml.MarkedYAMLError as e:
        line = f"line {e.problem_mark.line + 1}: " if e.problem_mark else ""
        raise SpecFileError(f"error converting YAML to JSON: yaml: {line}{e.problem}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as e:
        raise SpecFileError(f"error converting YAML to JSON: yaml: {e}") from None


def _check_aliases(node: yaml.Node) -> None:
    """Rejects aliases that expand beyond memory or contain themselves. Raises :class:`SpecFileError`."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0  # being computed: a node that contains itself still has 0 when it is reached again
            inner = node.value if isinstance(node, yaml.CollectionNode) else ()
            parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
            sizes[id(node)] = 1 + sum(map(size, parts))
        elif not sizes[id(node)]:
            raise SpecFileError("error converting YAML to JSON: yaml: an anchor's value contains itself")
        return sizes[id(node)]

    if size(node) > _MAX_VALUES and len(sizes) * _MAX_EXPANSION < sizes[id(node)]:
        raise SpecFileError("error converting YAML to JSON: yaml: document contains excessive aliasing")


def _named(value: Any, shape: Any) -> Any:
    """Returns ``value`` with the field names of ``shape``. Converts a value to text if ``shape`` requires text.

    Unknown fields stay unchanged.
    """
    if isinstance(shape, dict) and isinstance(value, dict):
        known = {name.lower(): name for name in shape}
        out: JSON = {}
        for key, inner in value.items():
            name = str(key) if key in shape else known.get(str(key).lower(), str(key))
            out[name] = _named(inner, shape.get(name))
        return out
    if isinstance(shape, list) and isinstance(value, list):
        return [_named(item, shape[0]) for item in value]
    if shape == "m" and isinstance(value, dict):
        return {_text(k): _text(v) for k, v in value.items()}
    return _text(value) if shape == "s" else value


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e21 else repr(value)
    return str(value) if isinstance(value, int) else value
