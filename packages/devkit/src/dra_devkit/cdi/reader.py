"""Reads CDI spec files with the rules of the Go library, which reads every file as YAML.

A file may contain comments and several documents; only the first document is used. A duplicate key is an error. Field
names match without regard to case. A number or bool is converted to text if the field is text.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from dra_devkit.yaml import loader
from dra_kubeletplugin.base.files import UnsuitableFileError, read_file
from dra_kubeletplugin.base.json_types import JSON

from .spec_validation import SPEC_SHAPE


class SpecFileError(ValueError):
    """The file has no valid spec. The message is the Go library's message, shortened."""


def read_spec(path: Path) -> JSON:
    """Reads the spec of a file, also through a link. Returns it with the field names of the specification.

    Raises :class:`SpecFileError` if the file has no valid spec, and ``OSError``.
    """
    try:
        found = parse(read_file(path).decode(errors="replace"))
    except SpecFileError:
        raise
    except UnsuitableFileError as e:
        raise SpecFileError(str(e.strerror)) from None
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
        first = next(loader.parts(text), None)
    except yaml.MarkedYAMLError as e:
        line = f"line {e.problem_mark.line + 1}: " if e.problem_mark else ""
        raise SpecFileError(f"error converting YAML to JSON: yaml: {line}{e.problem}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as e:
        raise SpecFileError(f"error converting YAML to JSON: yaml: {e}") from None
    for key, _, line_index in first.duplicate_keys if first else ():
        raise SpecFileError(
            f'error converting YAML to JSON: yaml: unmarshal errors: line {line_index + 1}: key "{key}" already set in map'
        )
    return first.value if first else None


def _named(value: Any, shape: Any) -> Any:
    """Returns ``value`` with the field names of ``shape``. Converts a value to text if ``shape`` requires text.

    As in Go, a field without a value is absent, and an entry without a value in a list of texts is empty. Unknown fields
    stay unchanged.
    """
    if isinstance(shape, dict) and isinstance(value, dict):
        known = {name.lower(): name for name in shape}
        out: JSON = {}
        for key, inner in value.items():
            name = str(key) if key in shape else known.get(str(key).lower(), str(key))
            if inner is not None or name not in shape:
                out[name] = _named(inner, shape.get(name))
        return out
    if isinstance(shape, list) and isinstance(value, list):
        return ["" if item is None and shape[0] == "s" else _named(item, shape[0]) for item in value]
    if shape == "m" and isinstance(value, dict):
        return {_text(k): _text(v) for k, v in value.items()}
    return _text(value) if shape == "s" else value


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    return str(value) if isinstance(value, int) else value


def _float_text(value: float) -> str:
    """Formats a number as Go does: the fewest digits, with an exponent from a million on and below 0.0001."""
    exact = Decimal(repr(value)).normalize()
    digits, exponent = len(exact.as_tuple().digits), exact.adjusted()
    if value and not -4 <= exponent < 6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - exponent, 0)}f}"
