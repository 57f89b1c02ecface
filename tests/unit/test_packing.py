"""Devices go into slices within their limits, stay where they are, and are told apart by what matters."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.publishable import Parcel, parcel
from dra_kubeletplugin.slices.pack import SliceContent, pack
from dra_kubeletplugin.slices.plan import Frame, Plan, first_frame, found, make_plan
from dra_kubeletplugin.slices.sameness import digest

names = st.lists(st.integers(0, 400).map(lambda i: f"d{i}"), unique=True, max_size=300)


def devices(of: list[str], tainted: set[str]) -> list[Parcel]:
    taint = [{"key": "k", "effect": "NoSchedule"}]
    return [parcel({"name": n, "taints": taint} if n in tainted else {"name": n}) for n in of]


@given(names, names, st.sets(st.integers(0, 400).map(lambda i: f"d{i}"), max_size=20))
def test_slices_respect_limits_hold_every_device_once_and_keep_it_in_place(
    first: list[str], second: list[str], tainted: set[str]
) -> None:
    before = {f"s{i}": [d.name for d in c.devices] for i, c in enumerate(pack(devices(first, set())))}
    contents = pack(devices(second, tainted), (), before)
    assert sorted(d.name for c in contents for d in c.devices) == sorted(second)
    for content in contents:
        limit = 64 if any(b"taints" in d.encoded for d in content.devices) else 128
        assert len(content.devices) <= limit
    if not tainted & set(second):
        where = {n: key for key, group in before.items() for n in group}
        for content in contents:
            assert all(where.get(d.name, content.key) == content.key for d in content.devices)


def test_an_empty_pool_is_one_slice_without_devices() -> None:
    (content,) = pack([])
    assert content.devices == []


def first_fit(of: list[Parcel], before: dict[str, list[str]]) -> list[tuple[str | None, list[str]]]:
    """What packing means, said plainly and slowly: slices of parcels, with the limits written out."""
    slices: list[tuple[str | None, list[Parcel]]] = [(key, []) for key in before]

    def fits(into: list[Parcel], p: Parcel) -> bool:
        all_of = [*into, p]
        return (
            len(all_of) <= min(q.most for q in all_of)
            and sum(len(q.encoded) for q in all_of) <= 512 * 1024
            and sum(q.consumed for q in all_of) <= 2048
        )

    rest = []
    for p in of:
        into = next((s for key, s in slices if p.name in before[key or ""] and fits(s, p)), None)
        (rest if into is None else into).append(p)
    filled, spare = [s for s in slices if s[1]], [s for s in slices if not s[1]]
    for p in rest:
        for _, into in filled:
            if fits(into, p):
                into.append(p)
                break
        else:
            filled.append(spare.pop(0) if spare else (None, []))
            filled[-1][1].append(p)
    if not filled:
        return [(next(iter(before), None), [])]
    place = {p.name: i for i, p in enumerate(of)}
    return [(key, [p.name for p in sorted(s, key=lambda p: place[p.name])]) for key, s in filled]


def sized(n: int, kind: int) -> Parcel:
    """Devices of several kinds, so that each of the limits is met: number, bytes, counters."""
    size, consumed, most = ((50, 0, 128), (9_000, 0, 128), (400, 64, 64), (100_000, 0, 128), (60, 0, 64))[kind]
    return Parcel(f"d{n}", b"x" * (size + n % 7), consumed, most)


@settings(deadline=None)  # the plain way is slow
@given(st.lists(st.integers(20, 200), min_size=3, max_size=3), st.integers(0, 2**32))
def test_packing_puts_every_device_where_the_plain_first_fit_does(counts: list[int], seed: int) -> None:
    random, before = Random(seed), dict[str, list[str]]()
    for step, count in enumerate(counts):
        order = [sized(n, random.randrange(5)) for n in random.sample(range(300), count)]
        contents = pack(order, (), before)
        assert [(c.key, [d.name for d in c.devices]) for c in contents] == first_fit(order, before)
        before = {c.key or f"s{step}-{i}": [d.name for d in c.devices] for i, c in enumerate(contents)}


def test_packing_looks_at_each_of_2048_devices_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = 0
    take = SliceContent.take

    def counted(self: SliceContent, device: Parcel) -> bool:
        nonlocal offers
        offers += 1
        return take(self, device)

    monkeypatch.setattr(SliceContent, "take", counted)
    for kind in (0, 1, 2, 4):
        offers = 0
        order = [sized(n, kind) for n in range(2048)]
        contents = pack(order)
        assert offers <= 2048 * 1.5, "when nothing is there yet"
        before = {f"s{i}": [d.name for d in c.devices] for i, c in enumerate(contents)}
        offers = 0
        pack(order, (), before)
        assert offers == 2048, "when nothing changed"


# --- planning -------------------------------------------------------------------------------------


def planned(contents: list[SliceContent], existing: list[dict[str, Any]]) -> Plan:
    known = [found(o) for o in existing]
    frame = first_frame(contents, known, "d.example.com", "n", {"nodeName": "n"})
    digests = {s.name: s.digest for s in known}
    changed = {c.key for c in contents if c.key and digests[c.key] != frame.digest(c)}
    return make_plan(contents, known, frame, changed)


def stored(plan: Plan, existing: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the server has after a plan."""
    gone = {s.name for s in plan.delete}
    updated = {w.over.name: w.object(plan.frame, "n", {}) for w in plan.update if w.over}
    out = [updated.get(o["metadata"]["name"], o) for o in existing if o["metadata"]["name"] not in gone]
    for i, write in enumerate(plan.create):
        o = write.object(plan.frame, "n", {})
        name = f"{o['metadata']['generateName']}{len(existing)}{i}"
        out.append({**o, "metadata": {"name": name, "uid": "u", "resourceVersion": "1"}})
    return sorted(out, key=lambda o: str(o["metadata"]["name"]))


