"""Counts which claim holds which device, from slices and claims."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.cli.top import details
from dra_kubeletplugin.resourceapi.usage.rows import DeviceUse, HealthRow, Overview
from dra_kubeletplugin.resourceapi.usage.usage import UsageCounter, count_usage

JSON = dict[str, Any]

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
def test_each_device_of_each_pools_newest_slices_stands_once_and_holders_are_the_allocations(
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
    for row in found.devices:
        published_now = (row.pool, row.name) in published
        assert row.use is (
            DeviceUse.VANISHED if not published_now else DeviceUse.HELD if row.holders else DeviceUse.FREE
        )


@given(before=SLICES, after=SLICES, first=CLAIMS, then=CLAIMS)
def test_a_tally_made_after_another_is_what_it_would_be_alone(
    before: list[JSON], after: list[JSON], first: list[list[tuple[str, str]]], then: list[list[tuple[str, str]]]
) -> None:
    tallier = UsageCounter()
    tallier.tally(before, [claim(f"c{i}", *d) for i, d in enumerate(first)])
    slices, claims = [*before[:2], *after], [claim(f"c{i}", *d) for i, d in enumerate(then)]
    assert tallier.tally(slices, claims) == count_usage(slices, claims)


def test_a_partition_is_blocked_while_others_hold_the_counters_that_it_draws_from() -> None:
    shared = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    parts = [{"name": f"half-{i}", "consumesCounters": counters("gpu-0", memory="40Gi")} for i in range(2)]
    whole = {"name": "whole", "consumesCounters": counters("gpu-0", memory="80Gi")}
    slices = [slice_of("n1", [*parts, whole], of=2), slice_of("", [], pool="n1", of=2, sharedCounters=shared)]
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


def test_a_shared_device_shows_how_much_of_its_capacity_is_taken() -> None:
    device = {"name": "d", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    claims = [claim(f"c{i}", ("n1", "d"), shareID=str(i), consumedCapacity={"memory": "20Gi"}) for i in range(3)]
    (row,) = count_usage([slice_of("n1", [device])], claims).devices
    assert (row.use, row.meters[0].used, row.meters[0].share) == (DeviceUse.SHARED, "60Gi", 0.75)
    assert row.holders[0].amounts == {"memory": "20Gi"}


def test_root_and_numa_node_are_found_by_the_standard_names_and_by_a_drivers_own() -> None:
    standard = {A + "pcieRoot": {"string": "pci0000:17"}, A + "numaNode": {"int": 1}}
    listed = {A + "numaNode": {"ints": [0, 1]}}
    own = {"gpu.example.com/pcie_root": {"string": "r"}, "numa": {"int": 0}}
    rows = count_usage(
        [slice_of("n", [{"name": str(i), "attributes": a} for i, a in enumerate((standard, listed, own))])], []
    )
    assert [(r.root, r.numa) for r in rows.devices] == [("pci0000:17", "1"), ("", "0, 1"), ("r", "0")]


def test_taints_and_what_drivers_state_in_the_claims_status_are_reported() -> None:
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


@pytest.mark.parametrize("spoil", [
    lambda s: s["spec"].pop("pool"), lambda s: s["spec"].update(devices=[{"name": "d", "capacity": {"m": {"value": "lots"}}}]),
    lambda s: s["spec"].update(devices=["d"]), lambda s: s.update(spec=None),
])  # fmt: skip
def test_a_slice_without_a_slices_form_is_named_and_left_out_alone(spoil: Any) -> None:
    odd = slice_of("n2", [{"name": "d"}])
    spoil(odd)
    found = count_usage([odd, slice_of("n1", [{"name": "d"}])], [{"metadata": {"name": "c"}, "status": "odd"}])
    assert [r.node for r in found.devices] == ["n1"]
    assert [n.partition(" cannot be read, and is left out: ")[0] for n in found.notes] == [
        "claim c",
        "slice s-n2-1-1",
    ]


def test_a_pool_that_is_not_complete_is_named() -> None:
    assert "has 1 of 2 slices" in count_usage([slice_of("n1", [{"name": "d"}], of=2)], []).notes[0]


def test_a_held_device_is_not_gone_while_slices_of_its_pool_are_still_to_come() -> None:
    old = slice_of("n1", [{"name": "d0"}, {"name": "d1"}], pool="p")
    half = slice_of("n1", [{"name": "d0"}], pool="p", generation=2, of=2)
    claims = [claim("c", ("p", "d1"))]
    uses = {d.name: d.use for d in count_usage([old, half], claims).devices}
    assert uses == {"d0": DeviceUse.FREE, "d1": DeviceUse.HELD}
    whole = slice_of("n1", [{"name": "d0"}], pool="p", generation=2)
    assert {d.name: d.use for d in count_usage([whole], claims).devices} == {
        "d0": DeviceUse.FREE,
        "d1": DeviceUse.VANISHED,
    }


def test_a_claim_that_a_group_of_pods_has_is_reserved_for_the_group() -> None:
    given = claim("c", ("n1", "d0"))
    given["status"]["reservedFor"] = [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "g"}
    ]
    (row,) = count_usage([slice_of("n1", [{"name": "d0"}])], [given]).devices
    assert row.holders[0].pods == ("podgroups ml/train",)
    assert "reserved for podgroups ml/train" in "\n".join(details.device(row, []))


def rows_of(number: int) -> Overview:
    devices = [
        {"name": f"gpu-{i}", "attributes": {A + "numaNode": {"int": i % 2}, "model": {"string": "H100"}}}
        | ({"taints": [{"key": "sick", "effect": "NoSchedule"}]} if i == 3 else {})
        for i in range(number)
    ]
    return Overview(
        "cluster", count_usage([slice_of("n1", devices)], [claim("c", ("n1", "gpu-2"), pods=("p",))]).devices
    )
