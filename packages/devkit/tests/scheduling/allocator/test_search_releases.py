"""The rules of the allocator that differ between releases: each is tested in the last release without it and in the first with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import RELEASES, Features, allocator_behavior, nearest
from dra_devkit.scheduling.allocator.faults import AllocationError
from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.allocator import Allocator

DRIVER = "gpu.example.com"
NODE = {"metadata": {"name": "n1", "labels": {}}}
CLASSES = [{"metadata": {"name": "gpu"}, "spec": {}}, {"metadata": {"name": "with-config"}, "spec": {"config": [{}]}}]


def pool(devices: Sequence[JSON], counters: Mapping[str, int] | None = None) -> list[JSON]:
    spec = {"driver": DRIVER, "nodeName": "n1"}
    count = 2 if counters else 1
    out = [{"metadata": {"name": "b"}, "spec": {**spec, "devices": list(devices)}}]
    if counters:
        amounts = {name: {"value": str(n)} for name, n in counters.items()}
        out.append(
            {"metadata": {"name": "a"}, "spec": {**spec, "sharedCounters": [{"name": "set", "counters": amounts}]}}
        )
    for sl in out:
        sl["spec"]["pool"] = {"name": "p", "generation": 1, "resourceSliceCount": count}
    return out


def claim(*requests: JSON, **devices: Any) -> JSON:
    return {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def request(name: str = "r", **fields: Any) -> JSON:
    return {"name": name, "exactly": {"deviceClassName": "gpu", **fields}}


def held(device: str, **fields: Any) -> JSON:
    result = {"request": "r", "driver": DRIVER, "pool": "p", "device": device, **fields}
    return {"metadata": {"name": "other"}, "status": {"allocation": {"devices": {"results": [result]}}}}


def allocate(release: str, slices: Sequence[JSON], wanted: JSON, *allocated: JSON) -> JSON | None:
    found = Allocator(slices, CLASSES, allocated, lambda: "*", release=release).allocate(NODE, [wanted])
    return found[0] if found else None


def devices_of(allocation: JSON | None) -> list[str] | None:
    return [r["device"] for r in allocation["devices"]["results"]] if allocation else None


def shared(name: str, memory: int, **fields: Any) -> JSON:
    capacity = {"memory": {"value": str(memory)}} if memory else {}
    return {"name": name, "allowMultipleAllocations": True, "capacity": capacity, **fields}


def test_distinct_attribute_compares_all_devices_since_1_37() -> None:
    rails = pool([{"name": n, "attributes": {"rail": {"int": v}}} for n, v in (("a", 1), ("b", 2), ("c", 1))])
    wanted = claim(request(count=3), constraints=[{"distinctAttribute": f"{DRIVER}/rail"}])
    assert devices_of(allocate("1.36", rails, wanted)) == ["a", "b", "c"]
    assert allocate("1.37", rails, wanted) is None


def test_distinct_attribute_searches_on_after_a_repeated_value_since_1_37() -> None:
    rails = pool([{"name": n, "attributes": {"rail": {"int": v}}} for n, v in (("a", 1), ("b", 2), ("c", 1), ("d", 3))])
    wanted = claim(request(count=3), constraints=[{"distinctAttribute": f"{DRIVER}/rail"}])
    assert devices_of(allocate("1.37", rails, wanted)) == ["a", "b", "d"]


@pytest.mark.parametrize(("release", "found"), [("1.36", ["b"]), ("1.37", None)])
def test_all_fails_for_an_exhausted_shared_device_since_1_37(release: str, found: list[str] | None) -> None:
    slices = pool([shared("a", 1), shared("b", 1)])
    other = held("a", shareID="s", consumedCapacity={"memory": "1"})
    wanted = claim(request(allocationMode="All", capacity={"requests": {"memory": "1"}}))
    assert devices_of(allocate(release, slices, wanted, other)) == found


@pytest.mark.parametrize("release", ["1.34", "1.36", "1.37"])
def test_all_fails_in_each_release_if_another_claim_holds_a_device(release: str) -> None:
    slices = pool([{"name": "a"}, {"name": "b"}])
    assert allocate(release, slices, claim(request(allocationMode="All")), held("a")) is None
    assert devices_of(allocate(release, slices, claim(request(allocationMode="All")))) == ["a", "b"]


@pytest.mark.parametrize(("release", "found"), [("1.36", ["a"]), ("1.37", ["b"])])
def test_a_device_with_shares_is_not_allocated_as_a_whole_since_1_37(release: str, found: list[str]) -> None:
    slices = pool([{"name": "a"}, {"name": "b"}])  # the device was shareable when the other claim got its share
    assert devices_of(allocate(release, slices, claim(request()), held("a", shareID="s"))) == found


def test_admin_access_to_a_device_with_shares_is_allowed_in_1_37() -> None:
    slices = pool([{"name": "a"}])
    wanted = claim(request(adminAccess=True))
    assert devices_of(allocate("1.37", slices, wanted, held("a", shareID="s"))) == ["a"]


@pytest.mark.parametrize(("release", "found"), [("1.36", None), ("1.37", ["a"])])
def test_a_further_share_without_capacity_consumes_no_counters_since_1_37(
    release: str, found: list[str] | None
) -> None:
    uses = {"consumesCounters": [{"counterSet": "set", "counters": {"slots": {"value": "1"}}}]}
    slices = pool([shared("a", 0, **uses)], {"slots": 1})
    assert devices_of(allocate(release, slices, claim(request()), held("a", shareID="s"))) == found


@pytest.mark.parametrize(("release", "found"), [("1.35", ["b"]), ("1.36", None)])
def test_shares_of_other_claims_consume_counters_since_1_36(release: str, found: list[str] | None) -> None:
    uses = {"consumesCounters": [{"counterSet": "set", "counters": {"slots": {"value": "1"}}}]}
    slices = pool([shared("a", 1, **uses), {"name": "b", **uses}], {"slots": 1})
    other = held("a", shareID="s", consumedCapacity={"memory": "1"})
    assert devices_of(allocate(release, slices, claim(request()), other)) == found


def config_of(release: str, wanted: JSON) -> list[Any]:
    allocation = allocate(release, pool([{"name": n} for n in "abc"]), wanted)
    assert allocation
    return [c.get("requests") for c in allocation["devices"]["config"]]


def test_configuration_for_all_requests_names_no_requests_since_1_37() -> None:
    wanted = claim(request("x"), request("y"), config=[{"requests": ["x", "y"]}, {"requests": ["x"]}])
    assert config_of("1.36", wanted) == [["x", "y"], ["x", "y"], ["x"]]
    assert config_of("1.37", wanted) == [None, None, ["x"]]


def test_configuration_of_a_class_for_all_requests_names_no_requests_since_1_37() -> None:
    wanted = claim(*({"name": n, "exactly": {"deviceClassName": "with-config"}} for n in "xy"))
    assert config_of("1.36", wanted) == [["x", "y"]]
    assert config_of("1.37", wanted) == [None]


def test_configuration_for_alternatives_of_one_of_two_requests_keeps_its_names_in_1_37() -> None:
    options = [{"name": n, "deviceClassName": "gpu"} for n in ("s", "t")]
    wanted = claim({"name": "x", "firstAvailable": options}, request("y"), config=[{"requests": ["x/s", "x/t"]}])
    assert config_of("1.37", wanted) == [["x/s", "x/t"]]


def test_configuration_for_the_chosen_alternative_of_the_only_request_names_no_requests_in_1_37() -> None:
    options = [{"name": n, "deviceClassName": "gpu"} for n in ("s", "t")]
    wanted = claim({"name": "x", "firstAvailable": options}, config=[{"requests": ["x/s"]}])
    assert config_of("1.36", wanted) == [["x/s"]]
    assert config_of("1.37", wanted) == [None]


@pytest.mark.parametrize("release", ["1.34", "1.37"])
@pytest.mark.parametrize("mode", ["All", "ExactCount"])
def test_the_error_of_an_invalid_pool_has_the_words_of_kubernetes(mode: str, release: str) -> None:
    slices = pool([{"name": "a"}, {"name": "a"}])
    expected = "invalid resource pools were encountered"
    if mode == "All":
        expected = (
            f"claim default/c, request r: asks for all devices, but resource pool {DRIVER}/p is currently invalid"
        )
    with pytest.raises(AllocationError) as caught:
        allocate(release, slices, claim(request(allocationMode=mode)))
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("v1.36.2", "1.36"),
        ("v1.37.0-alpha.1+dra-local", "1.37"),
        ("1.35", "1.35"),
        ("v1.33.9", "1.34"),
        ("v1.99.0", RELEASES[-1]),
        ("", "1.36"),
        ("unknown", "1.36"),
    ],
)
def test_a_version_has_the_rules_of_the_nearest_known_release(version: str, release: str) -> None:
    assert nearest(version) == release
    assert allocator_behavior(version) == Features.of(release, {}).allocator
