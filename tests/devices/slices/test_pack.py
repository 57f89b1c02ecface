"""Packing respects the limits of slices, keeps devices in their slices, and compares slices by their relevant fields."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Device
from dra_kubeletplugin.devices.slices.pack import PublishedNames, WantedSlice, pack
from dra_kubeletplugin.devices.slices.plan import WritePlan, common_fields, make_plan
from dra_kubeletplugin.devices.slices.slice_objects import CommonSliceFields, digest, existing_slice
from dra_kubeletplugin.devices.validation import DeviceEntry, device_from_record

DEVICE = Device("d")
names = st.lists(st.integers(0, 400).map(lambda i: f"d{i}"), unique=True, max_size=300)


def entry(name: str, encoded: bytes, consumed: int, limit: int) -> DeviceEntry:
    return DeviceEntry(name, DEVICE, encoded, "", consumed, limit)


def devices(of: list[str], tainted: set[str]) -> list[DeviceEntry]:
    taint = [{"key": "k", "effect": "NoSchedule"}]
    return [device_from_record({"name": n, "taints": taint} if n in tainted else {"name": n}) for n in of]


def test_an_empty_pool_is_one_slice_without_devices() -> None:
    (content,) = pack([])
    assert content.devices == []


def device_of_kind(n: int, kind: int) -> DeviceEntry:
    """Returns a device of one of several kinds; together the kinds reach each limit: number, bytes and counters."""
    size, consumed, max_devices = ((50, 0, 128), (9_000, 0, 128), (400, 64, 64), (100_000, 0, 128), (60, 0, 64))[kind]
    return entry(f"d{n}", b"x" * (size + n % 7), consumed, max_devices)


def published_names(contents: list[WantedSlice], step: object = "") -> dict[str, PublishedNames]:
    return {
        c.name or f"s{step}-{i:05}": PublishedNames([d.name for d in c.devices], [s["name"] for s in c.counter_sets])
        for i, c in enumerate(contents)
    }


@settings(deadline=None)
@given(st.lists(st.integers(0, 200), min_size=3, max_size=3), st.integers(0, 2**32), st.sampled_from([64, 128]))
def test_packing_respects_limits_and_keeps_devices_in_place_after_any_change(
    counts: list[int], seed: int, full: int
) -> None:
    random, before = Random(seed), dict[str, PublishedNames]()
    for step, count in enumerate(counts):
        order = [device_of_kind(n, random.randrange(5)) for n in sorted(random.sample(range(300), count))]
        sets = [{"name": f"c{n}"} for n in random.sample(range(40), random.randrange(40))]
        contents = pack(order, sets, before, full)
        assert sorted(d.name for c in contents for d in c.devices) == sorted(d.name for d in order)
        assert sorted(s["name"] for c in contents for s in c.counter_sets) == sorted(s["name"] for s in sets)
        place = {d.name: i for i, d in enumerate(order)}
        for c in contents:
            assert not (c.devices and c.counter_sets)
            assert len(c.counter_sets) <= 8
            assert len(c.devices) <= min([full, *(d.device_limit for d in c.devices)])
            assert sum(len(d.encoded) for d in c.devices) <= 512 * 1024
            assert sum(d.consumed for d in c.devices) <= 2048
            places = [place[d.name] for d in c.devices]
            assert places == sorted(places), "the driver's order within a slice"
            if c.name and c.counter_sets:
                assert before[c.name].counter_sets, "counter sets never use a slice of devices"
            if c.name and c.devices:
                assert not before[c.name].counter_sets
        keys = [c.name for c in contents if c.name]
        assert len(set(keys)) == len(keys)
        before = published_names(contents, step)
        again = pack(order, sets, before, full)
        assert published_names(again, "x") == before, "an unchanged pool keeps its slices"


@given(st.integers(0, 1000), st.sampled_from([64, 128]))
def test_a_repacked_pool_has_the_driver_s_order_throughout(count: int, full: int) -> None:
    order = [device_of_kind(n, 0) for n in range(count)]
    assert [d.name for c in pack(order, (), {}, full) for d in c.devices] == [d.name for d in order]


@pytest.mark.parametrize("full", [64, 128])
def test_a_taint_moves_only_the_tainted_device(full: int) -> None:
    names = [f"d{n}" for n in range(256)]
    before = published_names(pack(devices(names, set()), (), {}, full))
    after = published_names(pack(devices(names, {"d7"}), (), before, full))
    where = {n: k for k, h in after.items() for n in h.devices}
    moved = {n for k, h in before.items() for n in h.devices if where[n] != k}
    assert moved == ({"d7"} if full == 128 else set())


def test_packing_moves_the_smaller_group_after_many_taints() -> None:
    names = [f"d{n}" for n in range(128)]
    before = published_names(pack(devices(names, set())))
    after = published_names(pack(devices(names, set(names[:100])), (), before))
    where = {n: k for k, h in after.items() for n in h.devices}
    assert sum(where[n] != "s-00000" for n in names) == 64


def test_a_new_device_joins_the_slice_of_its_predecessor_if_the_slice_is_not_full() -> None:
    order = [device_of_kind(n, 0) for n in range(0, 300, 2)]
    before = published_names(pack(order))
    del before["s-00000"].devices[-1]  # type: ignore[attr-defined]
    missing = order[127]
    fresh = entry("d9", b"x", 0, 128)
    order = [*order[:5], fresh, *(d for d in order[5:] if d is not missing)]
    after = published_names(pack(order, (), before))
    assert after["s-00000"].devices[4:7] == ["d8", "d9", "d10"]


# --- planning -------------------------------------------------------------------------------------


def planned(contents: list[WantedSlice], existing: list[dict[str, Any]]) -> WritePlan:
    known = [existing_slice(o) for o in existing]
    common = common_fields(contents, known, "d.example.com", "n", {"nodeName": "n"})
    digests = {s.name: s.digest for s in known}
    changed = {c.name for c in contents if c.name and digests[c.name] != digest(common.spec(c, {}))}
    return make_plan(contents, known, common, changed)


def stored(plan: WritePlan, existing: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the slices on the server after a plan."""
    gone = {s.name for s in (*plan.delete_first, *plan.delete_last)}
    known = {s.name: s for s in map(existing_slice, existing)}
    updated = {c.name: plan.common.object(i, c, known[c.name], "n", {}, {}) for i, c in plan.writes if c.name}
    out = [updated.get(o["metadata"]["name"], o) for o in existing if o["metadata"]["name"] not in gone]
    for i, (number, content) in enumerate((i, c) for i, c in plan.writes if not c.name):
        o = plan.common.object(number, content, None, "n", {}, {})
        name = f"{o['metadata']['generateName']}{len(existing)}{i}"
        out.append({**o, "metadata": {"name": name, "uid": "u", "resourceVersion": "1"}})
    return sorted(out, key=lambda o: str(o["metadata"]["name"]))


