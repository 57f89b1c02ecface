"""Deployments, DaemonSets and Jobs run the pods of a manifest and report their progress in their status."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.controllers.workloads import (
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    REPLICA_SETS,
    is_ready,
    share_of,
)
from dra_devkit.localcluster.kubelet import Timers
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import PODS
from tests.helpers.workloads import pods, wait_for_status, workload


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(("node-1", "node-2"), timers=Timers(pod_sync_backoff=0.1)) as cluster:
        yield cluster


async def test_a_deployment_runs_its_replicas_and_rolls_to_a_new_template(cluster: LocalCluster) -> None:
    deployment = workload("apps/v1", "Deployment", "web", replicas=3)
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    await cluster.apply(deployment)
    await wait_for_status(cluster, DEPLOYMENTS, "web", lambda s: s.get("availableReplicas") == 3)
    first = {p["metadata"]["name"] for p in await pods(cluster)}
    assert len(first) == 3
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "two"
    await cluster.client.patch(DEPLOYMENTS, "web", {"spec": {"template": deployment["spec"]["template"]}}, "default")

    def rolled(status: JSON) -> bool:
        return status.get("observedGeneration", 0) > 1 and status.get("updatedReplicas") == 3 == status.get("replicas")

    rolled_out = await wait_for_status(
        cluster, DEPLOYMENTS, "web", lambda s: rolled(s) and s.get("availableReplicas") == 3
    )
    reasons = {c["type"]: c["reason"] for c in rolled_out["status"]["conditions"]}
    assert reasons == {"Available": "MinimumReplicasAvailable", "Progressing": "NewReplicaSetAvailable"}
    current_pods = await pods(cluster)
    assert {p["spec"]["containers"][0]["image"] for p in current_pods} == {"two"}
    sets = (await cluster.client.list(REPLICA_SETS, "default"))["items"]
    assert sorted(s["spec"]["replicas"] for s in sets) == [0, 3]


async def test_a_replica_set_replaces_a_deleted_pod_and_deletes_surplus_pods(cluster: LocalCluster) -> None:
    await cluster.apply(workload("apps/v1", "ReplicaSet", "rs", replicas=2))
    await wait_for_status(cluster, REPLICA_SETS, "rs", lambda s: s.get("readyReplicas") == 2)
    deleted_pod = (await pods(cluster))[0]
    await cluster.client.delete(PODS, deleted_pod["metadata"]["name"], "default", grace=0)

    async def is_replaced() -> bool:
        names = {p["metadata"]["name"] for p in await pods(cluster)}
        return len(names) == 2 and deleted_pod["metadata"]["name"] not in names

    await cluster.wait("another pod", is_replaced)
    await cluster.client.patch(REPLICA_SETS, "rs", {"spec": {"replicas": 0}}, "default")
    await wait_for_status(cluster, REPLICA_SETS, "rs", lambda s: s.get("replicas") == 0)


async def test_a_daemon_set_has_one_pod_on_each_node(cluster: LocalCluster) -> None:
    await cluster.apply(workload("apps/v1", "DaemonSet", "agent"))
    daemon_set = await wait_for_status(cluster, DAEMON_SETS, "agent", lambda s: s.get("numberReady") == 2)
    assert daemon_set["status"]["desiredNumberScheduled"] == daemon_set["status"]["updatedNumberScheduled"] == 2
    assert {p["spec"]["nodeName"] for p in await pods(cluster)} == {"node-1", "node-2"}


async def test_a_job_completes_after_its_pods_succeed(cluster: LocalCluster) -> None:
    await cluster.apply(
        workload("batch/v1", "Job", "job", restart="Never", completions=3, parallelism=2, backoffLimit=0)
    )
    ended_uids: set[str] = set()
    while len(ended_uids) < 3:
        running = await cluster.wait("a pod that runs", lambda: running_pod(cluster, ended_uids))
        assert len([p for p in await pods(cluster) if p["status"]["phase"] == "Running"]) <= 2
        ended_uids.add(running["metadata"]["uid"])
        cluster.nodes[running["spec"]["nodeName"]].runtime.end(running["metadata"]["uid"], "main")
    completed = await wait_for_status(cluster, JOBS, "job", lambda s: bool(s.get("completionTime")))
    assert (completed["status"]["succeeded"], completed["status"].get("active", 0)) == (3, 0)
    assert [c["type"] for c in completed["status"]["conditions"]] == ["SuccessCriteriaMet", "Complete"]


async def running_pod(cluster: LocalCluster, excluded_uids: set[str]) -> JSON | None:
    candidates = [p for p in await pods(cluster) if p["metadata"]["uid"] not in excluded_uids]
    return next((p for p in candidates if p["status"]["phase"] == "Running"), None)


async def test_a_pod_with_an_owner_that_never_existed_is_deleted(cluster: LocalCluster) -> None:
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "ghost",
        "uid": "0b6a0c1e-0000-4000-8000-000000000009",
    }
    body = {"containers": [{"name": "main", "image": "i"}], "terminationGracePeriodSeconds": 0}
    meta = {"name": "lost", "ownerReferences": [{**owner, "controller": True}]}
    await cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body})

    async def is_deleted() -> bool:
        return await cluster.pod("lost") is None

    await cluster.wait("the deletion of the pod", is_deleted)


# --- rollbacks and limits ---------------------------------------------------------------------------


def _kubectl(cluster: LocalCluster, *args: str) -> str:
    argv = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), *args]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.kubectl
async def test_kubectl_rolls_a_deployment_back_and_restarts_it_and_shows_its_history(cluster: LocalCluster) -> None:
    async def kubectl(*args: str) -> str:
        return await asyncio.to_thread(_kubectl, cluster, *args)

    deployment = workload("apps/v1", "Deployment", "web", replicas=2)
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    deployment["metadata"]["annotations"] = {"kubernetes.io/change-cause": "the first"}
    await cluster.apply(deployment)
    await kubectl("rollout", "status", "deployment/web")
    await kubectl("set", "image", "deployment/web", "main=two")
    assert "successfully rolled out" in await kubectl("rollout", "status", "deployment/web")
    history = await kubectl("rollout", "history", "deployment/web")
    assert [line.split()[0] for line in history.splitlines()[2:] if line] == ["1", "2"]
    assert "the first" in history
    await kubectl("rollout", "undo", "deployment/web")
    await kubectl("rollout", "status", "deployment/web")
    images = {p["spec"]["containers"][0]["image"] for p in await pods(cluster)}
    assert images == {"one"}
    history = await kubectl("rollout", "history", "deployment/web")
    assert [line.split()[0] for line in history.splitlines()[2:] if line] == ["2", "3"]
    before = {p["metadata"]["name"] for p in await pods(cluster)}
    await kubectl("rollout", "restart", "deployment/web")
    await kubectl("rollout", "status", "deployment/web")
    assert not before & {p["metadata"]["name"] for p in await pods(cluster)}
    await kubectl("rollout", "undo", "deployment/web", "--to-revision=2")
    await kubectl("rollout", "status", "deployment/web")
    assert {p["spec"]["containers"][0]["image"] for p in await pods(cluster)} == {"two"}


@pytest.mark.parametrize(("surge", "unavailable"), [(1, 0), (0, 1), ("50%", "25%")])
async def test_a_rollout_obeys_max_surge_and_max_unavailable(
    cluster: LocalCluster, surge: Any, unavailable: Any
) -> None:
    rolling = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    deployment = workload("apps/v1", "Deployment", "web", replicas=4, strategy=rolling)
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    await cluster.apply(deployment)
    await wait_for_status(cluster, DEPLOYMENTS, "web", lambda s: s.get("availableReplicas") == 4)
    most, least = 4 + share_of(surge, 4, up=True), 4 - share_of(unavailable, 4, up=False)
    counts: list[tuple[int, int]] = []
    await cluster.client.patch(
        DEPLOYMENTS, "web", {"spec": {"template": {"metadata": {"labels": {"app": "web", "new": "1"}}}}}, "default"
    )

    def is_updated(status: JSON) -> bool:
        return status.get("observedGeneration", 0) > 1 and status.get("updatedReplicas") == 4 == status.get("replicas")

    async def is_complete() -> bool:
        alive = await pods(cluster)
        counts.append((len(alive), sum(map(is_ready, alive))))
        current = await cluster.client.get(DEPLOYMENTS, "web", "default")
        return is_updated(current["status"]) and current["status"].get("availableReplicas") == 4

    await cluster.wait("the rollout", is_complete)
    assert max(n for n, _ in counts) <= most
    assert min(ready for _, ready in counts) >= least


async def test_a_pod_is_available_after_min_ready_seconds(cluster: LocalCluster) -> None:
    await cluster.apply(workload("apps/v1", "Deployment", "web", replicas=1, minReadySeconds=3600))
    await wait_for_status(cluster, DEPLOYMENTS, "web", lambda s: s.get("readyReplicas") == 1)
    deployment = await wait_for_status(cluster, DEPLOYMENTS, "web", lambda s: s.get("unavailableReplicas") == 1)
    assert "availableReplicas" not in deployment["status"]


async def test_a_rollout_past_its_progress_deadline_reports_it(cluster: LocalCluster) -> None:
    body = workload("apps/v1", "Deployment", "web", replicas=1, progressDeadlineSeconds=1)
    body["spec"]["template"]["spec"]["nodeSelector"] = {"no": "where"}
    await cluster.apply(body)
    deployment = await wait_for_status(
        cluster,
        DEPLOYMENTS,
        "web",
        lambda s: any(c["status"] == "False" and c["type"] == "Progressing" for c in s.get("conditions") or []),
    )
    reasons = {c["type"]: c["reason"] for c in deployment["status"]["conditions"]}
    assert reasons["Progressing"] == "ProgressDeadlineExceeded"
