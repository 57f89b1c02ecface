"""Jobs with rules for failure and success, indexes, limits, suspension and TTL. Annotations set how their simulated pods end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.controllers.workloads import JOBS
from dra_devkit.localcluster.kubelet import Timers
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.resource import EVENTS, PODS
from tests.helpers.workloads import pods, wait_for_status, workload

PREFIX = "simulated.dra-kubeletplugin.dev"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(("node-1",), timers=Timers(pod_sync_backoff=0.1)) as cluster:
        yield cluster


def job(code: str = "0", restart: str = "Never", duration: str = "50ms", **spec: Any) -> JSON:
    body = workload("batch/v1", "Job", "job", restart=restart, **spec)
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    annotations = {f"{PREFIX}/duration": duration, f"{PREFIX}/exit-code": code}
    body["spec"]["template"]["metadata"]["annotations"] = annotations
    return body


def conditions_of(status: JSON) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions") or []}


async def wait_for_end(cluster: LocalCluster, end_type: str, reason: str) -> JSON:
    first = "SuccessCriteriaMet" if end_type == "Complete" else "FailureTarget"
    job_object = await wait_for_status(
        cluster, JOBS, "job", lambda s: bool({"Complete", "Failed"} & set(conditions_of(s)))
    )
    assert conditions_of(job_object["status"]) == {first: ("True", reason), end_type: ("True", reason)}
    assert not job_object["status"].get("active")
    status: JSON = job_object["status"]
    return status


async def test_a_failure_rule_for_an_exit_code_fails_the_job_immediately(cluster: LocalCluster) -> None:
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    await cluster.apply(job("42", podFailurePolicy={"rules": [rule]}))
    status = await wait_for_end(cluster, "Failed", "PodFailurePolicy")
    assert "failed with exit code 42 matching FailJob rule at index 0" in status["conditions"][0]["message"]


async def test_an_ignored_failure_is_replaced_and_not_counted(cluster: LocalCluster) -> None:
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    await cluster.apply(job(duration="forever", backoffLimit=0, podFailurePolicy={"rules": [rule]}))
    [first] = await cluster.wait("a pod", lambda: _running(cluster, 1))
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    await cluster.client.patch(
        PODS, first["metadata"]["name"], {"status": {"conditions": [disruption]}}, "default", "status"
    )
    await cluster.client.delete(PODS, first["metadata"]["name"], "default")
    [second] = await cluster.wait("another pod", lambda: _running(cluster, 1, excluded=first))
    cluster.node.runtime.end(second["metadata"]["uid"], "main")
    status = await wait_for_end(cluster, "Complete", "CompletionsReached")
    assert (status["succeeded"], status.get("failed")) == (1, None)


async def _running(cluster: LocalCluster, count: int, excluded: JSON | None = None) -> list[JSON]:
    running = [
        p for p in await pods(cluster)
        if p["status"].get("phase") == "Running" and (excluded is None or p["metadata"]["uid"] != excluded["metadata"]["uid"])
    ]  # fmt: skip
    return running if len(running) == count else []


async def test_each_index_succeeds_or_fails_separately(cluster: LocalCluster) -> None:
    spec = {"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 0}
    await cluster.apply(job(duration="forever", **spec))
    for pod in await cluster.wait("all pods", lambda: _running(cluster, 4)):
        index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        assert {"name": "JOB_COMPLETION_INDEX", "value": index} in pod["spec"]["containers"][0]["env"]
        cluster.node.runtime.end(pod["metadata"]["uid"], "main", int(index == "1"))
    status = await wait_for_end(cluster, "Failed", "FailedIndexes")
    assert (status["completedIndexes"], status["failedIndexes"]) == ("0,2,3", "1")


async def test_a_success_policy_ends_the_job_and_its_running_pods(cluster: LocalCluster) -> None:
    spec = {"completions": 3, "parallelism": 3, "completionMode": "Indexed"}
    await cluster.apply(job(duration="forever", **spec, successPolicy={"rules": [{"succeededIndexes": "2"}]}))
    running = await cluster.wait("all pods", lambda: _running(cluster, 3))
    [leader] = [p for p in running if p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "2"]
    cluster.node.runtime.end(leader["metadata"]["uid"], "main")
    status = await wait_for_end(cluster, "Complete", "SuccessPolicy")
    assert (status["succeeded"], status["completedIndexes"]) == (1, "2")
    assert [p["metadata"]["uid"] for p in await pods(cluster)] == [leader["metadata"]["uid"]]


async def test_a_suspended_job_has_no_pods_and_keeps_its_progress(cluster: LocalCluster) -> None:
    await cluster.apply(job(duration="forever", completions=2, parallelism=1, backoffLimit=0))
    [first] = await cluster.wait("a pod", lambda: _running(cluster, 1))
    cluster.node.runtime.end(first["metadata"]["uid"], "main")
    await wait_for_status(cluster, JOBS, "job", lambda s: s.get("succeeded") == 1)
    await cluster.wait("the next pod", lambda: _running(cluster, 1, excluded=first))
    await cluster.client.patch(JOBS, "job", {"spec": {"suspend": True}}, "default")
    suspended = {"Suspended": ("True", "JobSuspended")}
    job_object = await wait_for_status(
        cluster, JOBS, "job", lambda s: conditions_of(s) == suspended and not s.get("terminating")
    )
    assert "startTime" not in job_object["status"]
    assert job_object["status"].get("failed") is None
    await cluster.client.patch(JOBS, "job", {"spec": {"suspend": False}}, "default")
    await wait_for_status(cluster, JOBS, "job", lambda s: conditions_of(s) == {"Suspended": ("False", "JobResumed")})
    [last] = await cluster.wait("the last pod", lambda: _running(cluster, 1, excluded=first))
    cluster.node.runtime.end(last["metadata"]["uid"], "main")
    job_object = await wait_for_status(cluster, JOBS, "job", lambda s: "Complete" in conditions_of(s))
    assert (job_object["status"]["succeeded"], job_object["status"].get("failed")) == (2, None)


async def test_a_job_fails_at_its_deadline_and_is_deleted_after_its_ttl(cluster: LocalCluster) -> None:
    await cluster.apply(job(duration="forever", activeDeadlineSeconds=1, ttlSecondsAfterFinished=3600))
    await wait_for_end(cluster, "Failed", "DeadlineExceeded")
    await cluster.client.patch(JOBS, "job", {"spec": {"ttlSecondsAfterFinished": 1}}, "default")

    async def is_deleted() -> bool:
        return not (await cluster.client.list(JOBS, "default"))["items"] and not await pods(cluster)

    await cluster.wait("the deletion of the job", is_deleted)


async def test_a_job_managed_by_another_controller_is_ignored(cluster: LocalCluster) -> None:
    await cluster.apply(job(managedBy="example.com/other"))
    own_job = job()
    own_job["metadata"]["name"] = "ours"
    await cluster.apply(own_job)
    await wait_for_status(cluster, JOBS, "ours", lambda s: "Complete" in conditions_of(s))
    assert {p["metadata"]["labels"]["job-name"] for p in await pods(cluster)} == {"ours"}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({"backoffLimit": 0}, "BackoffLimitExceeded"), ({"activeDeadlineSeconds": 1}, "DeadlineExceeded")],
)
async def test_an_event_reports_the_end_of_a_job_once(cluster: LocalCluster, spec: JSON, reason: str) -> None:
    await cluster.apply(
        job("1" if "backoffLimit" in spec else "0", duration="50ms" if "backoffLimit" in spec else "1h", **spec)
    )
    await wait_for_end(cluster, "Failed", reason)

    async def events() -> list[JSON]:
        listed = (await cluster.client.list(EVENTS, "default"))["items"]
        return [e for e in listed if e["reason"] == reason]

    await cluster.wait("the event", events)
    await cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}})
    assert [e["count"] for e in await events()] == [1]