@given(st.lists(names, min_size=1, max_size=5))
def test_any_sequence_of_changes_leaves_one_complete_generation(history: list[list[str]]) -> None:
    existing: list[dict[str, Any]] = []
    generation = 0
    for step in history:
        before = {o["metadata"]["name"]: [d["name"] for d in o["spec"].get("devices", [])] for o in existing}
        existing = stored(planned(pack(devices(step, set()), (), before), existing), existing)
        pools = [o["spec"]["pool"] for o in existing]
        assert {p["generation"] for p in pools} == {pools[0]["generation"]}
        assert {p["resourceSliceCount"] for p in pools} == {len(existing)}
        assert pools[0]["generation"] >= generation
        generation = pools[0]["generation"]
        before = {o["metadata"]["name"]: [d["name"] for d in o["spec"].get("devices", [])] for o in existing}
        assert planned(pack(devices(step, set()), (), before), existing).writes == 0


def test_one_changed_slice_keeps_the_generation_and_times_of_taints() -> None:
    first = pack(devices(["a", "b"], {"a"}))
    existing = stored(planned(first, []), [])
    existing[0]["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    contents = pack(devices(["a", "b", "c"], {"a"}), (), {existing[0]["metadata"]["name"]: ["a", "b"]})
    plan = planned(contents, existing)
    assert (len(plan.update), len(plan.create), len(plan.delete)) == (1, 0, 0)
    spec = plan.update[0].object(plan.frame, "n", {})["spec"]
    assert spec["pool"]["generation"] == 1
    assert spec["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


@given(names, st.sets(st.integers(0, 400).map(lambda i: f"d{i}"), max_size=20), st.randoms(use_true_random=False))
def test_a_slice_is_the_same_where_only_times_empty_fields_and_the_order_of_fields_differ(
    of: list[str], tainted: set[str], random: Random
) -> None:
    (content, *_) = pack(devices(of, tainted))
    frame = Frame("d.example.com", "n", {"nodeName": "n"}, 1, 1)
    spec = frame.spec(content, {})
    assert digest(spec) == frame.digest(content)
    for device in spec["devices"]:
        device.update(random.choice(({}, {"bindingConditions": []}, {"bindsToNode": False}, {"attributes": None})))
        for taint in device.get("taints", []):
            taint["timeAdded"] = "2026-01-01T00:00:00Z"
    assert digest(dict(reversed(spec.items()))) == frame.digest(content)
    if spec["devices"]:
        random.choice(spec["devices"])["allNodes"] = True
        assert digest(spec) != frame.digest(content)
    assert digest({**spec, "nodeName": "m"}) != frame.digest(content)
