"""The allocator beyond the recorded cases: compared with an exhaustive search, and in bounded time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.scheduling.allocator import search
from dra_devkit.scheduling.allocator.faults import AllocationError, AllocationTimeout
from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.allocator import Allocator

NODE: JSON = {"metadata": {"name": "n1"}}
DRIVER = "d.example.com"


def device(name: str, model: str, takes: JSON | None = None) -> JSON:
    out: JSON = {"name": name, "attributes": {"model": {"string": model}}}
    if takes:
        out["consumesCounters"] = [
            {"counterSet": counter_set, "counters": {"slots": {"value": str(n)}}} for counter_set, n in takes.items()
        ]
    return out


def slices(devices: list[JSON], counters: dict[str, int]) -> list[JSON]:
    sets = [{"name": name, "counters": {"slots": {"value": str(n)}}} for name, n in counters.items()]
    contents: list[JSON] = [{"devices": devices}, *([{"sharedCounters": sets}] if sets else [])]
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": len(contents)}
    return [
        {"metadata": {"name": f"s{i}"}, "spec": {"driver": DRIVER, "pool": pool, "nodeName": "n1", **c}}
        for i, c in enumerate(contents)
    ]


def claim(name: str, requests: list[tuple[int, str | None]]) -> JSON:
    out = []
    for i, (count, model) in enumerate(requests):
        exactly: JSON = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": count}
        if model:
            exactly["selectors"] = [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "{model}"'}}]
        out.append({"name": f"r{i}", "exactly": exactly})
    return {"metadata": {"namespace": "default", "name": name, "uid": name}, "spec": {"devices": {"requests": out}}}


CLASSES = [{"metadata": {"name": "any"}, "spec": {}}]


def device_names(results: list[JSON] | None) -> list[list[str]] | None:
    return None if results is None else [[r["device"] for r in x["devices"]["results"]] for x in results]


def exhaustive_search(
    devices: list[JSON], counters: dict[str, int], claims: list[list[tuple[int, str | None]]]
) -> list[list[str]] | None:
    """Returns the first allocation in the order in which Kubernetes tries them, without pruning."""
    requests_of_claims = [(i, count, model) for i, requests in enumerate(claims) for count, model in requests]
    options = [
        list(itertools.combinations([d for d in devices if model in (None, d["attributes"]["model"]["string"])], count))
        for _, count, model in requests_of_claims
    ]
    for picks in itertools.product(*options):
        names = [d["name"] for pick in picks for d in pick]
        consumed: Counter[str] = Counter()
        for d in (d for pick in picks for d in pick):
            for c in d.get("consumesCounters", []):
                consumed[c["counterSet"]] += int(c["counters"]["slots"]["value"])
        if len(set(names)) == len(names) and all(n <= counters[s] for s, n in consumed.items()):
            out: list[list[str]] = [[] for _ in claims]
            for (i, _, _), pick in zip(requests_of_claims, picks, strict=True):
                out[i] += [d["name"] for d in pick]
            return out
    return None


TAKES = st.one_of(st.none(), st.dictionaries(st.sampled_from(["g0", "g1"]), st.integers(1, 3), min_size=1, max_size=2))
REQUESTS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, "A", "B"])), min_size=1, max_size=2)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("AB"), TAKES), min_size=1, max_size=6),
    st.fixed_dictionaries({"g0": st.integers(0, 6), "g1": st.integers(0, 6)}),
    st.lists(REQUESTS, min_size=1, max_size=2),
)
def test_the_allocator_finds_the_first_allocation_of_an_exhaustive_search(
    device_specs: list[tuple[str, JSON | None]],
    counters: dict[str, int],
    requests_of_claims: list[list[tuple[int, str | None]]],
) -> None:
    devices = [device(f"dev-{i}", model, takes) for i, (model, takes) in enumerate(device_specs)]
    claims = [claim(f"c{i}", requests) for i, requests in enumerate(requests_of_claims)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search, "STEPS_BEFORE_PRUNING", 0)  # small searches are pruned too
        results = Allocator(slices(devices, counters), CLASSES, []).allocate(NODE, claims)
    assert device_names(results) == exhaustive_search(devices, counters, requests_of_claims)


@pytest.mark.parametrize(
    ("devices", "counters", "requests"),
    [
        pytest.param(
            [device(f"gpu{g}-{i}", "A", {f"g{g}": 1}) for g in range(8) for i in range(7)],
            {f"g{g}": 3 for g in range(8)},
            [(25, None)],
            id="25-partitions-of-24",
        ),
        pytest.param(
            [device(f"gpu{g}-{i}", "A", {f"g{g}": 1}) for g in range(8) for i in range(7)],
            {f"g{g}": 3 for g in range(8)},
            [(1, None)] * 25,
            id="25-requests-for-24-partitions",
        ),
        pytest.param([device(f"d{i}", "A") for i in range(18)], {}, [(5, None), (14, None)], id="5-and-14-of-18"),
        pytest.param(
            [device(f"d{i}", "AB"[i % 2]) for i in range(30)],
            {},
            [(10, None), (6, "A"), (6, "B"), (9, None)],
            id="31-of-30-of-two-kinds",
        ),
    ],
)
def test_an_impossible_request_is_rejected_quickly(
    devices: list[JSON], counters: dict[str, int], requests: list[tuple[int, str | None]]
) -> None:
    started = time.process_time()
    assert Allocator(slices(devices, counters), CLASSES, []).allocate(NODE, [claim("c", requests)]) is None
    assert time.process_time() - started < 3


def test_a_search_past_its_time_limit_ends_with_the_schedulers_message() -> None:
    devices = [device(f"d{i}", "A") for i in range(12)]
    for i, d in enumerate(devices):
        d["attributes"]["index"] = {"int": i}
    claim_object = claim("c", [(4, None), (4, None)])
    # No two devices match, so the search tries each choice.
    claim_object["spec"]["devices"]["constraints"] = [
        {"requests": ["r0"], "distinctAttribute": f"{DRIVER}/index"},
        {"requests": ["r1"], "matchAttribute": f"{DRIVER}/index"},
    ]
    with pytest.raises(AllocationTimeout, match="timed out trying to allocate devices"):
        Allocator(slices(devices, {}), CLASSES, [], time_limit=0).allocate(NODE, [claim_object])


def test_one_request_does_not_get_two_shares_of_one_device() -> None:
    shared = {**device("shared", "A"), "allowMultipleAllocations": True, "capacity": {"m": {"value": "10"}}}
    claim_object = claim("c", [(2, None)])
    claim_object["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"m": "1"}}
    assert Allocator(slices([shared], {}), CLASSES, []).allocate(NODE, [claim_object]) is None


def slice_with(name: str, devices: list[str], *, generation: int, count: int, **placement: Any) -> JSON:
    pool = {"name": "p", "generation": generation, "resourceSliceCount": count}
    entries = [device(d, "A") for d in devices]
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": pool, "devices": entries, **placement}}


@pytest.mark.parametrize(
    ("resource_slices", "expected"),
    [
        pytest.param(
            [
                slice_with("here", ["old"], generation=1, count=1, nodeName="n1"),
                slice_with("there", ["new"], generation=2, count=1, nodeName="n2"),
            ],
            [["old"]],
            id="complete-old-generation-on-this-node",
        ),
        pytest.param(
            [
                slice_with("here", ["old"], generation=1, count=2, nodeName="n1"),
                slice_with("there", ["new"], generation=2, count=1, nodeName="n2"),
            ],
            None,
            id="incomplete-old-generation",
        ),
        pytest.param(
            [
                slice_with("here", ["mine"], generation=1, count=2, nodeName="n1"),
                slice_with("there", ["mine"], generation=1, count=2, nodeName="n2"),
            ],
            [["mine"]],
            id="same-name-on-another-node",
        ),
    ],
)
def test_a_pool_consists_of_the_slices_for_the_node(
    resource_slices: list[JSON], expected: list[list[str]] | None
) -> None:
    assert device_names(Allocator(resource_slices, CLASSES, []).allocate(NODE, [claim("c", [(1, None)])])) == expected


def test_admin_access_to_a_shared_device_uses_capacity() -> None:
    shared = {**device("shared", "A"), "allowMultipleAllocations": True, "capacity": {"m": {"value": "10"}}}
    admin, user = claim("admin", [(1, None)]), claim("user", [(1, None)])
    admin["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    for c, amount in ((admin, "8"), (user, "3")):
        c["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"m": amount}}
    allocator = Allocator(slices([shared], {}), CLASSES, [])
    assert allocator.allocate(NODE, [admin, user]) is None
    assert device_names(allocator.allocate(NODE, [user])) == [["shared"]]


def test_a_claims_configuration_is_repeated_for_each_of_its_requests() -> None:
    claim_object = claim("c", [(1, None), (1, None)])
    opaque = {"opaque": {"driver": DRIVER, "parameters": {}}}
    claim_object["spec"]["devices"]["config"] = [
        {"requests": ["r0", "r1"], **opaque},
        {"requests": ["r1"], **opaque},
        opaque,
    ]
    results = Allocator(slices([device("a", "A"), device("b", "A")], {}), CLASSES, []).allocate(NODE, [claim_object])
    assert results
    assert [c.get("requests") for c in results[0]["devices"]["config"]] == [["r0", "r1"], ["r0", "r1"], ["r1"], None]


def test_a_selector_that_fails_on_a_device_of_another_node_fails_the_claim() -> None:
    resource_slice = slice_with("s", ["mine", "theirs"], generation=1, count=1, perDeviceNodeSelection=True)
    for d, name in zip(resource_slice["spec"]["devices"], ("n2", "n1"), strict=True):
        d["nodeName"] = name
    del resource_slice["spec"]["devices"][0]["attributes"]
    with pytest.raises(AllocationError, match="no such key: model"):
        Allocator([resource_slice], CLASSES, []).allocate(NODE, [claim("c", [(1, "A")])])
    assert device_names(Allocator([resource_slice], CLASSES, []).allocate(NODE, [claim("c", [(1, None)])])) == [
        ["theirs"]
    ]


def test_node_selectors_with_reordered_values_are_merged() -> None:
    def selector(*values: str) -> JSON:
        expression = {"key": "zone", "operator": "In", "values": list(values)}
        return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}

    resource_slices = [
        slice_with("a", ["a"], generation=1, count=2, nodeSelector=selector("x", "y")),
        slice_with("b", ["b"], generation=1, count=2, nodeSelector=selector("y", "x")),
    ]
    node = {"metadata": {"name": "n1", "labels": {"zone": "x"}}}
    results = Allocator(resource_slices, CLASSES, []).allocate(node, [claim("c", [(2, None)])])
    assert results
    assert results[0]["nodeSelector"] == selector("x", "y")


async def test_a_cancelled_search_ends() -> None:
    # All devices differ, and no pair satisfies the constraint, so there are millions of combinations to try.
    devices = [device(f"d{i}", "A") for i in range(24)]
    for i, d in enumerate(devices):
        d["attributes"] |= {"index": {"int": i}, "pair": {"int": i // 2}}
    claim_object = claim("c", [(2, None)] * 9)
    claim_object["spec"]["devices"]["constraints"] = [
        {"requests": [f"r{i}"], "matchAttribute": f"{DRIVER}/pair"} for i in range(8)
    ] + [{"requests": ["r8"], "matchAttribute": f"{DRIVER}/index"}]
    allocator = Allocator(slices(devices, {}), CLASSES, [], time_limit=120)
    running = asyncio.create_task(asyncio.to_thread(allocator.allocate, NODE, [claim_object]))
    done, _ = await asyncio.wait([running], timeout=0.3)
    assert not done
    allocator.cancel()
    with pytest.raises(AllocationTimeout):
        await asyncio.wait_for(running, 60)


@pytest.mark.parametrize("counts", [[20], [20, 30]], ids=["one", "alternatives"])
def test_a_search_skips_an_alternative_with_which_the_claim_exceeds_the_limit_of_devices(counts: list[int]) -> None:
    """If the first request got 20 devices, no way to satisfy the second one would stay below 32 devices."""
    requests = []
    for name, options in (("x", [20, 1]), ("y", counts)):
        alternatives = [{"name": f"s{c}", "deviceClassName": "any", "count": c} for c in options]
        requests.append({"name": name, "firstAvailable": alternatives})
    if len(counts) == 1:
        requests[1] = {"name": "y", "exactly": {"deviceClassName": "any", "count": counts[0]}}
    claim_object = {"metadata": {"namespace": "default", "name": "c"}, "spec": {"devices": {"requests": requests}}}
    published = slices([device(f"d{i}", "A") for i in range(40)], {})
    found = device_names(Allocator(published, CLASSES, [], time_limit=5).allocate(NODE, [claim_object]))
    assert found
    assert len(found[0]) == 21
