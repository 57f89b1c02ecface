"""Deployments, DaemonSets and Jobs run the pods that a manifest asks for, and say how far they are."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dra_kubeletplugin.kube import ApiConfig, KubeClient, Resource
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.resource import CLAIMS, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.controllers.base import Key
from dra_kubeletplugin.localcluster.controllers.garbage import GarbageCollector
from dra_kubeletplugin.localcluster.controllers.workloads import (
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    REPLICA_SETS,
    is_ready,
    share_of,
)
from dra_kubeletplugin.localcluster.informer import Informers
from dra_kubeletplugin.localcluster.kubelet import Timers

JSON = dict[str, Any]


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(("node-1", "node-2"), timers=Timers(pod_sync_backoff=0.1)) as cluster:
        yield cluster


def workload(api: str, kind: str, name: str, *, image: str = "one", restart: str = "Always", **spec: Any) -> JSON:
    containers = [{"name": "main", "image": image, "command": ["sleep", "infinity"]}]
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": containers, "restartPolicy": restart}}
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": name}}}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {**selector, "template": template, **spec},
    }


async def until(cluster: LocalCluster, resource: Any, name: str, right: Callable[[JSON], bool]) -> JSON:
    """The object once its status is right."""
    seen: JSON = {}

    async def check() -> JSON | None:
        nonlocal seen
        seen = await cluster.client.get(resource, name, "default")
        return seen if right(seen.get("status") or {}) else None

    try:
        found: JSON = await cluster.wait(f"{resource.plural} {name}", check)
    except TimeoutError as e:
        raise AssertionError(f"{e}: {seen.get('status')}; {cluster.events()}") from None
    return found


async def pods(cluster: LocalCluster) -> list[JSON]:
    found: list[JSON] = (await cluster.client.list(PODS, "default"))["items"]
    return [p for p in found if not p["metadata"].get("deletionTimestamp")]


async def test_a_deployment_runs_its_replicas_and_rolls_to_a_new_template(cluster: LocalCluster) -> None:
    made = workload("apps/v1", "Deployment", "web", replicas=3)
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    await cluster.apply(made)
    await until(cluster, DEPLOYMENTS, "web", lambda s: s.get("availableReplicas") == 3)
    first = {p["metadata"]["name"] for p in await pods(cluster)}
    assert len(first) == 3
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "two"
    await cluster.client.patch(DEPLOYMENTS, "web", {"spec": {"template": made["spec"]["template"]}}, "default")

    def rolled(status: JSON) -> bool:
        return status.get("observedGeneration", 0) > 1 and status.get("updatedReplicas") == 3 == status.get("replicas")

    found = await until(cluster, DEPLOYMENTS, "web", lambda s: rolled(s) and s.get("availableReplicas") == 3)
    told = {c["type"]: c["reason"] for c in found["status"]["conditions"]}
    assert told == {"Available": "MinimumReplicasAvailable", "Progressing": "NewReplicaSetAvailable"}
    now = await pods(cluster)
    assert {p["spec"]["containers"][0]["image"] for p in now} == {"two"}
    sets = (await cluster.client.list(REPLICA_SETS, "default"))["items"]
    assert sorted(s["spec"]["replicas"] for s in sets) == [0, 3]


async def test_a_replica_set_makes_up_for_a_pod_that_goes_and_gives_up_what_is_too_many(cluster: LocalCluster) -> None:
    await cluster.apply(workload("apps/v1", "ReplicaSet", "rs", replicas=2))
    await until(cluster, REPLICA_SETS, "rs", lambda s: s.get("readyReplicas") == 2)
    gone = (await pods(cluster))[0]
    await cluster.client.delete(PODS, gone["metadata"]["name"], "default", grace=0)

    async def made_up() -> bool:
        names = {p["metadata"]["name"] for p in await pods(cluster)}
        return len(names) == 2 and gone["metadata"]["name"] not in names

    await cluster.wait("another pod", made_up)
    await cluster.client.patch(REPLICA_SETS, "rs", {"spec": {"replicas": 0}}, "default")
    await until(cluster, REPLICA_SETS, "rs", lambda s: s.get("replicas") == 0)


async def test_a_daemon_set_has_one_pod_on_each_node(cluster: LocalCluster) -> None:
    await cluster.apply(workload("apps/v1", "DaemonSet", "agent"))
    found = await until(cluster, DAEMON_SETS, "agent", lambda s: s.get("numberReady") == 2)
    assert found["status"]["desiredNumberScheduled"] == found["status"]["updatedNumberScheduled"] == 2
    assert {p["spec"]["nodeName"] for p in await pods(cluster)} == {"node-1", "node-2"}


async def test_a_job_completes_once_its_pods_have_ended_well(cluster: LocalCluster) -> None:
    await cluster.apply(
        workload("batch/v1", "Job", "job", restart="Never", completions=3, parallelism=2, backoffLimit=0)
    )
    ended: set[str] = set()
    while len(ended) < 3:
        running = await cluster.wait("a pod that runs", lambda: runs(cluster, ended))
        assert len([p for p in await pods(cluster) if p["status"]["phase"] == "Running"]) <= 2
        ended.add(running["metadata"]["uid"])
        cluster.nodes[running["spec"]["nodeName"]].runtime.end(running["metadata"]["uid"], "main")
    found = await until(cluster, JOBS, "job", lambda s: bool(s.get("completionTime")))
    assert (found["status"]["succeeded"], found["status"].get("active", 0)) == (3, 0)
    assert [c["type"] for c in found["status"]["conditions"]] == ["SuccessCriteriaMet", "Complete"]


async def runs(cluster: LocalCluster, but: set[str]) -> JSON | None:
    found = [p for p in await pods(cluster) if p["metadata"]["uid"] not in but]
    return next((p for p in found if p["status"]["phase"] == "Running"), None)


async def test_a_job_fails_once_too_many_of_its_pods_have(cluster: LocalCluster) -> None:
    await cluster.apply(
        workload("batch/v1", "Job", "job", restart="Never", backoffLimit=0, completions=1, parallelism=1)
    )
    running = await cluster.wait("a pod that runs", lambda: runs(cluster, set()))
    cluster.nodes[running["spec"]["nodeName"]].runtime.end(running["metadata"]["uid"], "main", 3)
    found = await until(cluster, JOBS, "job", lambda s: bool(s.get("conditions")))
    assert [(c["type"], c["reason"]) for c in found["status"]["conditions"]] == [
        ("FailureTarget", "BackoffLimitExceeded"),
        ("Failed", "BackoffLimitExceeded"),
    ]


async def test_a_pod_whose_owner_never_was_goes(cluster: LocalCluster) -> None:
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "ghost",
        "uid": "0b6a0c1e-0000-4000-8000-000000000009",
    }
    body = {"containers": [{"name": "main", "image": "i"}], "terminationGracePeriodSeconds": 0}
    meta = {"name": "lost", "ownerReferences": [{**owner, "controller": True}]}
    await cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body})

    async def gone() -> bool:
        return await cluster.pod("lost") is None

    await cluster.wait("the pod to go", gone)


async def test_a_claim_that_was_made_while_its_pod_went_goes_once_the_pod_s_end_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner still seems to be there when it comes, and the API server let go only what it knew when the owner went."""
    pod = {"metadata": {"name": "web", "namespace": "default", "uid": "pod-uid"}}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "pod-uid", "controller": True}
    meta = {"name": "web-gpu", "namespace": "default", "uid": "claim-uid", "ownerReferences": [owner]}
    client = KubeClient(ApiConfig(server="http://127.0.0.1:1"))
    informers = Informers(client, dict.fromkeys((PODS, CLAIMS, REPLICA_SETS, DEPLOYMENTS, DAEMON_SETS, JOBS), ""))
    collector = GarbageCollector(client, informers, None)
    judged, deleted = asyncio.Event(), asyncio.Event()

    async def delete(resource: Resource, name: str, namespace: str, *, uid: str) -> None:
        assert (resource, name, uid) == (CLAIMS, "web-gpu", "claim-uid")
        deleted.set()

    async def get(resource: Resource, name: str, namespace: str) -> JSON:
        raise NotFoundError(f'{resource.plural} "{name}" not found')

    async def once(key: Key) -> None:
        await collector.reconcile(key)
        judged.set()

    monkeypatch.setattr(client, "delete", delete)
    monkeypatch.setattr(client, "get", get)
    informers._copies[PODS]._take(pod, gone=False)
    informers._copies[CLAIMS]._take({"metadata": meta, "spec": {}}, gone=False)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        work = tasks.create_task(collector.queue.work(once, collector._failed))
        await judged.wait()
        assert not deleted.is_set()
        informers._copies[PODS]._take(pod, gone=True)
        await deleted.wait()
        work.cancel()


