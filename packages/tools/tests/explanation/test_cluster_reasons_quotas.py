"""``dra explain`` names the ResourceQuota that refuses a pod's claim, with a command that ends the wait."""

from __future__ import annotations

import asyncio
import json
import shlex

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.kube.resource import CLAIMS, QUOTAS
from dra_tools import ReasonKind
from packages.tools.tests.objects import claim, dra, explain_objects, node, pod
from tests.docs.symptoms import event_message
from tests.helpers import objects
from tests.helpers.waiting import wait_until

ENTRY = {"name": "e", "resourceClaimTemplateName": "t"}
WANTED = "devices.deviceclass.resource.k8s.io/devices"


def quota(hard: JSON) -> JSON:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}


def pod_from_template() -> JSON:
    made = pod()
    return {**made, "spec": {**made["spec"], "resourceClaims": [ENTRY]}}


async def explained(cluster: LocalCluster, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    await asyncio.to_thread(main, ["explain", "--kubeconfig", str(cluster.kubeconfig), *words])
    return capsys.readouterr().out


async def test_the_quota_of_a_class_is_named_and_the_command_ends_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    async with LocalCluster() as cluster:
        await cluster.apply(
            objects.device_class(), objects.template(spec=objects.claim_spec(count=2)), quota({WANTED: "3"})
        )
        await cluster.apply(objects.claim("other", objects.claim_spec(count=2)))
        await cluster.apply(objects.pod("wants", templates=["t"]))
        await event_message(cluster, "wants", "FailedResourceClaimCreation")
        reason = f"ResourceQuota default/q refuses the claim from template t ({WANTED}: 2 wanted, 2 of 3 used)"
        assert reason in " ".join((await explained(cluster, capsys)).split())
        shown = await explained(cluster, capsys, "wants")
        assert f"pod default/wants waits: {reason}" in " ".join(shown.split())
        command = next(line for line in shown.splitlines() if "kubectl" in line)
        *patch, body = shlex.split(command)
        assert patch == ["kubectl", "-n", "default", "patch", "resourcequota", "q", "-p"]
        await cluster.client.patch(QUOTAS, "q", json.loads(body), "default")

        async def made() -> list[str]:
            claims = (await cluster.client.list(CLAIMS, "default"))["items"]
            return [c["metadata"]["name"] for c in claims if c["metadata"]["name"] != "other"]

        await wait_until(made)
        assert "ResourceQuota" not in await explained(cluster, capsys, "wants")


@pytest.mark.parametrize(
    ("hard", "why"),
    [
        ({"count/resourceclaims.resource.k8s.io": "1"}, "count/resourceclaims.resource.k8s.io: 1 wanted, 1 of 1 used"),
        ({"requests.example.com/gpu": "1"}, "requests.example.com/gpu: 1 wanted, 1 of 1 used"),
    ],
)
def test_a_quota_without_status_is_counted_from_the_claims(hard: JSON, why: str) -> None:
    named = dra("DeviceClass", "gpu", {"extendedResourceName": "example.com/gpu"})
    template = dra("ResourceClaimTemplate", "t", {"spec": claim()["spec"]})
    found = explain_objects(named, template, claim("there"), node("n"), quota(hard), pod_from_template())
    assert why in found.summary
    assert found.kinds == {ReasonKind.QUOTA}


def test_the_report_of_a_quota_that_has_room_now_is_marked() -> None:
    refused = (
        'PodResourceClaim e: failed to create resource claim: resourceclaims.resource.k8s.io "p-e" is forbidden: '
        "exceeded quota: q, requested: count/resourceclaims.resource.k8s.io=1, used: 1, limited: 1"
    )
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "type": "Warning", "reason": "FailedResourceClaimCreation",
        "message": refused, "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p", "uid": "pods/default/p"},
    }  # fmt: skip
    template = dra("ResourceClaimTemplate", "t", {"spec": claim()["spec"]})
    room = quota({"count/resourceclaims.resource.k8s.io": "2"})
    found = explain_objects(template, claim("there"), node("n"), room, pod_from_template(), event)
    assert found.summary.startswith("perhaps outdated, because the quota has room now: ")
