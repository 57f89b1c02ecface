"""`dra explain` names a rolling update whose new pod waits for the device of the old pod, and the change of the Deployment."""

from __future__ import annotations

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Explanation, Snapshot, explain
from packages.tools.tests.objects import CLASS, allocated_claim, claim, gpu, node, pod, pool

TEXT = "let Deployment train delete its old pod before the new pod starts: strategy Recreate"
COMMAND = """kubectl patch deployment train -n default --type merge -p '{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}'"""


def of_deployment(obj: JSON, name: str, template_hash: str) -> JSON:
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": f"{name}-{template_hash}",
        "uid": "r",
        "controller": True,
    }
    meta = {"labels": {"pod-template-hash": template_hash}, "ownerReferences": [owner], "uid": obj["metadata"]["name"]}
    return {**obj, "metadata": {**obj["metadata"], **meta}}


def update(
    deployment: str = "train", old_hash: str = "aaa", *more: JSON, devices: tuple[str, ...] = ("g0",)
) -> Explanation:
    """Explains the new pod p of the Deployment train. The pod ``old`` has the device g0."""
    old = of_deployment(pod("h", name="old", nodeName="a", status={"phase": "Running"}), deployment, old_hash)
    new = of_deployment(pod("c"), "train", "bbb")
    objects = [
        CLASS,
        node("a"),
        pool("a", *map(gpu, devices)),
        allocated_claim("h", "a", "g0", users=("old",)),
        claim(),
    ]
    return explain(Snapshot.of([*objects, old, new, *more]), "p")


def test_the_change_of_the_deployment_comes_first_with_a_command() -> None:
    change, *_ = update().changes
    assert change.text.startswith(TEXT)
    assert "Pod default/old of the same Deployment holds the device" in change.text
    assert (change.command, change.example) == (COMMAND, "a")


@pytest.mark.parametrize(
    ("deployment", "old_hash"), [("serve", "aaa"), ("train", "bbb")], ids=["another Deployment", "the same ReplicaSet"]
)
def test_a_pod_that_no_update_replaces_is_another_cause(deployment: str, old_hash: str) -> None:
    found = update(deployment, old_hash)
    assert found.changes and not any("Deployment" in c.text for c in found.changes)


def test_a_pod_that_would_wait_without_the_old_pod_too_has_no_such_change() -> None:
    rival = pod(name="rival", nodeName="a", resources={"requests": {"cpu": "8"}}, status={"phase": "Running"})
    of_other = of_deployment(pod("c", resources={"requests": {"cpu": "4"}}), "train", "bbb")
    assert not any("Deployment" in c.text for c in update("train", "aaa", rival, of_other).changes)


def test_a_free_device_needs_no_change() -> None:
    found = update(devices=("g0", "g1"))
    assert (found.nodes, found.changes) == (("a",), ())
