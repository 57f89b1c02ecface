"""Decides whether a toleration tolerates a taint: one rule for nodes and devices."""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import ReadOnlyJSON


def tolerates(toleration: ReadOnlyJSON, taint: ReadOnlyJSON) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    match toleration.get("operator") or "Equal":
        case "Equal":
            return bool((toleration.get("value") or "") == (taint.get("value") or ""))
        case "Exists":
            return True
    return False
