"""Server-side apply against a model of its rules: no manager loses fields, and all conflicts are reported."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.localcluster.apiserver import apply
from dra_devkit.localcluster.apiserver.apply import ConflictError, Entries, Manager, Operation, Rules
from dra_devkit.schemas import typed
from dra_devkit.schemas.field_paths import decode, encode, shown
from dra_devkit.schemas.merging import type_of
from dra_kubeletplugin.base.json_types import JSON

DEVICES, MANAGERS = ("d0", "d1", "d2"), ("a", "b", "c")
RULES = Rules("resource.k8s.io", "v1", "ResourceClaim", (("f:spec",), ("f:metadata",)), lambda obj, _: obj)
EMPTY: JSON = {"metadata": {}, "spec": {}, "status": {}}
entries = st.dictionaries(st.sampled_from(DEVICES), st.one_of(st.none(), st.integers(0, 2)))
applies = st.lists(st.tuples(st.sampled_from(MANAGERS), entries, st.booleans()), max_size=12)


def claim(values: dict[str, int | None]) -> JSON:
    """Returns a claim with an entry in ``status.devices`` for each device, and with ``data`` if the device has a value."""
    devices = [
        {"driver": "x", "pool": "p", "device": d} | ({} if v is None else {"data": {"v": v}}) for d, v in values.items()
    ]
    return {"metadata": {"name": "c"}, "status": {"devices": devices}}


def read(obj: JSON) -> dict[str, int | None]:
    devices = (obj.get("status") or {}).get("devices") or []
    return {d["device"]: (d.get("data") or {}).get("v") for d in devices}


class Model:
    """The values that each manager applied last. All managers with the same value own it together."""

    def __init__(self) -> None:
        self.applied: dict[str, dict[str, int | None]] = {}

    def conflicts(self, manager: str, new_values: dict[str, int | None]) -> set[str]:
        others = [values for m, values in self.applied.items() if m != manager]
        return {
            d
            for d, v in new_values.items()
            if v is not None and any(o.get(d) is not None and o[d] != v for o in others)
        }

    def apply(self, manager: str, new_values: dict[str, int | None]) -> None:
        for device in self.conflicts(manager, new_values):
            for other_manager, values in self.applied.items():
                if other_manager != manager and values.get(device) is not None:
                    values[device] = None  # the manager keeps the entry and loses the value
        self.applied[manager] = dict(new_values)

    def live(self) -> dict[str, int | None]:
        out: dict[str, int | None] = {}
        for values in self.applied.values():
            for device, value in values.items():
                if out.get(device) is None:
                    out[device] = value
        return out


@settings(max_examples=150, deadline=None)
@given(applies)
def test_several_managers_apply_the_status_of_devices(steps: list[tuple[str, dict[str, int | None], bool]]) -> None:
    model, live, empty = Model(), {**EMPTY, "metadata": {"name": "c"}}, {}
    managed: Entries = empty
    # The object was applied once before. Otherwise all existing fields would belong to "before-first-apply".
    live, managed = apply.apply(live, claim({}), managed, _manager("first"), RULES, EMPTY, force=False)
    for manager, values, force in steps:
        conflicts = model.conflicts(manager, values)
        try:
            live, managed = apply.apply(live, claim(values), managed, _manager(manager), RULES, EMPTY, force=force)
        except ConflictError as e:
            assert not force
            assert {shown(p) for _, p in e.conflicts} == {
                f'.status.devices[device="{d}",driver="x",pool="p"].data' for d in conflicts
            }
            continue
        assert force or not conflicts
        model.apply(manager, values)
        assert read(live) == model.live()


@settings(max_examples=100, deadline=None)
@given(st.lists(entries, min_size=2, max_size=5))
def test_an_update_owns_only_the_fields_that_it_changes(states: list[dict[str, int | None]]) -> None:
    before, empty = {**EMPTY, **claim(states[0])}, {}
    managers: Entries = apply.update(None, before, empty, _updater("u0"), RULES, EMPTY)
    for number, state in enumerate(states[1:], 1):
        after = {**EMPTY, **claim(state)}
        managers = apply.update(before, after, managers, _updater(f"u{number}"), RULES, EMPTY)
        before = after
    for entry in managers.values():
        for path in entry.paths:
            assert path in typed.paths_of(before, RULES.type) | _parents(before), shown(path)
    owned_paths = [p for e in managers.values() for p in e.paths]
    assert len(owned_paths) == len(set(owned_paths)), "an updated value has one manager"


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.integers() | st.none(), max_size=5))
def test_decoding_encoded_managed_fields_returns_the_same_paths(data: dict[str, Any]) -> None:
    obj = {"metadata": {}, "data": {k: str(v) for k, v in data.items()}}
    paths = typed.paths_of(obj, type_of("", "v1", "ConfigMap"))
    assert decode(encode(paths)) == paths


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
def test_an_object_that_violates_its_schema_is_rejected_with_the_path(obj: JSON, message: str) -> None:
    with pytest.raises(typed.SchemaError, match="(?s)" + message.replace(".", r"\.")):
        typed.check(obj, RULES.type)


def _manager(name: str) -> Manager:
    return Manager(name, Operation.APPLY, "resource.k8s.io/v1", "status")


def _updater(name: str) -> Manager:
    return Manager(name, Operation.UPDATE, "resource.k8s.io/v1", "status")


def _parents(obj: JSON) -> set[tuple[str, ...]]:
    paths = typed.paths_of(obj, RULES.type)
    return {p[:n] for p in paths for n in range(1, len(p))} | {("f:status", "f:devices")}
