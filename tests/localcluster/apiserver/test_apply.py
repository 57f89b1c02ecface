"""Server-side apply against a model of its rules: whatever several managers do, nobody's part is lost and conflicts are told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.localcluster.apiserver import apply
from dra_kubeletplugin.localcluster.apiserver.apply import ConflictError, Entries, Manager, Operation, Rules
from dra_kubeletplugin.resourceapi.schemas import typed
from dra_kubeletplugin.resourceapi.schemas.field_paths import decode, encode, shown
from dra_kubeletplugin.resourceapi.schemas.merging import type_of

JSON = dict[str, Any]
DEVICES, MANAGERS = ("d0", "d1", "d2"), ("a", "b", "c")
RULES = Rules("resource.k8s.io", "v1", "ResourceClaim", (("f:spec",), ("f:metadata",)), lambda obj, _: obj)
EMPTY: JSON = {"metadata": {}, "spec": {}, "status": {}}
entries = st.dictionaries(st.sampled_from(DEVICES), st.one_of(st.none(), st.integers(0, 2)))
applies = st.lists(st.tuples(st.sampled_from(MANAGERS), entries, st.booleans()), max_size=12)


def claim(said: dict[str, int | None]) -> JSON:
    """``status.devices`` with an entry for each device, and ``data`` where there is a value."""
    devices = [
        {"driver": "x", "pool": "p", "device": d} | ({} if v is None else {"data": {"v": v}}) for d, v in said.items()
    ]
    return {"metadata": {"name": "c"}, "status": {"devices": devices}}


def read(obj: JSON) -> dict[str, int | None]:
    found = (obj.get("status") or {}).get("devices") or []
    return {d["device"]: (d.get("data") or {}).get("v") for d in found}


class Model:
    """What each manager says now; a value belongs to all who say it."""

    def __init__(self) -> None:
        self.said: dict[str, dict[str, int | None]] = {}

    def conflicts(self, who: str, wanted: dict[str, int | None]) -> set[str]:
        others = [s for m, s in self.said.items() if m != who]
        return {
            d for d, v in wanted.items() if v is not None and any(o.get(d) is not None and o[d] != v for o in others)
        }

    def apply(self, who: str, wanted: dict[str, int | None]) -> None:
        for device in self.conflicts(who, wanted):
            for other, said in self.said.items():
                if other != who and said.get(device) is not None:
                    said[device] = None  # the entry stays theirs, its value does not
        self.said[who] = dict(wanted)

    def live(self) -> dict[str, int | None]:
        out: dict[str, int | None] = {}
        for said in self.said.values():
            for device, value in said.items():
                if out.get(device) is None:
                    out[device] = value
        return out


@settings(max_examples=150, deadline=None)
@given(applies)
def test_several_managers_of_the_status_of_devices(steps: list[tuple[str, dict[str, int | None], bool]]) -> None:
    model, live, known = Model(), {**EMPTY, "metadata": {"name": "c"}}, {}
    known_entries: Entries = known
    # An object that somebody has applied before: without any manager, all there is would be of "before-first-apply".
    live, known_entries = apply.apply(live, claim({}), known_entries, _manager("first"), RULES, EMPTY, force=False)
    for who, wanted, force in steps:
        conflicts = model.conflicts(who, wanted)
        try:
            live, known_entries = apply.apply(
                live, claim(wanted), known_entries, _manager(who), RULES, EMPTY, force=force
            )
        except ConflictError as e:
            assert not force
            assert {shown(p) for _, p in e.conflicts} == {
                f'.status.devices[device="{d}",driver="x",pool="p"].data' for d in conflicts
            }
            continue
        assert force or not conflicts
        model.apply(who, wanted)
        assert read(live) == model.live()


@settings(max_examples=100, deadline=None)
@given(st.lists(entries, min_size=2, max_size=5))
def test_an_update_takes_over_what_it_changes_and_nothing_else(states: list[dict[str, int | None]]) -> None:
    before, known = {**EMPTY, **claim(states[0])}, {}
    managers: Entries = apply.update(None, before, known, _updater("u0"), RULES, EMPTY)
    for number, state in enumerate(states[1:], 1):
        after = {**EMPTY, **claim(state)}
        managers = apply.update(before, after, managers, _updater(f"u{number}"), RULES, EMPTY)
        before = after
    for entry in managers.values():
        for path in entry.paths:
            assert path in typed.paths_of(before, RULES.type) | _parents(before), shown(path)
    owned = [p for e in managers.values() for p in e.paths]
    assert len(owned) == len(set(owned)), "a value that was updated belongs to one"


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.integers() | st.none(), max_size=5))
def test_managed_fields_come_back_as_they_went(data: dict[str, Any]) -> None:
    obj = {"metadata": {}, "data": {k: str(v) for k, v in data.items()}}
    paths = typed.paths_of(obj, type_of("", "v1", "ConfigMap"))
    assert decode(encode(paths)) == paths


def test_a_manager_that_states_nothing_any_more_leaves_nothing() -> None:
    live: JSON = {**EMPTY, "metadata": {"name": "c"}}
    live, known = apply.apply(live, claim({"d0": 1}), {}, _manager("a"), RULES, EMPTY, force=False)
    live, known = apply.apply(live, claim({"d1": 1}), known, _manager("b"), RULES, EMPTY, force=False)
    live, known = apply.apply(live, {"metadata": {"name": "c"}}, known, _manager("a"), RULES, EMPTY, force=False)
    assert read(live) == {"d1": 1}
    assert [e.manager.name for e in known.values()] == ["b"]


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"status": {"nope": 1}}, ".status.nope: field not declared in schema"),
        ({"status": {"devices": [{"driver": "x"}, {"driver": "x"}]}}, "duplicate entries for key"),
        ({"status": {"devices": [3]}}, "not a map"),
        ({"status": {"devices": [{"data": {}}]}}, "omits all key fields"),
        ({"metadata": {"labels": {"a": 1}}}, ".metadata.labels.a: expected string"),
        ({"status": []}, ".status: expected map"),
    ],
)
def test_what_does_not_fit_its_kind_is_refused_with_its_path(obj: JSON, message: str) -> None:
    with pytest.raises(typed.SchemaError, match="(?s)" + message.replace(".", r"\.")):
        typed.check(obj, RULES.type)


def _manager(name: str) -> Manager:
    return Manager(name, Operation.APPLY, "resource.k8s.io/v1", "status")


def _updater(name: str) -> Manager:
    return Manager(name, Operation.UPDATE, "resource.k8s.io/v1", "status")


def _parents(obj: JSON) -> set[tuple[str, ...]]:
    paths = typed.paths_of(obj, RULES.type)
    return {p[:n] for p in paths for n in range(1, len(p))} | {("f:status", "f:devices")}
