"""The exact text of ``explain`` for each pod of one recorded cluster.

``waiting_cluster.yaml`` was recorded on a local cluster with two nodes. Each node has four cards of one driver, published as whole cards,
halves and quarters. Node-2 is cordoned.
"""

from __future__ import annotations

import textwrap
from functools import cache
from pathlib import Path

import pytest

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Explanation, Snapshot, explain, from_files, overview, simulate, waiting
from dra_tools.commands.explain_text import text
from dra_tools.usage.rows import DeviceUse, Occupancy

FILE = Path(__file__).with_name("waiting_cluster.yaml")
EXTENDED = "nimbus.example.com/n4"

EXPECTED_TEXT = {
    "by-hand": """
        pod default/by-hand waits: the pod was created with nodeName node-1, so no scheduler looks at it, and claim
          default/by-hand-c-bgdv7 is never allocated
          to change: create the pod without nodeName, and use a nodeSelector to choose the node
        """,
    "gated": """
        pod default/gated waits: the pod has scheduling gates: queue.example.com/wait
          to change: the component that set them must remove them

        apart from that, 1 of 2 nodes would take it now: node-1

        Kubernetes says: Scheduling is blocked due to non-empty scheduling gates
        """,
    "gated4": """
        pod default/gated4 waits: the pod has scheduling gates: queue.example.com/wait
          to change: the component that set them must remove them

        apart from that, no node would take it now: too few devices for request r (another claim holds it), on 1 of 2 nodes;
          on 1 more: the node is unschedulable

        1 node: node-2
          - the node is unschedulable

        1 node: node-1
          - claim gated4-c-2z469, request r: 4 devices of class n4.nimbus.example.com; each node has at most 3 usable
              1x another claim holds it (node-1/n4-0000-17-00-0: claim default/whole-n4-qd4d5 of pod default/whole)

        Kubernetes says: Scheduling is blocked due to non-empty scheduling gates
        """,
    "other-scheduler": """
        pod default/other-scheduler waits: the pod names the scheduler volcano, but no visible pod was scheduled by it
          to change: start a scheduler named volcano, or create the pod without schedulerName

        apart from that, no node would take it now: too few devices for request r (another claim holds it), on 1 of 2 nodes;
          on 1 more: the node is unschedulable

        1 node: node-2
          - the node is unschedulable

        1 node: node-1
          - claim other-scheduler-c-z464r, request r: 4 devices of class n4.nimbus.example.com; each node has at most 3 usable
              1x another claim holds it (node-1/n4-0000-17-00-0: claim default/whole-n4-qd4d5 of pod default/whole)
        """,
    "root": """
        pod default/root waits: no choice of devices satisfies matchAttribute resource.kubernetes.io/pcieRoot, on 1 of 2
          nodes; on 1 more: the node is unschedulable

        1 node: node-1
          - no choice of devices satisfies matchAttribute resource.kubernetes.io/pcieRoot (node-1: values of the usable
            devices: pci0000:98 on 2, pci0000:17 on 1)

        1 node: node-2
          - the node is unschedulable

        each of these changes alone would be enough (tried with the allocator):
          - remove the constraint matchAttribute resource.kubernetes.io/pcieRoot from claim root-c-vd496 (on node-1)
          - ask for 2 instead of 3 in request r (on node-1)

        Kubernetes says: 0/2 nodes are available: 1 cannot allocate all claims, 1 node(s) were unschedulable. still not
          schedulable, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        """,
    "typo": """
        pod default/typo waits: the node has no nimbus.example.com/n5, and no DeviceClass provides it (there is
          nimbus.example.com/n4), on all 2 nodes

        1 node: node-1
          - the node has no nimbus.example.com/n5, and no DeviceClass provides it (there is nimbus.example.com/n4)

        1 node: node-2
          - the node is unschedulable
          - the node has no nimbus.example.com/n5, and no DeviceClass provides it (there is nimbus.example.com/n4)

        no single change that was tried is enough; on node-1 each of these removes a reason:
          - a DeviceClass with extendedResourceName nimbus.example.com/n5, or a device plugin that provides it

        Kubernetes says: 0/2 nodes are available: 1 Insufficient nimbus.example.com/n5, 1 node(s) were unschedulable. no new
          claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.
        """,
    "whole": """
        pod default/whole runs: it runs on node-1
          claim whole-n4-qd4d5 for pod default/whole
            n4: nimbus.example.com/node-1/n4-0000-17-00-0 on node-1, slice 00001-nimbus.example.com-node-1-4j9cv
        """,
}


