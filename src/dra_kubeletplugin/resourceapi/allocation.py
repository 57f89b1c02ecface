"""Reads the node and the devices from a claim's allocation."""

from __future__ import annotations

from typing import Any

from ..base.json_types import ReadOnlyJSON


def node_of(claim: ReadOnlyJSON) -> str:
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


def results_of(claim: ReadOnlyJSON) -> list[dict[str, Any]]:
    """Returns the devices of a claim; empty without an allocation."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or [])
