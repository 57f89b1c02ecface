"""The allocator beyond the recorded answers: against a search that tries everything, and in bounded time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.scheduling.allocator import search
from dra_kubeletplugin.scheduling.allocator.faults import AllocationError, AllocationTimeout
from tests.helpers.allocator import Allocator

JSON = dict[str, Any]
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


def chosen(results: list[JSON] | None) -> list[list[str]] | None:
    return None if results is None else [[r["device"] for r in x["devices"]["results"]] for x in results]


def first_of_all(
    devices: list[JSON], counters: dict[str, int], claims: list[list[tuple[int, str | None]]]
) -> list[list[str]] | None:
    """The first of all allocations, in the order in which Kubernetes tries them, with no shortcut."""
    wanted = [(i, count, model) for i, requests in enumerate(claims) for count, model in requests]
    options = [
        list(itertools.combinations([d for d in devices if model in (None, d["attributes"]["model"]["string"])], count))
        for _, count, model in wanted
    ]
    for picks in itertools.product(*options):
        names = [d["name"] for pick in picks for d in pick]
        taken: Counter[str] = Counter()
        for d in (d for pick in picks for d in pick):
            for c in d.get("consumesCounters", []):
                taken[c["counterSet"]] += int(c["counters"]["slots"]["value"])
        if len(set(names)) == len(names) and all(n <= counters[s] for s, n in taken.items()):
            out: list[list[str]] = [[] for _ in claims]
            for (i, _, _), pick in zip(wanted, picks, strict=True):
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
def test_the_first_allocation_of_a_search_that_tries_everything_is_found(
    made: list[tuple[str, JSON | None]], counters: dict[str, int], wanted: list[list[tuple[int, str | None]]]
) -> None:
    devices = [device(f"dev-{i}", model, takes) for i, (model, takes) in enumerate(made)]
    claims = [claim(f"c{i}", requests) for i, requests in enumerate(wanted)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search, "STEPS_BEFORE_PRUNING", 0)  # so that small searches are pruned too
        found = Allocator(slices(devices, counters), CLASSES, []).allocate(NODE, claims)
    assert chosen(found) == first_of_all(devices, counters, wanted)


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
def test_more_than_there_is_is_refused_at_once(
    devices: list[JSON], counters: dict[str, int], requests: list[tuple[int, str | None]]
) -> None:
    started = time.process_time()
    assert Allocator(slices(devices, counters), CLASSES, []).allocate(NODE, [claim("c", requests)]) is None
    assert time.process_time() - started < 3


def test_a_search_that_takes_too_long_ends_with_the_words_of_the_scheduler() -> None:
    devices = [device(f"d{i}", "A") for i in range(12)]
    for i, d in enumerate(devices):
        d["attributes"]["index"] = {"int": i}
    wanted = claim("c", [(4, None), (4, None)])
    # No two devices agree: each choice has to be tried.
    wanted["spec"]["devices"]["constraints"] = [
        {"requests": ["r0"], "distinctAttribute": f"{DRIVER}/index"},
        {"requests": ["r1"], "matchAttribute": f"{DRIVER}/index"},
    ]
    with pytest.raises(AllocationTimeout, match="timed out trying to allocate devices"):
        Allocator(slices(devices, {}), CLASSES, [], time_limit=0).allocate(NODE, [wanted])


def test_one_request_does_not_get_two_shares_of_one_device() -> None:
    shared = {**device("shared", "A"), "allowMultipleAllocations": True, "capacity": {"m": {"value": "10"}}}
    ask = claim("c", [(2, None)])
    ask["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"m": "1"}}
    assert Allocator(slices([shared], {}), CLASSES, []).allocate(NODE, [ask]) is None


def one_slice(name: str, devices: list[str], *, generation: int, count: int, **where: Any) -> JSON:
    pool = {"name": "p", "generation": generation, "resourceSliceCount": count}
    made = [device(d, "A") for d in devices]
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": pool, "devices": made, **where}}


@pytest.mark.parametrize(
    ("made", "found"),
    [
        pytest.param(
            [
                one_slice("here", ["old"], generation=1, count=1, nodeName="n1"),
                one_slice("there", ["new"], generation=2, count=1, nodeName="n2"),
            ],
            [["old"]],
            id="an-old-generation-that-is-whole-here",
        ),
        pytest.param(
            [
                one_slice("here", ["old"], generation=1, count=2, nodeName="n1"),
                one_slice("there", ["new"], generation=2, count=1, nodeName="n2"),
            ],
            None,
            id="an-old-generation-that-is-not",
        ),
        pytest.param(
            [
                one_slice("here", ["mine"], generation=1, count=2, nodeName="n1"),
                one_slice("there", ["mine"], generation=1, count=2, nodeName="n2"),
            ],
            [["mine"]],
            id="a-name-that-another-node-has-too",
        ),
    ],
)
def test_a_pool_is_what_the_slices_for_the_node_state(made: list[JSON], found: list[list[str]] | None) -> None:
    assert chosen(Allocator(made, CLASSES, []).allocate(NODE, [claim("c", [(1, None)])])) == found


def test_admin_access_to_a_shared_device_takes_capacity() -> None:
    shared = {**device("shared", "A"), "allowMultipleAllocations": True, "capacity": {"m": {"value": "10"}}}
    admin, user = claim("admin", [(1, None)]), claim("user", [(1, None)])
    admin["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    for c, amount in ((admin, "8"), (user, "3")):
        c["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"m": amount}}
    allocator = Allocator(slices([shared], {}), CLASSES, [])
    assert allocator.allocate(NODE, [admin, user]) is None
    assert chosen(allocator.allocate(NODE, [user])) == [["shared"]]


def test_a_claims_configuration_is_repeated_for_each_request_that_it_is_for() -> None:
    wanted = claim("c", [(1, None), (1, None)])
    opaque = {"opaque": {"driver": DRIVER, "parameters": {}}}
    wanted["spec"]["devices"]["config"] = [{"requests": ["r0", "r1"], **opaque}, {"requests": ["r1"], **opaque}, opaque]
    results = Allocator(slices([device("a", "A"), device("b", "A")], {}), CLASSES, []).allocate(NODE, [wanted])
    assert results
    assert [c.get("requests") for c in results[0]["devices"]["config"]] == [["r0", "r1"], ["r0", "r1"], ["r1"], None]


def test_a_selector_that_fails_on_another_nodes_device_fails_the_claim() -> None:
    made = one_slice("s", ["mine", "theirs"], generation=1, count=1, perDeviceNodeSelection=True)
    for d, name in zip(made["spec"]["devices"], ("n2", "n1"), strict=True):
        d["nodeName"] = name
    del made["spec"]["devices"][0]["attributes"]
    with pytest.raises(AllocationError, match="no such key: model"):
        Allocator([made], CLASSES, []).allocate(NODE, [claim("c", [(1, "A")])])
    assert chosen(Allocator([made], CLASSES, []).allocate(NODE, [claim("c", [(1, None)])])) == [["theirs"]]


def test_selectors_of_nodes_are_merged_whatever_the_order_of_their_values() -> None:
    def selector(*values: str) -> JSON:
        expression = {"key": "zone", "operator": "In", "values": list(values)}
        return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}

    made = [
        one_slice("a", ["a"], generation=1, count=2, nodeSelector=selector("x", "y")),
        one_slice("b", ["b"], generation=1, count=2, nodeSelector=selector("y", "x")),
    ]
    node = {"metadata": {"name": "n1", "labels": {"zone": "x"}}}
    results = Allocator(made, CLASSES, []).allocate(node, [claim("c", [(2, None)])])
    assert results
    assert results[0]["nodeSelector"] == selector("x", "y")


async def test_a_search_that_nobody_waits_for_ends() -> None:
    # Devices that all differ, in pairs that a constraint wants and none has: there are millions of ways to fail.
    devices = [device(f"d{i}", "A") for i in range(24)]
    for i, d in enumerate(devices):
        d["attributes"] |= {"index": {"int": i}, "pair": {"int": i // 2}}
    wanted = claim("c", [(2, None)] * 9)
    wanted["spec"]["devices"]["constraints"] = [
        {"requests": [f"r{i}"], "matchAttribute": f"{DRIVER}/pair"} for i in range(8)
    ] + [{"requests": ["r8"], "matchAttribute": f"{DRIVER}/index"}]
    allocator = Allocator(slices(devices, {}), CLASSES, [], time_limit=120)
    running = asyncio.create_task(asyncio.to_thread(allocator.allocate, NODE, [wanted]))
    done, _ = await asyncio.wait([running], timeout=0.3)
    assert not done
    allocator.cancel()
    with pytest.raises(AllocationTimeout):
        await asyncio.wait_for(running, 60)
