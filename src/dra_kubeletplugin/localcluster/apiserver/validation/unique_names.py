"""Validates the names of a list's items: each must be a DNS label and unique."""

from __future__ import annotations

from ....resourceapi.validation import names
from ....resourceapi.validation.field_errors import FieldError, duplicate, invalids, required


def unique_label(path: str, name: str, seen: set[str]) -> list[FieldError]:
    """Returns all errors of one name, and adds the name to ``seen``, which contains the names of the items before."""
    if not name:
        return [required(path)]
    out = invalids(path, name, names.label(name))
    if name in seen:
        out.append(duplicate(path, name))
    seen.add(name)
    return out
