"""An object with several faults has them in the order of the API server's source code, because clients show the first one."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.validation.objects import a_slice, claim, policy, request, template
from tests.helpers.strict_writes import post, put

ADMIN = "Forbidden spec.devices.requests[{}].adminAccess"


def faults(result: tuple[int, Any]) -> list[str]:
    code, found = result
    assert code == 422, found
    return [f"{f.reason.removeprefix('FieldValue')} {f.field}" for f in found]


def template_of(obj: JSON) -> JSON:
    made = template()
    return made | {"spec": {"spec": obj["spec"]}}


@pytest.mark.parametrize("in_template", [False, True])
@pytest.mark.parametrize(
    ("requests", "first", "others"),
    [
        ([request(deviceClassName="", adminAccess=True)], 0, ["Required {}.requests[0].exactly.deviceClassName"]),
        ([request(count=-1), request("b", adminAccess=True)], 1, ["Invalid {}.requests[0].exactly.count"]),
        ([request(adminAccess=True), request(adminAccess=True)], 0, ["Duplicate {}.requests[1]"]),
    ],
)
def test_the_label_for_admin_access_is_checked_before_the_object(
    in_template: bool, requests: list[JSON], first: int, others: list[str]
) -> None:
    obj = claim(*requests)
    where = "spec.spec.devices" if in_template else "spec.devices"
    found = faults(post(template_of(obj) if in_template else obj))
    assert found == [ADMIN.format(first), *(o.format(where) for o in others)]


def allocated(obj: JSON, **result: Any) -> JSON:
    results = [{"request": "a", "driver": "gpu.example.com", "pool": "n1", "device": "d0"} | result]
    return obj | {"status": {"allocation": {"devices": {"results": results}}}}


def test_an_allocation_with_admin_access_needs_the_label_too() -> None:
    old = claim(request(adminAccess=True))
    old["metadata"] |= {"resourceVersion": "1", "uid": "u", "namespace": "default"}
    where = "status.allocation.devices.results[0]"
    assert faults(put(old, allocated(old, adminAccess=True), status=True)) == [f"Forbidden {where}.adminAccess"]
    found = faults(put(old, allocated(old, adminAccess=True, pool=""), status=True))
    assert found == [f"Forbidden {where}.adminAccess", f"Required {where}.pool"]
    assert put(old, allocated(old), status=True)[0] == 200
    there = allocated(old, adminAccess=True)  # allocated while the namespace had the label
    changed = there | {"status": there["status"] | {"reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]}}
    assert put(there, changed, status=True)[0] == 200


def test_the_faults_of_a_range_are_in_the_order_of_the_server() -> None:
    where = "spec.devices[0].capacity[bw].requestPolicy.validRange"
    found = faults(post(policy("10", default="1", validRange={"min": "20", "max": "15"})))
    # First the minimum: above the capacity, above the default, above the maximum. Then the maximum.
    assert found == [f"Invalid {where}.min"] * 2 + [f"Invalid {where}.max"] * 2
    _, (above, below, *_) = post(policy("10", default="1", validRange={"min": "20", "max": "15"}))
    assert "min is larger than capacity value: 10" in above.message
    assert "default is less than min: 20" in below.message


def test_the_message_for_two_policies_quotes_their_names_as_the_server() -> None:
    _, [fault] = post(policy("10", default="1", validRange={"min": "1"}, validValues=["1"]))
    assert fault.message.endswith('cannot specify "validValues" and "validRange" at the same time')


def test_duplicates_are_reported_after_the_faults_of_all_items() -> None:
    devices = [{"name": "a"}, {"name": "a"}, {"name": "B"}]
    assert faults(post(a_slice(devices=devices))) == ["Invalid spec.devices[2].name", "Duplicate spec.devices[1]"]
    requests = [request("a"), request("a"), request("b", deviceClassName="")]
    assert faults(post(claim(*requests)))[-1].startswith("Duplicate")