@cache
def cluster() -> tuple[JSON, ...]:
    return tuple(from_files([FILE]))


def with_pod(name: str, count: str) -> Snapshot:
    container = {"name": "main", "resources": {"requests": {EXTENDED: count}, "limits": {EXTENDED: count}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    return Snapshot.of([*cluster(), pod])


def rendered(found: Explanation) -> str:
    return "\n".join(text(found, Style(coloured=False)))


@pytest.mark.parametrize("name", EXPECTED_TEXT)
def test_the_explanation_of_a_pod_has_the_expected_text(name: str) -> None:
    assert rendered(explain(Snapshot.of(cluster()), name)) == textwrap.dedent(EXPECTED_TEXT[name]).strip()


def test_the_list_and_top_show_the_same_pods_with_the_same_cause() -> None:
    snapshot = Snapshot.of(cluster())
    listed = waiting(snapshot)
    assert {e.subject.rpartition("/")[2] for e in listed} == EXPECTED_TEXT.keys() - {"whole"}
    assert [f"pod {p.namespace}/{p.name}" for p in overview(snapshot).waiting] == [e.subject for e in listed]
    assert all(rendered(e).startswith(f"{e.subject} waits: {e.summary[:40]}") for e in listed)


def test_explain_uses_the_pods_name_for_an_extended_resource() -> None:
    found = explain(with_pod("five", "5"), "five")
    assert found.summary.startswith(
        f"the node has fewer than 5 devices for {EXTENDED} in container main, on all 2 nodes"
    )
    output = " ".join(rendered(found).split())
    assert f"{EXTENDED}: 5 in container main, of class n4.nimbus.example.com; each node has at most 3 usable" in output
    assert f"ask for 3 instead of 5 of {EXTENDED} in container main (on node-1)" in output
    assert "container-0-request" not in output


def test_explain_shows_the_command_that_uncordons_a_suitable_node() -> None:
    found = explain(with_pod("four", "4"), "four")
    change = next(c for c in found.changes if c.command)
    assert (change.text, change.example) == ("make the node schedulable again", "node-2")
    assert "      kubectl uncordon node-2" in rendered(found).splitlines()


def test_the_overview_counts_cards_and_devices_by_their_availability_for_requests() -> None:
    found = overview(Snapshot.of(cluster()))
    uses = {(d.node, d.name): d.use for d in found.devices}
    assert {use for (node, _), use in uses.items() if node == "node-2"} == {DeviceUse.UNAVAILABLE}
    card_uses = {name: use for (node, name), use in uses.items() if node == "node-1" and "0000-17-00-0" in name}
    assert card_uses.pop("n4-0000-17-00-0") is DeviceUse.HELD
    assert set(card_uses.values()) == {DeviceUse.BLOCKED}
    assert len(card_uses) == 6
    assert [(n.name, n.occupancy) for n in found.nodes] == [
        ("node-1", Occupancy(4, 1.0)),
        ("node-2", Occupancy(4, 0.0)),
    ]


def test_quarters_that_use_all_cards_leave_no_device_free() -> None:
    """When the 16 quarters of four cards are allocated, the halves and whole cards are blocked."""
    objects = [o for o in cluster() if o["kind"] not in {"Pod", "ResourceClaim"}]
    selector = 'device.attributes["nimbus.example.com"].profile == "quarter"'
    quarter = {"deviceClassName": "n4-part.nimbus.example.com", "selectors": [{"cel": {"expression": selector}}]}
    spec = {"devices": {"requests": [{"name": "r", "exactly": quarter}]}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "q"},
        "spec": {"spec": spec},
    }
    pod_spec = {
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "q"}]}}],
        "resourceClaims": [{"name": "q", "resourceClaimTemplateName": "q"}],
    }
    labels = {"app": "q"}
    deployment = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "q"},
        "spec": {"replicas": 16, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod_spec}},
    }  # fmt: skip
    found = simulate(Snapshot.of(objects), [template, deployment])
    assert found.fits
    assert (found.devices, found.free, found.held, found.blocked, found.unavailable) == (56, 0, 16, 12, 28)
