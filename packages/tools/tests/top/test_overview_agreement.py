"""The list of `dra explain`, `dra top`, the page of `dra dev` and `dra simulate` agree on random clusters."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Explanation, Snapshot, explain, overview, simulate, waiting
from dra_tools.page import usage_page
from dra_tools.usage.rows import TAKEN, Overview, PodRow
from packages.tools.tests.explanation.test_what_if import EXTENDED, cluster
from packages.tools.tests.objects import claim, node, pod
from packages.tools.tests.page.test_usage_page import request


def waiting_pods(r: Random) -> list[JSON]:
    """Returns pods in each state between creation and end. Some request no devices."""
    states: list[JSON] = [
        {}, {"nodeName": "a"}, {"nodeName": "gone"}, {"schedulingGates": [{"name": "queue"}]}, {"schedulerName": "volcano"},
        {"status": {"phase": "Running"}, "nodeName": "a"}, {"status": {"phase": "Failed"}}, {"status": {}},
    ]  # fmt: skip
    found = []
    for number in range(r.randint(0, 8)):
        names = r.choice([(), ("c0",), ("absent",)])
        resources = r.choice([{}, {}, {"requests": {r.choice([EXTENDED, "example.com/typo", "cpu"]): "1"}}])
        pod_object = pod(*names, name=f"w{number}", resources=resources, **dict(r.choice(states)))
        pod_object["metadata"]["creationTimestamp"] = f"2026-01-0{r.randint(1, 9)}T00:00:00Z"
        if r.random() < 0.1:
            pod_object["metadata"]["deletionTimestamp"] = "2026-02-01T00:00:00Z"
        found.append(pod_object)
    return found


def page_of(found: Overview) -> Any:
    """Returns the data that the page of `dra dev` receives."""
    return msgspec.json.decode(usage_page.data(request("/overview.json"), found).body)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_list_top_and_page_show_the_same_pods_and_explain_returns_the_same_causes(seed: int) -> None:
    r = Random(seed)
    objects = [*cluster(r), *waiting_pods(r)]
    snapshot = Snapshot.of(objects)
    listed = waiting(snapshot)
    top = overview(snapshot)
    assert [e.subject for e in listed] == [_subject(p) for p in top.waiting]
    page = page_of(top)
    assert [f"pod {p['namespace']}/{p['name']}" for p in page["waiting"]] == [e.subject for e in listed]
    assert page["count"]["waiting"] == top.count.waiting == len(listed)
    for row, explanation in zip(top.waiting, listed, strict=True):
        single = explain(snapshot, row.name)
        assert (single.state, single.summary) == (explanation.state, explanation.summary)
    pod_names = {p["metadata"]["name"] for p in objects if p["kind"] == "Pod"}
    for name in pod_names - {p.name for p in top.waiting}:
        assert not _waits(snapshot, name), name


def _subject(row: PodRow) -> str:
    return f"pod {row.namespace}/{row.name}"


def _waits(snapshot: Snapshot, name: str) -> bool:
    obj = next(p for p in snapshot.pods if p["metadata"]["name"] == name)
    requests_devices = obj["spec"].get("resourceClaims") or any(
        "/" in resource for c in obj["spec"]["containers"] for resource in (c["resources"].get("requests") or {})
    )
    pending = (obj["status"].get("phase") or "Pending") == "Pending"
    return bool(requests_devices and pending and not obj["metadata"].get("deletionTimestamp"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_top_page_and_simulate_count_the_same_devices_free_and_held(seed: int) -> None:
    objects = [o for o in cluster(Random(seed)) if o["kind"] != "Pod"]
    snapshot = Snapshot.of(objects)
    count = overview(snapshot).count
    unschedulable = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "s"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"no": "node"}},
    }
    after = simulate(snapshot, [unschedulable])
    for name in ("devices", "free", "held", "shared", "blocked", "unavailable"):
        assert getattr(after, name) == getattr(count, name), name
    shown = page_of(overview(snapshot))
    uses = [d["use"] for d in shown["devices"]]
    assert (uses.count("free"), uses.count("blocked"), uses.count("unavailable")) == (
        count.free,
        count.blocked,
        count.unavailable,
    )
    assert sum(n["held"] for n in shown["nodes"]) == sum(
        1 for d in overview(snapshot).devices if d.node and d.use in TAKEN
    )


def test_a_waiting_pod_with_a_missing_claim_is_listed_and_explained() -> None:
    found: list[Explanation] = waiting(Snapshot.of([node("a"), claim("other"), pod("c", nodeName="a")]))
    assert [e.summary for e in found] == ["claim default/c does not exist"]
