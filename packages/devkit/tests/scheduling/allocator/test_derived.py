"""Derived attributes of requests in constraints (KEP-6080), with the examples of the proposal."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.scheduling.allocator.faults import AllocationError
from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.allocator import Allocator

NODE = {"metadata": {"name": "n1", "labels": {}}}
GPU, NIC = "gpu.example.com", "nic.example.com"
CLASSES = [
    {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}}
    for name, driver in (("gpu", GPU), ("nic", NIC))
]


def pool(driver: str, **devices: JSON) -> JSON:
    found = [{"name": name, "attributes": attributes} for name, attributes in devices.items()]
    spec = {"driver": driver, "nodeName": "n1", "devices": found}
    return {
        "metadata": {"name": driver},
        "spec": {**spec, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}},
    }


def request(name: str, expression: str = "", *, derived: str = "derived/key", **fields: Any) -> JSON:
    attributes = {"derivedAttributes": [{"name": derived, "expression": expression}]} if expression else {}
    return {"name": name, "exactly": {"deviceClassName": name, "count": 1, **attributes, **fields}}


def claim(*requests: JSON, kind: str = "matchAttribute", name: str = "derived/key") -> JSON:
    spec = {"devices": {"requests": list(requests), "constraints": [{kind: name}]}}
    return {"metadata": {"name": "c", "namespace": "default"}, "spec": spec}


def allocate(wanted: JSON, *slices: JSON) -> list[str] | None:
    """Returns the allocated devices."""
    found = Allocator(slices, CLASSES, ()).allocate(NODE, [wanted])
    return [result["device"] for result in found[0]["devices"]["results"]] if found else None


def string(value: str) -> JSON:
    return {"string": value}


GPUS = pool(
    GPU,
    g0={"numa": {"int": 0}, "topology": string("numa0-pcie1"), "memory": {"int": 40}},
    g1={"numa": {"int": 1}, "topology": string("numa1-pcie0"), "memory": {"int": 80}},
)
NICS = pool(NIC, e1={"numaNode": {"int": 1}, "place": string("numa1"), "index": string("eth1")})


@pytest.mark.parametrize(
    ("of_gpu", "of_nic"),
    [
        ("device.attributes['gpu.example.com'].numa", "device.attributes['nic.example.com'].numaNode"),
        ("device.attributes['gpu.example.com'].topology.split('-')[0]", "device.attributes['nic.example.com'].place"),
        ("device.attributes['gpu.example.com'].memory >= 80 ? 'tier-1' : 'tier-2'", "'tier-1'"),
        (
            "string(device.attributes['gpu.example.com'].numa)",
            "device.attributes['nic.example.com'].index.replace('eth', '')",
        ),
        ("[device.attributes['gpu.example.com'].numa, device.attributes['gpu.example.com'].memory]", "[1, 8]"),
        ("semver('1.0.' + string(device.attributes['gpu.example.com'].numa))", "semver('1.0.1')"),
        ("device.attributes['gpu.example.com'].numa == 1", "true"),
    ],
)
def test_devices_of_two_drivers_are_matched_by_derived_attributes(of_gpu: str, of_nic: str) -> None:
    assert allocate(claim(request("gpu", of_gpu), request("nic", of_nic)), GPUS, NICS) == ["g1", "e1"]


def test_a_derived_attribute_shadows_the_attribute_of_the_device_for_its_request_only() -> None:
    nics = pool(NIC, e0={f"{GPU}/numa": {"int": 0}})
    shadowed = request("gpu", "1 - device.attributes['gpu.example.com'].numa", derived=f"{GPU}/numa")
    assert allocate(claim(request("gpu"), request("nic"), name=f"{GPU}/numa"), GPUS, nics) == ["g0", "e0"]
    assert allocate(claim(shadowed, request("nic"), name=f"{GPU}/numa"), GPUS, nics) == ["g1", "e0"]


def test_devices_with_distinct_derived_attributes_are_allocated() -> None:
    gpus = pool(GPU, a={"topology": string("x-0")}, b={"topology": string("x-1")}, c={"topology": string("y-0")})
    expression = "device.attributes['gpu.example.com'].topology.split('-')[0]"
    wanted = request("gpu", expression, count=2)
    assert allocate(claim(wanted, kind="distinctAttribute"), gpus) == ["a", "c"]


def test_an_empty_list_matches_no_device() -> None:
    empty = "device.attributes['gpu.example.com'].numa == 1 ? [] : ['x']"
    assert allocate(claim(request("gpu", empty), request("nic", "['y']")), GPUS, NICS) is None


def test_each_alternative_has_its_own_derived_attributes() -> None:
    derived = [{"name": "derived/key", "expression": "device.attributes['gpu.example.com'].numa + 5"}]
    first = {"name": "none", "deviceClassName": "gpu", "count": 1, "derivedAttributes": derived}
    derived = [{"name": "derived/key", "expression": "device.attributes['gpu.example.com'].numa"}]
    second = {"name": "numa", "deviceClassName": "gpu", "count": 1, "derivedAttributes": derived}
    options = {"name": "gpu", "firstAvailable": [first, second]}
    nic = request("nic", "device.attributes['nic.example.com'].numaNode")
    assert allocate(claim(options, nic), GPUS, NICS) == ["g1", "e1"]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("device.attributes['gpu.example.com'].missing", "no such key: missing"),
        ("dyn(1.5)", "unsupported CEL return type: double"),
        ("[dyn(1), dyn('a')]", "expected list element at index 1 to be int, got string"),
        ("[device.capacity]", "must evaluate to a primitive scalar (string, integer, boolean, semver) or a list"),
    ],
)
def test_an_expression_that_fails_on_a_device_fails_the_pod(expression: str, why: str) -> None:
    with pytest.raises(AllocationError) as e:
        allocate(claim(request("gpu", expression)), GPUS)
    assert "request gpu: derived attribute derived/key: CEL" in str(e.value) and why in str(e.value)


def test_an_expression_is_evaluated_only_on_devices_that_the_selectors_accept() -> None:
    gpus = pool(GPU, bare={}, g1={"numa": {"int": 1}})
    has_numa = [{"cel": {"expression": "has(device.attributes['gpu.example.com'].numa)"}}]
    wanted = request("gpu", "device.attributes['gpu.example.com'].numa", selectors=has_numa)
    assert allocate(claim(wanted), gpus) == ["g1"]


def test_a_long_search_distinguishes_devices_by_their_derived_attributes() -> None:
    """After many steps, devices with equal values in constraints count as equivalent."""
    gpus = pool(GPU, **{f"g{i:02}": {"serial": string(f"{i:02}")} for i in range(60)})
    last = "device.attributes['gpu.example.com'].serial >= '56' ? 'end' : device.attributes['gpu.example.com'].serial"
    assert allocate(claim(request("gpu", last, count=4)), gpus) == ["g56", "g57", "g58", "g59"]
