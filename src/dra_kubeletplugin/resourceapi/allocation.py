"""Reads the node from a claim's allocation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = Mapping[str, Any]


def node_of(claim: JSON) -> str:
    """Returns the only node where the allocation of a ResourceClaim (v1) can be used.

    Returns "" if several nodes are possible or the claim is not allocated.
    """
    try:
        terms = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
        names = [
            f["values"][0]
            for term in terms
            for f in term.get("matchFields") or []
            if f.get("key") == "metadata.name" and f.get("operator") == "In" and len(f.get("values") or []) == 1
        ]
    except (KeyError, TypeError, AttributeError):
        return ""
    return str(names[0]) if len(terms) == len(names) == 1 else ""
