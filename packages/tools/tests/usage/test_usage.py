"""The use of devices is counted from slices and claims."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.base.json_types import JSON
from dra_tools.usage.details import sections
from dra_tools.usage.rows import DeviceUse, HealthRow, Occupancy, Overview, counted
from dra_tools.usage.usage import UsageResult, count_usage

DRIVER = "toy.example.com"

A = "resource.kubernetes.io/"


def slice_of(node: str, devices: list[JSON], *, pool: str = "", generation: int = 1, of: int = 1, **spec: Any) -> JSON:
    listed = {"driver": DRIVER, "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": of}}
    where = {"nodeName": node} if node else {}
    meta = {"name": f"s-{pool or node}-{generation}-{len(devices)}"}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta,
        "spec": {**listed, **where, "devices": devices, **spec},
    }  # fmt: skip


def claim(name: str, *devices: tuple[str, str], pods: tuple[str, ...] = (), **result: Any) -> JSON:
    results = [{"driver": DRIVER, "pool": p, "device": d, "request": "r", **result} for p, d in devices]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": p, "uid": p} for p in pods],
    }
    meta = {"name": name, "namespace": "ml"}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": {}, "status": status,
    }  # fmt: skip


def counters(counter_set: str, **amounts: str) -> list[JSON]:
    return [{"counterSet": counter_set, "counters": {n: {"value": v} for n, v in amounts.items()}}]


NAMES = st.sampled_from([f"d{i}" for i in range(5)])

SLICES = st.lists(
    st.builds(
        lambda node, pool, generation, names: slice_of(
            node, [{"name": n} for n in names], pool=pool, generation=generation
        ),
        st.sampled_from(["n1", "n2"]),
        st.sampled_from(["p1", "p2", "p3"]),
        st.integers(0, 2),
        st.lists(NAMES, max_size=4),
    ),
    max_size=8,
)

CLAIMS = st.lists(st.lists(st.tuples(st.sampled_from(["p1", "p2", "p9"]), NAMES), max_size=3), max_size=6)


@given(slices=SLICES, allocated=CLAIMS)
def test_each_published_device_is_one_row_and_its_holders_are_the_allocations(
    slices: list[JSON], allocated: list[list[tuple[str, str]]]
) -> None:
    claims = [claim(f"c{i}", *devices, pods=(f"pod-{i}",)) for i, devices in enumerate(allocated)]
    found = count_usage(slices, claims)
    newest = {s["spec"]["pool"]["name"]: 0 for s in slices}
    for s in slices:
        newest[s["spec"]["pool"]["name"]] = max(newest[s["spec"]["pool"]["name"]], s["spec"]["pool"]["generation"])
    published = {
        (s["spec"]["pool"]["name"], d["name"])
        for s in slices
        if s["spec"]["pool"]["generation"] == newest[s["spec"]["pool"]["name"]]
        for d in s["spec"]["devices"]
    }
    held = [(f"ml/c{i}", pool, device) for i, devices in enumerate(allocated) for pool, device in devices]
    rows = Counter((r.pool, r.name) for r in found.devices)
    assert rows == Counter(published | {(pool, device) for _, pool, device in held})
    assert Counter((h.claim, r.pool, r.name) for r in found.devices for h in r.holders) == Counter(held)
    names: dict[str, list[list[str]]] = {}  # per pool: the devices of each slice of the newest generation
    for s in slices:
        if s["spec"]["pool"]["generation"] == newest[s["spec"]["pool"]["name"]]:
            names.setdefault(s["spec"]["pool"]["name"], []).append([d["name"] for d in s["spec"]["devices"]])
    for row in found.devices:
        if (row.pool, row.name) not in published:
            assert row.use in {DeviceUse.VANISHED, DeviceUse.HELD}
        elif row.holders:
            assert row.use is DeviceUse.HELD
        else:
            (first, *others) = names[row.pool]
            valid = not others and len(set(first)) == len(first)  # The pool declares one slice.
            assert row.use is (DeviceUse.FREE if valid else DeviceUse.UNAVAILABLE)


def test_a_partition_is_blocked_while_others_hold_its_counters() -> None:
    shared = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    parts = [{"name": f"half-{i}", "consumesCounters": counters("gpu-0", memory="40Gi")} for i in range(2)]
    complete = {"name": "whole", "consumesCounters": counters("gpu-0", memory="80Gi")}
    slices = [slice_of("n1", [*parts, complete], of=2), slice_of("", [], pool="n1", of=2, sharedCounters=shared)]
    found = count_usage(slices, [claim("c", ("n1", "half-0"))])
    assert {r.name: r.use for r in found.devices} == {
        "half-0": DeviceUse.HELD,
        "half-1": DeviceUse.FREE,
        "whole": DeviceUse.BLOCKED,
    }
    (counted,) = found.sets
    assert (counted.node, counted.meters[0].used, counted.meters[0].total, counted.meters[0].share) == (
        "n1", "40Gi", "80Gi", 0.5,
    )  # fmt: skip
    admin = count_usage(slices, [claim("c", ("n1", "half-0"), adminAccess=True)])
    assert {r.name: r.use for r in admin.devices}["whole"] is DeviceUse.FREE
    assert admin.devices[0].holders[0].admin


def test_a_shared_device_shows_the_used_part_of_its_capacity() -> None:
    device = {"name": "d", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    claims = [claim(f"c{i}", ("n1", "d"), shareID=str(i), consumedCapacity={"memory": "20Gi"}) for i in range(3)]
    (row,) = count_usage([slice_of("n1", [device])], claims).devices
    assert (row.use, row.meters[0].used, row.meters[0].share) == (DeviceUse.SHARED, "60Gi", 0.75)
    assert row.holders[0].amounts == {"memory": "20Gi"}


def test_root_and_numa_node_are_found_by_standard_and_driver_specific_names() -> None:
    standard = {A + "pcieRoot": {"string": "pci0000:17"}, A + "numaNode": {"int": 1}}
    listed = {A + "numaNode": {"ints": [0, 1]}}
    own = {"gpu.example.com/pcie_root": {"string": "r"}, "numa": {"int": 0}}
    rows = count_usage(
        [slice_of("n", [{"name": str(i), "attributes": a} for i, a in enumerate((standard, listed, own))])], []
    )
    assert [(r.root, r.numa) for r in rows.devices] == [("pci0000:17", "1"), ("", "0, 1"), ("r", "0")]


def test_taints_and_the_device_status_of_claims_are_reported() -> None:
    taints = [{"key": "a.example.com/sick", "value": "ecc", "effect": "NoExecute"}, {"key": "b", "effect": "None"}]
    held = claim("c", ("n1", "d"), bindingConditions=["Ready"], pods=("p",))
    held["status"]["devices"] = [
        {
            "driver": DRIVER, "pool": "n1", "device": "d", "networkData": {"interfaceName": "eth1", "ips": ["10.0.0.1/24"]},
            "conditions": [{"type": "Link", "status": "False", "reason": "Down", "message": "no\ncarrier"}],
        }
    ]  # fmt: skip
    (row,) = count_usage([slice_of("n1", [{"name": "d", "taints": taints}])], [held]).devices
    assert (row.health, row.taints) == (HealthRow.TAINTED, ("a.example.com/sick=ecc:NoExecute", "b:None"))
    assert row.holders[0].conditions == ("Link is False: Down: no carrier", "Ready is awaited")
    assert (row.holders[0].network, row.holders[0].pods) == ("eth1 10.0.0.1/24", ("ml/p",))


@pytest.mark.parametrize("corrupt", [
    lambda s: s["spec"].pop("pool"), lambda s: s["spec"].update(devices=[{"name": "d", "capacity": {"m": {"value": "lots"}}}]),
    lambda s: s["spec"].update(devices=["d"]), lambda s: s.update(spec=None),
])  # fmt: skip
def test_only_a_malformed_slice_is_reported_and_omitted(corrupt: Any) -> None:
    malformed = slice_of("n2", [{"name": "d"}])
    corrupt(malformed)
    found = count_usage(
        [malformed, slice_of("n1", [{"name": "d"}])], [{"metadata": {"name": "c"}, "status": "malformed"}]
    )
    assert [r.node for r in found.devices] == ["n1"]
    assert [n.partition(" cannot be read, and is left out: ")[0] for n in found.notes] == [
        "claim c",
        "slice s-n2-1-1",
    ]


def cards(*held: str) -> UsageResult:
    """Counts four cards with a whole card, two halves and four quarters each, of which claims hold some devices."""
    slots = {f"slot-{i}": {"value": "1"} for i in range(4)}
    sets = [{"name": f"card-{n}", "counters": {"memory": {"value": "64Gi"}, **slots}} for n in range(4)]
    devices = [
        {
            "name": f"card-{n}{part}",
            "consumesCounters": counters(f"card-{n}", memory=f"{16 * len(used)}Gi", **{f"slot-{i}": "1" for i in used}),
        }
        for n in range(4)
        for part, used in [
            ("", range(4)),
            *((f"-half-{i}", range(2 * i, 2 * i + 2)) for i in range(2)),
            *((f"-quarter-{i}", range(i, i + 1)) for i in range(4)),
        ]
    ]
    slices = [slice_of("n1", devices, of=2), slice_of("", [], pool="n1", of=2, sharedCounters=sets)]
    return count_usage(slices, [claim(f"c{i}", ("n1", name)) for i, name in enumerate(held)])


def test_occupancy_counts_cards_and_not_their_possible_partitions() -> None:
    found = cards("card-0", "card-1-half-0")
    count = counted(found.devices, found.sets)
    assert count.occupancy == Occupancy(4, 1.5)
    assert (count.devices, count.held, count.free, count.blocked) == (28, 2, 2 * 7 + 3, 6 + 3)
    assert {s.name: s.share for s in found.sets} == {"card-0": 1.0, "card-1": 0.5, "card-2": 0.0, "card-3": 0.0}
    shared = {"name": "d", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    part = claim("c", ("n1", "d"), shareID="s", consumedCapacity={"memory": "20Gi"})
    mixed = count_usage([slice_of("n1", [shared, {"name": "e"}])], [part, claim("e", ("n1", "e"))])
    assert counted(mixed.devices, mixed.sets).occupancy == Occupancy(2, 1.25)


def test_a_device_that_cannot_be_allocated_has_a_reason() -> None:
    blocked = {d.name: d.why for d in cards("card-0").devices if d.use is DeviceUse.BLOCKED}
    assert set(blocked) == {
        *(f"card-0-half-{i}" for i in range(2)), *(f"card-0-quarter-{i}" for i in range(4))
    }  # fmt: skip
    assert set(blocked.values()) == {"card-0 is used by card-0 of claim ml/c0"}
    sick = [{"key": "a.example.com/sick", "value": "ecc", "effect": "NoSchedule"}, {"key": "note", "effect": "None"}]
    not_ready = [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]
    reserved = [{"key": "gpus-only", "effect": "NoSchedule"}]  # Pods that need the node tolerate this taint.
    nodes = [
        {"metadata": {"name": "n1"}, "spec": {}}, {"metadata": {"name": "n2"}, "spec": {"unschedulable": True}},
        {"metadata": {"name": "n3"}, "spec": {"taints": not_ready}}, {"metadata": {"name": "n4"}, "spec": {"taints": reserved}},
    ]  # fmt: skip
    slices = [
        slice_of("n1", [{"name": "sick", "taints": sick}, {"name": "well"}]),
        *(slice_of(f"n{i}", [{"name": f"d{i}"}]) for i in (2, 3, 4, 5)),
        slice_of("", [{"name": "wide"}], pool="wide", allNodes=True),
    ]
    found = {d.name: (d.use, d.why) for d in count_usage(slices, [], nodes=nodes).devices}
    assert found == {
        "sick": (DeviceUse.UNAVAILABLE, "taint a.example.com/sick=ecc:NoSchedule"), "well": (DeviceUse.FREE, ""),
        "d2": (DeviceUse.UNAVAILABLE, "node n2 is cordoned"), "d3": (DeviceUse.UNAVAILABLE, "node n3 is not ready"),
        "d4": (DeviceUse.FREE, ""), "d5": (DeviceUse.UNAVAILABLE, "node n5 does not exist"), "wide": (DeviceUse.FREE, ""),
    }  # fmt: skip
    assert {d.use for d in count_usage(slices[1:], []).devices} == {
        DeviceUse.FREE
    }  # Without nodes, their state is unknown.


def test_a_held_device_is_shared_only_while_a_claim_can_allocate_a_share() -> None:
    policy = {"default": "8Gi", "validRange": {"min": "8Gi"}}
    device = {
        "name": "d",
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "40Gi", "requestPolicy": policy}},
    }
    for amount, use in (("32Gi", DeviceUse.SHARED), ("33Gi", DeviceUse.HELD)):
        held = claim("c", ("n1", "d"), shareID="s", consumedCapacity={"memory": amount})
        (row,) = count_usage([slice_of("n1", [device])], [held]).devices
        assert (row.use, bool(row.why)) == (use, use is DeviceUse.HELD)
    cordoned = {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}}
    (row,) = count_usage([slice_of("n1", [device])], [claim("c", ("n1", "d"), shareID="s")], nodes=[cordoned]).devices
    assert (row.use, row.why) == (DeviceUse.HELD, "node n1 is cordoned")


def test_a_held_device_is_not_vanished_while_its_pool_is_incomplete() -> None:
    old = slice_of("n1", [{"name": "d0"}, {"name": "d1"}], pool="p")
    incomplete = slice_of("n1", [{"name": "d0"}], pool="p", generation=2, of=2)
    claims = [claim("c", ("p", "d1"))]
    uses = {d.name: d.use for d in count_usage([old, incomplete], claims).devices}
    assert uses == {"d0": DeviceUse.UNAVAILABLE, "d1": DeviceUse.HELD}
    complete = slice_of("n1", [{"name": "d0"}], pool="p", generation=2)
    assert {d.name: d.use for d in count_usage([complete], claims).devices} == {
        "d0": DeviceUse.FREE,
        "d1": DeviceUse.VANISHED,
    }


def test_a_claim_of_a_pod_group_is_reserved_for_the_group() -> None:
    group_claim = claim("c", ("n1", "d0"))
    group_claim["status"]["reservedFor"] = [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "g"}
    ]
    (row,) = count_usage([slice_of("n1", [{"name": "d0"}])], [group_claim]).devices
    assert row.holders[0].pods == ("podgroups ml/train",)
    (*_, (title, pairs)) = sections(Overview("cluster", (row,)), [row.id])
    assert (title, dict(pairs)["reserved for"]) == ("claim ml/c", "podgroups ml/train")


def rows_of(number: int) -> Overview:
    devices = [
        {"name": f"gpu-{i}", "attributes": {A + "numaNode": {"int": i % 2}, "model": {"string": "H100"}}}
        | ({"taints": [{"key": "sick", "effect": "NoSchedule"}]} if i == 3 else {})
        for i in range(number)
    ]
    return Overview(
        "cluster", count_usage([slice_of("n1", devices)], [claim("c", ("n1", "gpu-2"), pods=("p",))]).devices
    )
