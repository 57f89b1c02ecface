"""On random clusters, the use of each device agrees with the decision of the scheduler's allocator."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.scheduling.allocator.faults import AllocationError
from dra_kubeletplugin.base.json_types import JSON
from dra_tools.usage.availability import unschedulable
from dra_tools.usage.rows import TAKEN, DeviceUse, counted
from dra_tools.usage.usage import UsageCounter, count_usage
from packages.tools.tests.usage.test_usage import DRIVER, claim, counters, slice_of
from tests.helpers.allocator import Allocator

CLASSES = [{"metadata": {"name": "any"}, "spec": {}}]
POLICIES: list[JSON] = [
    {}, {"requestPolicy": {"default": "8", "validRange": {"min": "8"}}}, {"requestPolicy": {"default": "4", "validValues": ["4", "16"]}},
]  # fmt: skip
TAINTS = [
    {"key": "sick", "effect": "NoSchedule"},
    {"key": "sick", "effect": "NoExecute"},
    {"key": "note", "effect": "None"},
]


def nodes(r: Random) -> list[JSON]:
    not_ready = [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]
    specs: list[JSON] = [{}, {}, {"unschedulable": True}, {"taints": not_ready}]
    return [
        {"metadata": {"name": n, "labels": {"rack": r.choice("ab")}}, "spec": r.choice(specs)} for n in ("n1", "n2")
    ]


def device(r: Random, name: str, *, sets: bool) -> JSON:
    out: JSON = {"name": name, "attributes": {"id": {"string": name}}}
    if r.random() < 0.2:
        out["taints"] = r.sample(TAINTS, r.randint(1, 2))
    if r.random() < 0.3:
        out |= {"allowMultipleAllocations": True, "capacity": {"m": {"value": "32", **r.choice(POLICIES)}}}
    if sets and r.random() < 0.8:
        out["consumesCounters"] = counters("card", slots=r.choice("124"))
        if r.random() < 0.3:
            out["consumesCounters"][0]["compatibilityGroups"] = r.sample("xy", r.randint(1, 2))
    return out


def slices(r: Random) -> list[JSON]:
    """Returns pools of a node, of a rack and of all nodes. Some pools are incomplete or contradictory."""
    found = []
    rack = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}]}
    for number in range(r.randint(1, 3)):
        where: JSON = r.choice(
            [
                {"nodeName": "n1"},
                {"nodeName": "n2"},
                {"nodeName": "missing"},
                {"allNodes": True},
                {"nodeSelector": rack},
            ]
        )
        pool, sets = f"p{number}", r.random() < 0.5
        devices = [device(r, f"{pool}-d{i}", sets=sets) for i in range(r.randint(1, 4))]
        if r.random() < 0.1:
            devices.append(devices[0])
        of = 1 + sets + (r.random() < 0.1)
        found.append(slice_of("", devices, pool=pool, of=of, **where))
        if sets:
            card = [{"name": "card", "counters": {"slots": {"value": "4"}}}]
            other = slice_of("", [], pool=pool, of=of, sharedCounters=card, **where)
            other["metadata"]["name"] += "-counters"
            found.append(other)
    return found


def claim_for(name: str, one: JSON) -> JSON:
    """Returns a claim for only this device, with the minimum amount of its capacity that the policy allows."""
    expression = f'device.attributes["{DRIVER}"].id == "{one["name"]}"'
    exactly: JSON = {"deviceClassName": "any", "selectors": [{"cel": {"expression": expression}}]}
    if one.get("allowMultipleAllocations"):
        exactly["capacity"] = {"requests": {"m": "1"}}
    return {
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


def allocation_of(one: JSON, cluster: list[JSON], held: list[JSON], places: list[JSON]) -> JSON | None:
    """Returns the allocation of a claim for the device on the first suitable node, or None."""
    allocator = Allocator(cluster, CLASSES, held)
    for place in places:
        if not unschedulable(place):
            try:
                found = allocator.allocate(place, [claim_for("next", one)])
            except AllocationError:  # the pool is contradictory
                continue
            if found:
                return found[0]
    return None


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_device_is_free_or_shared_exactly_if_the_allocator_can_allocate_it_again(seed: int) -> None:
    r = Random(seed)
    places, cluster = nodes(r), slices(r)
    devices: dict[str, Any] = {d["name"]: d for s in cluster for d in s["spec"]["devices"]}
    held: list[JSON] = []
    for number, name in enumerate(r.choices(list(devices), k=r.randint(0, 6))):  # a device may be allocated in shares
        if allocation := allocation_of(devices[name], cluster, held, places):
            held.append(claim_for(f"h{number}", devices[name]) | {"status": {"allocation": allocation}})
    if r.random() < 0.2:  # a node that became unschedulable later
        places[0]["spec"] = {"unschedulable": True}
    usage = count_usage(cluster, held, nodes=places)
    owners = {res["device"] for c in held for res in c["status"]["allocation"]["devices"]["results"]}
    assert {d.name for d in usage.devices} == devices.keys()
    for row in usage.devices:
        can_be_allocated = allocation_of(devices[row.name], cluster, held, places) is not None
        assert can_be_allocated == (row.use in {DeviceUse.FREE, DeviceUse.SHARED}), row
        assert (row.name in owners) == (row.use in TAKEN), row
        assert can_be_allocated != bool(row.why), row
    count = counted(usage.devices, usage.sets)
    assert count.free + count.held + count.blocked + count.unavailable == count.devices
    assert 0 <= count.occupancy.used <= count.occupancy.cards


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_tally_after_changes_of_nodes_slices_and_claims_equals_a_new_count(seed: int) -> None:
    r = Random(seed)
    first, cluster = nodes(r), slices(r)
    names = [(s["spec"]["pool"]["name"], d["name"]) for s in cluster for d in s["spec"]["devices"]]
    counter = UsageCounter()
    for _ in range(3):
        held = [claim(f"c{i}", place) for i, place in enumerate(r.sample(names, r.randint(0, len(names))))]
        places = r.choice([first, nodes(r), None])
        shown = r.sample(cluster, r.randint(1, len(cluster)))
        assert counter.tally(shown, held, nodes=places) == count_usage(shown, held, nodes=places)


def test_a_claim_with_admin_access_does_not_hold_its_device() -> None:
    found = count_usage([slice_of("n1", [{"name": "d"}])], [claim("c", ("n1", "d"), adminAccess=True)])
    assert [d.use for d in found.devices] == [DeviceUse.FREE]
