"""Reads the values of options from flags and environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field
from typing import Any

from .values import OptionFault


def values_of(
    options: Iterable[Field[Any]], given: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[OptionFault]]:
    """Returns the values that are set, by name, and a sentence for each value that cannot be parsed."""
    values: dict[str, Any] = {}
    faults: list[OptionFault] = []
    for f in options:
        raw = given.get(f.name)
        source = f.metadata["flag"]
        if raw is None and environ.get(f.metadata["env"]):
            raw, source = environ[f.metadata["env"]], f.metadata["env"]
        if raw is None:
            continue
        try:
            if isinstance(raw, str):
                _check_utf8(raw)
            values[f.name] = f.metadata["parse"](raw) if isinstance(raw, str) else raw
        except ValueError as e:
            faults.append(OptionFault.of(source, f.metadata["env"], f"{raw!r} is {e}"))
    return values, faults


def _check_utf8(text: str) -> None:
    """Raises ``ValueError`` for bytes that are not UTF-8, which the API server, gRPC and the records reject."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("not valid UTF-8") from None
