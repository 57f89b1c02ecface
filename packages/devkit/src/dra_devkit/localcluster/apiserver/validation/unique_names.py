"""Validates the names of the items in a list: each must be a DNS label and unique."""

from __future__ import annotations

from dra_kubeletplugin.resourceapi.validation import names
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, duplicate, invalids, required


def unique_label(path: str, name: str, seen: set[str]) -> list[FieldError]:
    """Returns all errors of one name. ``seen`` contains the names of the previous items; the function adds this name."""
    if not name:
        return [required(path)]
    out = invalids(path, name, names.label(name))
    if name in seen:
        out.append(duplicate(path, name))
    seen.add(name)
    return out
