"""The headline of a pod that can never fit says so, and no innocent pod is named."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.json_types import JSON
from dra_tools import ReasonKind
from dra_tools.commands.explain_text import text
from packages.tools.tests.objects import (
    CLASS,
    MEMORY,
    allocated_claim,
    claim,
    dra,
    explain_objects,
    gpu,
    node,
    partition,
    pod,
    pool,
)


def held(*devices: str) -> list[JSON]:
    return [allocated_claim(f"held-{d}", "a", d) for d in devices]


def test_too_few_matching_devices_are_the_headline_also_if_claims_hold_them() -> None:
    devices = [gpu("g0"), *(gpu(f"g{i}", memory="1Gi") for i in range(1, 5))]
    wants = claim("c", count=2, selectors=[{"cel": {"expression": MEMORY}}])
    found = explain_objects(node("a"), CLASS, pool("a", *devices), wants, *held("g0"), pod("c"))
    assert (
        found.summary
        == "the node has fewer than 2 devices that match request r, also when other claims release their devices, on the only node"
    )
    assert not found.changes or all("free such devices" not in c.text for c in found.changes)


def test_requests_that_never_fit_together_are_the_headline() -> None:
    requests = [{"name": n, "exactly": {"deviceClassName": "gpu"}} for n in "abc"]
    wants = dra("ResourceClaim", "c", {"devices": {"requests": requests}})
    found = explain_objects(node("a"), CLASS, pool("a", gpu("g0"), gpu("g1")), wants, *held("g0", "g1"), pod("c"))
    assert "also when other claims release their devices" in found.summary
    assert ReasonKind.HELD in found.kinds


def test_a_constraint_that_never_holds_is_the_headline_also_if_claims_hold_the_devices() -> None:
    devices = [gpu("g0", attributes={"numa": {"int": 0}}), gpu("g1", attributes={"numa": {"int": 1}})]
    wants = claim("c", [{"matchAttribute": "gpu.example.com/numa"}], count=2)
    found = explain_objects(node("a"), CLASS, pool("a", *devices), wants, *held("g0", "g1"), pod("c"))
    assert "also when other claims release their devices" in found.summary


def test_devices_that_would_suffice_without_other_claims_are_held() -> None:
    requests = [{"name": n, "exactly": {"deviceClassName": "gpu"}} for n in "ab"]
    wants = dra("ResourceClaim", "c", {"devices": {"requests": requests}})
    found = explain_objects(node("a"), CLASS, pool("a", gpu("g0"), gpu("g1")), wants, *held("g0", "g1"), pod("c"))
    assert "another claim holds it" in found.summary


# --- CPU --------------------------------------------------------------------------------------------


def running(name: str, cpu: str, owner: str = "", **spec: Any) -> JSON:
    out = pod(name=name, nodeName="a", resources={"requests": {"cpu": cpu}}, **spec)
    out["metadata"]["ownerReferences"] = [{"kind": owner, "name": "o", "uid": "o"}] if owner else []
    return out


def cpu_change(wanted: str, *pods: JSON) -> str:
    wants = pod("c", resources={"requests": {"cpu": wanted}})
    found = explain_objects(node("a"), CLASS, pool("a", gpu("g0")), claim("c"), wants, *pods)
    assert "the node has too little cpu" in found.summary
    return "\n".join(text(found, Style(coloured=False)))


@pytest.mark.parametrize(
    ("wanted", "pods"),
    [
        ("9", [running("innocent", "6")]),  # the node is too small
        ("8", [running("innocent", "3"), running("innocent-too", "3")]),  # neither is enough alone
        ("6", [running("innocent", "6", "DaemonSet")]),
        ("6", [running("innocent", "6", "Node")]),
        ("6", [running("innocent", "6", priority=1000)]),
    ],
)
def test_no_pod_is_named_whose_deletion_would_not_help(wanted: str, pods: list[JSON]) -> None:
    assert "innocent" not in cpu_change(wanted, *pods)


def test_the_smallest_pod_that_is_enough_is_named() -> None:
    shown = cpu_change("3", running("innocent", "5"), running("enough", "2"))
    assert "pod default/enough requests 2 cpu" in shown and "innocent" not in shown


# --- counters ---------------------------------------------------------------------------------------


def test_too_many_partitions_name_the_counter_set_and_the_amounts() -> None:
    sets = [{"name": "card-0", "counters": {"memory": {"value": "80Gi"}}}]
    halves = [partition(f"h{i}", "40Gi") for i in range(4)]
    for half in halves:
        half["consumesCounters"][0]["counterSet"] = "card-0"
    counters = pool("a", count=2, suffix="-sets", sharedCounters=sets)
    del counters["spec"]["devices"]
    found = explain_objects(node("a"), CLASS, pool("a", *halves, count=2), counters, claim("c", count=3), pod("c"))
    shown = " ".join(" ".join(text(found, Style(coloured=False))).split())
    assert ReasonKind.COUNTERS in found.kinds
    assert "120Gi memory needed, 80Gi left in counter set card-0" in shown
