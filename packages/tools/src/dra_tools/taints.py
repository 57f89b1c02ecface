"""Taints of nodes and devices, and the DeviceTaintRules that add taints to devices (KEP-5055)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from dra_devkit.scheduling.framework.device_taint_rules import tainted
from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON

BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
RULE = "deviceTaintRule"
"""The key with the name of the rule, in a taint that a rule adds. A taint in a slice never has it."""


def with_rules(slices: Iterable[JSON], rules: Iterable[ReadOnlyJSON]) -> tuple[JSON, ...]:
    """Returns the slices as the scheduler uses them: with the taints of the rules on their devices."""
    named = [
        {**r, "spec": {**r["spec"], "taint": {**r["spec"]["taint"], RULE: str(r["metadata"]["name"])}}} for r in rules
    ]
    return tuple(cast(JSON, tainted(s, named)) for s in slices) if named else tuple(slices)


def taint_text(taint: ReadOnlyJSON) -> str:
    """Formats a taint like kubectl: ``key=value:effect``."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def taint_with_rule(taint: ReadOnlyJSON) -> str:
    """Formats a taint with its rule. Two rules, or a rule and the driver, may set equal taints."""
    return taint_text(taint) + (f" of DeviceTaintRule {taint[RULE]}" if RULE in taint else "")
