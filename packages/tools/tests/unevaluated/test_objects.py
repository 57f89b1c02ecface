"""Features and fields that are stored and not evaluated are named, and no result is stated that depends on them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_tools import Explanation, ExplanationState, Snapshot, explain, overview, simulate
from dra_tools.unevaluated.objects import all_not_evaluated, parts_of_slice, unevaluated_fields, unknown_fields
from dra_tools.usage.usage import ObjectCache
from packages.tools.tests.objects import CLASS, claim, dra, gpu, node, pod, pool

NEW = {"newField": 1}
NEW_FIELD = "the field spec.devices[0].newField, which is not known here"


CASES: dict[str, tuple[list[JSON], str, str]] = {
    "field of a later release of a claim": ([pool("a", gpu("g0")), claim(newField=1)], "spec.devices.requests[0].exactly.newField", "c"),
    "field of a later release of a class": ([pool("a", gpu("g0")), claim(), CLASS | {"spec": {**CLASS["spec"], "newField": 1}}], "spec.newField", "gpu"),
    "field of a later release of an attribute": ([pool("a", gpu("g0", attributes={"x": {"float": 1.5, "int": 1}})), claim()], "spec.devices[0].attributes.x.float", "a-slice"),
    "field of a later release of a device": ([pool("a", gpu("g0", newField=1)), claim()], "spec.devices[0].newField", "a-slice"),
}  # fmt: skip


def objects(case: str) -> list[JSON]:
    found = CASES[case][0]
    return [*([] if any(o["kind"] == "DeviceClass" for o in found) else [CLASS]), node("a"), pod("c"), *found]


def test_each_field_of_the_table_has_a_case() -> None:
    used = {field for rows, _, _ in CASES.values() for o in rows for field in _keys(o)}
    assert {field.name for _, field in unevaluated_fields()} <= used


def _keys(value: Any) -> set[str]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {*(value if isinstance(value, dict) else ()), *(key for item in items for key in _keys(item))}


@pytest.mark.parametrize("case", CASES)
def test_explain_names_the_feature_and_states_no_result(case: str) -> None:
    _, feature, name = CASES[case]
    found: Explanation = explain(Snapshot.of(objects(case)), "p")
    [part] = found.unevaluated
    assert found.state is ExplanationState.UNKNOWN
    assert feature in part.why and "not evaluated" in str(part) and name in part.subject
    assert feature in found.summary and found.changes == ()


def test_a_node_whose_devices_are_evaluated_decides_that_the_pod_fits() -> None:
    newer = pool("a", gpu("g0", **NEW))
    found = explain(
        Snapshot.of([CLASS, node("a"), node("b"), newer, pool("b", gpu("g0", "40Gi")), claim(), pod("c")]), "p"
    )
    assert (found.state, found.unevaluated) == (ExplanationState.FITS, ())


def test_a_pod_that_fits_nowhere_waits_although_a_device_is_not_evaluated_wholly() -> None:
    newer = pool("a", gpu("g0", **NEW))
    found = explain(Snapshot.of([CLASS, node("a"), newer, claim(count=2), pod("c")]), "p")
    assert found.state is ExplanationState.WAITS


@pytest.mark.parametrize("case", CASES)
def test_top_names_each_feature_once_and_says_no_success(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, feature, name = CASES[case]
    notes = [note for note in overview(Snapshot.of(objects(case))).notes if feature in note]
    assert len(notes) == 1 and name in notes[0] and "not evaluated" in notes[0]
    (tmp_path / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(case)}))
    assert main(["top", "-f", str(tmp_path / "all.json")]) == 3
    assert main(["explain", "-f", str(tmp_path / "all.json")]) == 3
    assert feature in capsys.readouterr().out


# A claim in manifests is validated, so a field that is not known is refused.
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"field of a later release of a claim"}))
def test_simulate_names_the_feature_and_states_no_result(case: str) -> None:
    _, feature, _ = CASES[case]
    snapshot = Snapshot.of([o for o in objects(case) if o["kind"] not in {"Pod", "ResourceClaim"}])
    request = CASES[case][0][1]["spec"]["devices"]
    constraints = [{"matchAttribute": "example.com/shared"}] if request.get("constraints") else []
    template = dra("ResourceClaimTemplate", "t", {"spec": {"devices": {**request, "constraints": constraints}}})
    entry = {"name": "e", "resourceClaimTemplateName": "t"}
    spec = {"containers": [{"name": "m", "image": "x"}], "resourceClaims": [entry]}
    found = simulate(snapshot, [template, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}])
    assert any(feature in part.why for part in found.unevaluated), found
    assert not found.known


def test_fields_of_a_later_release_are_found_in_maps_of_objects_of_a_server() -> None:
    attributes = {"x": {"int": 1}, "y": {"float": 1.5}}
    capacity = {"m": {"value": "1", "requestPolicy": {"default": "1", "steps": {}}}}
    found = list(unknown_fields(pool("a", gpu("g0", attributes=attributes, capacity=capacity))))
    assert found == ["spec.devices[0].attributes.y.float", "spec.devices[0].capacity.m.requestPolicy.steps"]


def test_slices_of_one_driver_with_the_same_feature_are_one_line() -> None:
    slices = [pool(name, gpu("g0", **NEW)) for name in "abc"]
    [part] = all_not_evaluated(Snapshot.of(slices))
    assert str(part) == (f"not evaluated: ResourceSlice a-slice and 2 more slices of its driver: {NEW_FIELD}")


def test_an_overview_names_the_parts_of_the_present_slices_only() -> None:
    old, new, cache = pool("a", gpu("g0")), pool("a", gpu("g0", **NEW)), ObjectCache(parts_of_slice)
    notes = [overview(Snapshot(slices=(sl,)), parts=cache).notes for sl in (old, new, new, old)]
    named = (f"not evaluated: ResourceSlice a-slice: {NEW_FIELD}",)
    assert notes == [(), named, named, ()]


async def test_doctor_names_features_of_slices_and_says_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with LocalCluster([]) as cluster:
        await cluster.apply(node("a"), pool("a", gpu("g0")))
        [stored] = cluster.api.storage.list("resourceslices.resource.k8s.io")
        [device] = stored["spec"]["devices"]
        # A server of a newer release stores such a field. The local one would drop it.
        changed = {**stored, "spec": {**stored["spec"], "devices": [device | NEW]}}
        cluster.api.storage.put("resourceslices.resource.k8s.io", changed)
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        assert await asyncio.to_thread(main, ["doctor", "--no-host", "-o", "json"]) == 3
    [found] = [f for f in json.loads(capsys.readouterr().out)["findings"] if "newField" in f["text"]]
    assert (found["level"], found["topic"]) == ("unknown", "slices")
    assert found["text"] == f"not evaluated: ResourceSlice a-slice: {NEW_FIELD}"
