"""One object laid over another, and what has to be laid over one to make another of it.

Source: RFC 7386, JSON Merge Patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = Mapping[str, Any]


def laid_over(below: JSON, above: JSON) -> dict[str, Any]:
    """``below`` with what ``above`` gives; null takes a field away."""
    out = dict(below)
    for key, value in above.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            under = out.get(key)
            out[key] = laid_over(under if isinstance(under, Mapping) else {}, value)
        else:
            out[key] = value
    return out


def difference(before: JSON, after: JSON, kept: JSON) -> dict[str, Any]:
    """What, laid over ``before``, makes ``after`` of it; and fields that are the same, where ``kept`` has them too."""
    out: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old, keep = before.get(key), kept.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if within := difference(old, value, keep if isinstance(keep, Mapping) else {}):
                out[key] = within
        elif key not in before or old != value or key in kept:
            out[key] = value
    return out