@given(st.lists(names, min_size=1, max_size=5))
def test_any_sequence_of_changes_leaves_one_complete_generation(history: list[list[str]]) -> None:
    existing: list[dict[str, Any]] = []
    generation = 0
    for step in history:
        before = {
            o["metadata"]["name"]: PublishedNames([d["name"] for d in o["spec"].get("devices", [])]) for o in existing
        }
        existing = stored(planned(pack(devices(step, set()), (), before), existing), existing)
        pools = [o["spec"]["pool"] for o in existing]
        assert {p["generation"] for p in pools} == {pools[0]["generation"]}
        assert {p["resourceSliceCount"] for p in pools} == {len(existing)}
        assert pools[0]["generation"] >= generation
        generation = pools[0]["generation"]
        before = {
            o["metadata"]["name"]: PublishedNames([d["name"] for d in o["spec"].get("devices", [])]) for o in existing
        }
        assert planned(pack(devices(step, set()), (), before), existing).count == 0


def test_one_changed_slice_keeps_the_generation_and_times_of_taints() -> None:
    first = pack(devices(["a", "b"], {"a"}))
    existing = stored(planned(first, []), [])
    existing[0]["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    contents = pack(devices(["a", "b", "c"], {"a"}), (), {existing[0]["metadata"]["name"]: PublishedNames(["a", "b"])})
    plan = planned(contents, existing)
    assert (len(plan.writes), plan.count, plan.rewrites_all) == (1, 1, False)
    found = existing_slice(existing[0])
    spec = plan.common.object(*plan.writes[0], found, "n", {}, found.timed)["spec"]
    assert spec["pool"]["generation"] == 1
    assert spec["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


@given(names, st.sets(st.integers(0, 400).map(lambda i: f"d{i}"), max_size=20), st.randoms(use_true_random=False))
def test_slices_are_equal_if_only_times_empty_fields_and_field_order_differ(
    of: list[str], tainted: set[str], random: Random
) -> None:
    (content, *_) = pack(devices(of, tainted))
    common = CommonSliceFields("d.example.com", "n", {"nodeName": "n"}, 1, 1)
    spec = common.spec(content, {})
    before = digest(spec)
    for device in spec["devices"]:
        device.update(random.choice(({}, {"bindingConditions": []}, {"bindsToNode": False}, {"attributes": None})))
        for taint in device.get("taints", []):
            taint["timeAdded"] = "2026-01-01T00:00:00Z"
    assert digest(dict(reversed(spec.items()))) == before
    if spec["devices"]:
        random.choice(spec["devices"])["allNodes"] = True
        assert digest(spec) != before
    assert digest({**spec, "nodeName": "m"}) != before
