"""``simulate`` counts pods until a ResourceQuota of their namespace refuses a pod or a claim, and names the quota."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.yaml import dump
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.errors import QuestionError
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_kubeletplugin.kube.credentials import Token
from dra_tools import ReasonKind, Simulation, Snapshot, simulate
from dra_tools.reader import with_quotas
from packages.tools.tests.objects import TEMPLATE, claim, cluster, workload
from tests.helpers import objects

DEVICES, CLAIMS = "gpu.deviceclass.resource.k8s.io/devices", "count/resourceclaims.resource.k8s.io"


def quota(hard: Any, used: Any = None, **spec: Any) -> JSON:
    status = {"status": {"hard": hard, "used": used}} if used else {}
    meta = {"name": "q", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard, **spec}, **status}


def run(*manifests: JSON, there: list[JSON] | None = None, fill: bool = False) -> Simulation:
    objects = [*cluster(nodes=3, devices=3), *(there or [])]
    return simulate(Snapshot.of(objects), [TEMPLATE, *manifests], fill=fill)


@pytest.mark.parametrize(
    ("hard", "text"),
    [
        ({DEVICES: "4"}, f"the claim from template t ({DEVICES}: 1 wanted, 4 of 4 used)"),
        ({CLAIMS: "4"}, f"the claim from template t ({CLAIMS}: 1 wanted, 4 of 4 used)"),
        ({"pods": "4"}, "the pod (pods: 1 wanted, 4 of 4 used)"),
    ],
)
@pytest.mark.parametrize("in_manifests", [False, True])
def test_pods_are_placed_until_the_quota_is_reached(hard: JSON, text: str, in_manifests: bool) -> None:
    objects = [quota(hard)]
    deployment = workload("Deployment", replicas=6)
    found = run(deployment, *objects) if in_manifests else run(deployment, there=objects)
    [fit] = found.workloads
    assert (len(fit.placed), found.fits, found.known) == (4, False, True)
    assert fit.stopped is not None
    assert fit.stopped.summary == f"ResourceQuota default/q refuses {text}"
    assert fit.stopped.kinds == {ReasonKind.QUOTA}


def test_the_status_of_a_quota_has_the_use_of_all_objects_of_the_cluster() -> None:
    [fit] = run(workload("Deployment", replicas=6), there=[quota({DEVICES: "4"}, {DEVICES: "3"})]).workloads
    assert len(fit.placed) == 1
    [fit] = run(workload("Deployment"), claim("own"), there=[quota({DEVICES: "4"}, {DEVICES: "3"})]).workloads
    assert fit.stopped is not None
    assert "1 wanted, 4 of 4 used" in fit.stopped.summary, "the claim of the manifests counts too"


def test_a_claim_of_the_manifests_that_the_quota_refuses_is_named() -> None:
    found = run(workload("Deployment", replicas=0), claim("own"), there=[quota({CLAIMS: "0"})])
    [named] = found.unevaluated
    assert named.subject == "ResourceClaim default/own"
    assert "refuses the claim" in named.why


def test_further_pods_are_counted_until_the_quota_is_reached_for_each_workload_alone() -> None:
    first, second = run(
        workload("Deployment", "a", replicas=1), workload("Deployment", "b", replicas=1),
        there=[quota({DEVICES: "5"})], fill=True,
    ).workloads  # fmt: skip
    assert (first.more, second.more) == (3, 3)
    assert second.no_more is not None
    assert second.no_more.summary.startswith("ResourceQuota default/q refuses")


def test_other_namespaces_have_quotas_of_their_own() -> None:
    other = {**quota({DEVICES: "0"})}
    other["metadata"] = {"name": "q", "namespace": "other"}
    assert run(workload("Deployment"), there=[other]).known


def test_amounts_that_a_limit_range_may_set_leave_the_result_unknown() -> None:
    found = run(workload("Deployment"), there=[quota({"requests.cpu": "4"})])
    assert (found.fits, found.known) == (True, False)
    assert "do not specify requests.cpu for: main" in str(found.unevaluated)


@pytest.mark.parametrize(("scope", "placed"), [("BestEffort", 2), ("NotBestEffort", 3)])
def test_a_quota_with_a_scope_counts_the_pods_of_the_scope(scope: str, placed: int) -> None:
    [fit] = run(workload("Deployment", replicas=3), quota({"pods": "2"}, scopes=[scope])).workloads
    assert len(fit.placed) == placed


async def test_the_quotas_of_a_cluster_are_read_and_a_missing_permission_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(dump(objects.pod("new", templates=["t"])))

    async with LocalCluster() as cluster:
        limit = quota({"devices.deviceclass.resource.k8s.io/devices": "1"})
        await cluster.apply(objects.device_class(), objects.template(), limit, objects.claim("there"))
        words = ["simulate", "--kubeconfig", str(cluster.kubeconfig), "-f", str(manifest)]
        code = await asyncio.to_thread(main, words)
        shown = " ".join(capsys.readouterr().out.split())
        assert code == Exit.NEGATIVE
        assert "ResourceQuota default/q refuses the claim from template t (devices.deviceclass" in shown
        assert "1 wanted, 1 of 1 used" in shown
        path = "/api/v1/namespaces/default/serviceaccounts/default/token"
        token = (await cluster.client.call("POST", path, {"spec": {}}))["status"]["token"]
        async with KubeClient(ApiConfig(cluster.config.server, cluster.config.tls, Token(token))) as client:
            [gap] = (await with_quotas(client, Snapshot(), ["default"])).gaps
        assert gap.why.startswith("cannot list resourcequotas in namespace default: whether a quota refuses")


def test_a_malformed_quota_is_an_error() -> None:
    with pytest.raises(QuestionError, match="ResourceQuota q"):
        run(workload("Deployment"), quota("all"))
