"""The rows of `dra top` and of the pages are created from slices and claims, sorted and served."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Snapshot
from dra_tools.top.overview import overview
from dra_tools.usage.rows import PodReason
from packages.tools.tests.usage.test_usage import slice_of


def test_the_overview_of_a_node_has_the_devices_for_its_name_its_labels_and_all_nodes() -> None:
    term = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}]}
    slices = [
        slice_of("n1", [{"name": "own"}]),
        slice_of("n2", [{"name": "other"}]),
        slice_of("", [{"name": "all"}], pool="all", allNodes=True),
        slice_of("", [{"name": "rack"}], pool="rack", nodeSelector=term),
        slice_of(
            "",
            [{"name": "x", "nodeName": "n1"}, {"name": "y", "nodeName": "n2"}],
            pool="per",
            perDeviceNodeSelection=True,
        ),
    ]
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": n, "labels": {"rack": r}},
            "spec": {"unschedulable": n == "n2"},
        }
        for n, r in (("n1", "a"), ("n2", "b"))
    ]
    snapshot = Snapshot.of([*slices, *nodes])
    assert {d.name for d in overview(snapshot, "n1").devices} == {"own", "all", "rack", "x"}
    assert {d.name for d in overview(snapshot, "n2").devices} == {"other", "all", "y"}
    assert overview(snapshot, "n3").notes == ("there is no node n3",)
    whole = overview(snapshot)
    assert whole.count.devices == 6
    assert [(n.name, n.devices, n.unschedulable) for n in whole.nodes] == [("n1", 2, ""), ("n2", 2, "cordoned")]


def test_the_overview_lists_pods_that_wait_for_devices_oldest_first() -> None:
    def pod(name: str, created: str, phase: str = "Pending", **spec: Any) -> JSON:
        spec = {"containers": [{"name": "c"}], "resourceClaims": [{"name": "x", "resourceClaimName": "c"}], **spec}
        conditions = [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]
        meta = {"name": name, "namespace": "ml", "creationTimestamp": created}
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase, "conditions": conditions},
        }  # fmt: skip

    pods = [
        pod("new", "2026-02-01T00:00:00Z"), pod("old", "2026-01-01T00:00:00Z"), pod("runs", "2026-01-01T00:00:00Z", "Running"),
        pod("plain", "2026-01-01T00:00:00Z", resourceClaims=[]), pod("there", "2026-03-01T00:00:00Z", nodeName="n2"),
    ]  # fmt: skip
    snapshot = Snapshot.of(pods)
    old = snapshot.pods[1]["metadata"]["uid"]
    found = overview(snapshot, reasons={old: PodReason("because")}).waiting
    assert [(p.name, p.requests, p.message, p.reason) for p in found] == [
        ("old", ("c",), "0/1 nodes are available", "because"),
        ("new", ("c",), "0/1 nodes are available", ""),
        ("there", ("c",), "0/1 nodes are available", ""),
    ]
    assert [p.name for p in overview(snapshot, "n1").waiting] == ["old", "new"]
