"""Names of a list's members: a DNS label each, and none of them twice."""

from __future__ import annotations

from ....resourceapi.validation import names
from ....resourceapi.validation.field_errors import FieldError, duplicate, invalids, required


def unique_label(path: str, name: str, seen: set[str]) -> list[FieldError]:
    """Every fault of one name; ``seen`` are those before it, and gets it."""
    if not name:
        return [required(path)]
    out = invalids(path, name, names.label(name))
    if name in seen:
        out.append(duplicate(path, name))
    seen.add(name)
    return out
