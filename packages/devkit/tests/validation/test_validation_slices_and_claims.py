"""Rules of the API server's source code for slices and claims that no recorded response covers alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.validation.objects import a_slice, claim, device, policy, request, template
from tests.helpers.strict_writes import post, put

OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}


def with_metadata(obj: JSON, **metadata: Any) -> JSON:
    return obj | {"metadata": obj["metadata"] | metadata}


FAULTS: list[tuple[Callable[[], JSON], list[str]]] = [
    (lambda: a_slice(devices=[{"name": "a"}, {"name": "a"}]), ["Duplicate spec.devices[1]"]),
    (lambda: device(nodeName="x", allNodes=True), ["Invalid spec.devices[0]"]),
    (lambda: a_slice(devices=[], sharedCounters=[]), ["Invalid spec"]),
    (lambda: device(bindingConditions=["a"]), ["Invalid spec.devices[0].bindingFailureConditions"]),
    (lambda: device(bindingConditions=["a", "a"], bindingFailureConditions=["b"]), ["Duplicate spec.devices[0].bindingConditions[1]"]),
    (lambda: device(attributes={"v": {"strings": ["a"]}}), ["Invalid spec.devices[0].attributes[v]"]),
    (lambda: device(name="a." + "b" * 63), ["Invalid spec.devices[0].name", "Invalid spec.devices[0].name"]),
    (lambda: device(name="\u00e9" * 40), ["Invalid spec.devices[0].name", "Invalid spec.devices[0].name"]),
    (lambda: policy(default="2", validValues=["2", "1"]), ["Invalid spec.devices[0].capacity[bw].requestPolicy.validValues[1]"]),
    (lambda: policy(default="1", validValues=["500m", "1"]), ["Duplicate spec.devices[0].capacity[bw].requestPolicy.validValues[1]"]),
    (lambda: policy(default="3", validRange={"min": "1", "step": "1500m"}), []),
    (lambda: policy(default="2", validRange={"min": "1", "step": "1500m"}), ["Invalid spec.devices[0].capacity[bw].requestPolicy.validRange.step"]),
    (lambda: with_metadata(a_slice(), finalizers=["a b"]), ["Invalid metadata.finalizers", "Invalid metadata.finalizers[0]"]),
    (lambda: with_metadata(a_slice(), finalizers=["unqualified"]), ["Invalid metadata.finalizers[0]"]),
    (lambda: with_metadata(a_slice(), finalizers=["example.com/f", "kubernetes"]), []),
    (lambda: with_metadata(a_slice(), finalizers=["orphan", "foregroundDeletion"]), ["Invalid metadata.finalizers"]),
    (lambda: a_slice(nodeName=None, nodeSelector={"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["N"]}]}]}),
     ["Invalid spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].values[0]"]),
    (lambda: a_slice(nodeName=None, perDeviceNodeSelection=True, devices=[{"name": "a", "nodeSelector": {"nodeSelectorTerms": SELECTOR["nodeSelectorTerms"] * 2}}]), []),
    (lambda: claim(request("")), ["Invalid spec.devices.requests[0].name"]),
    (lambda: claim(request(), config=[{"requests": ["A"], "opaque": {"driver": "d", "parameters": {}}}]),
     ["Invalid spec.devices.config[0].requests[0]", "Invalid spec.devices.config[0].requests[0]"]),
    (lambda: claim(request(), config=[{"requests": ["a/b/c"], "opaque": {"driver": "d", "parameters": {}}}]), ["Invalid spec.devices.config[0].requests[0]"]),
    (lambda: claim(request(selectors=[{"cel": {"expression": 'int("x")==1'}}])), ["InternalError spec.devices.requests[0].exactly.selectors[0].cel.expression"]),
    (lambda: claim(request(tolerations=[{"operator": "Exists"}] * 40)), []),
    (lambda: claim(request("a", deviceClassName="") | {"firstAvailable": [{"name": "", "deviceClassName": ""}]}), ["Invalid spec.devices.requests[0]"]),
    (lambda: template(name="x", finalizers=["a/b"], labels={"a": "b"}), ["Forbidden spec.metadata.finalizers", "Forbidden spec.metadata.name"]),
    (lambda: with_metadata(claim(), ownerReferences=[OWNER | {"kind": "Event"}]), ["Invalid metadata.ownerReferences"]),
    (lambda: with_metadata(claim(), ownerReferences=[OWNER | {"apiVersion": "a/b/c"}]), ["Invalid metadata.ownerReferences.apiVersion"]),
    (lambda: with_metadata(claim(), ownerReferences=[OWNER | {"uid": u, "controller": True} for u in "xyz"]), ["Invalid metadata.ownerReferences"] * 2),
    (lambda: with_metadata(claim(), name="", generateName="S_"), ["Invalid metadata.generateName", "Invalid metadata.name"]),
    (lambda: with_metadata(claim(), annotations={"a": "x" * (256 * 1024)}), ["TooLong metadata.annotations"]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "faults"), FAULTS)
def test_an_object_has_exactly_these_faults(make: Callable[[], JSON], faults: list[str]) -> None:
    code, found = post(make())
    assert code == (422 if faults else 201), found
    if faults:
        assert sorted(f"{f.reason.removeprefix('FieldValue')} {f.field}" for f in found) == faults


def test_a_version_with_numbers_of_any_length_is_stored() -> None:
    assert post(device(attributes={"v": {"version": "1.2.99999999999999999999"}}))[0] == 201


def test_gated_lists_do_not_lower_the_number_of_devices_in_a_slice() -> None:
    devices = [{"name": f"d{i}", "attributes": {"a": {"int": 1, "ints": [1]}}} for i in range(128)]
    code, stored = post(a_slice(devices=devices))
    assert (code, stored["spec"]["devices"][0]["attributes"]) == (201, {"a": {"int": 1}})


def test_an_empty_time_is_rejected() -> None:
    assert post(device(taints=[{"key": "k", "effect": "NoSchedule", "timeAdded": ""}]))[0] == 400


def test_a_duplicate_owner_reference_is_stored_once() -> None:
    code, stored = post(with_metadata(claim(), ownerReferences=[OWNER, OWNER, OWNER | {"uid": "v"}]))
    assert (code, stored["metadata"]["ownerReferences"]) == (201, [OWNER, OWNER | {"uid": "v"}])


def test_a_claim_without_requests_is_stored_with_null_requests() -> None:
    assert post(claim())[1]["spec"] == {"devices": {"requests": None}}


def test_the_status_of_a_device_is_deleted_with_its_allocation() -> None:
    result = {"request": "a", "driver": "d", "pool": "p", "device": "x"}
    reported = {"driver": "d", "pool": "p", "device": "x", "conditions": None}
    spec = post(claim(request()))[1]["spec"]
    old = claim() | {"spec": spec, "status": {"allocation": {"devices": {"results": [result]}}, "devices": [reported]}}
    new = copy.deepcopy(old)
    del new["status"]["allocation"]
    assert put(old, new, status=True)[1]["status"] == {}
    assert put(old, copy.deepcopy(old), status=True)[1]["status"] == old["status"]