# --- rollbacks and limits ---------------------------------------------------------------------------


def _kubectl(cluster: LocalCluster, *args: str) -> str:
    argv = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), *args]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.kubectl
async def test_a_deployment_is_rolled_back_restarted_and_has_a_history(cluster: LocalCluster) -> None:
    async def kubectl(*args: str) -> str:
        return await asyncio.to_thread(_kubectl, cluster, *args)

    made = workload("apps/v1", "Deployment", "web", replicas=2)
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    made["metadata"]["annotations"] = {"kubernetes.io/change-cause": "the first"}
    await cluster.apply(made)
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


@pytest.mark.parametrize(("surge", "away"), [(1, 0), (0, 1), ("50%", "25%")])
async def test_a_rollout_never_has_too_many_pods_nor_too_few_that_are_available(
    cluster: LocalCluster, surge: Any, away: Any
) -> None:
    rolling = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": away}}
    made = workload("apps/v1", "Deployment", "web", replicas=4, strategy=rolling)
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    await cluster.apply(made)
    await until(cluster, DEPLOYMENTS, "web", lambda s: s.get("availableReplicas") == 4)
    most, least = 4 + share_of(surge, 4, up=True), 4 - share_of(away, 4, up=False)
    seen: list[tuple[int, int]] = []
    await cluster.client.patch(
        DEPLOYMENTS, "web", {"spec": {"template": {"metadata": {"labels": {"app": "web", "new": "1"}}}}}, "default"
    )

    def over(status: JSON) -> bool:
        return status.get("observedGeneration", 0) > 1 and status.get("updatedReplicas") == 4 == status.get("replicas")

    async def look() -> bool:
        alive = await pods(cluster)
        seen.append((len(alive), sum(map(is_ready, alive))))
        found = await cluster.client.get(DEPLOYMENTS, "web", "default")
        return over(found["status"]) and found["status"].get("availableReplicas") == 4

    await cluster.wait("the rollout", look)
    assert max(n for n, _ in seen) <= most
    assert min(ready for _, ready in seen) >= least


async def test_a_pod_is_available_once_it_has_been_ready_for_long_enough(cluster: LocalCluster) -> None:
    await cluster.apply(workload("apps/v1", "Deployment", "web", replicas=1, minReadySeconds=3600))
    await until(cluster, DEPLOYMENTS, "web", lambda s: s.get("readyReplicas") == 1)
    found = await until(cluster, DEPLOYMENTS, "web", lambda s: s.get("unavailableReplicas") == 1)
    assert "availableReplicas" not in found["status"]


async def test_a_rollout_that_does_not_get_on_reports_it(cluster: LocalCluster) -> None:
    made = workload("apps/v1", "Deployment", "web", replicas=1, progressDeadlineSeconds=1)
    made["spec"]["template"]["spec"]["nodeSelector"] = {"no": "where"}
    await cluster.apply(made)
    found = await until(
        cluster,
        DEPLOYMENTS,
        "web",
        lambda s: any(c["status"] == "False" and c["type"] == "Progressing" for c in s.get("conditions") or []),
    )
    told = {c["type"]: c["reason"] for c in found["status"]["conditions"]}
    assert told["Progressing"] == "ProgressDeadlineExceeded"
