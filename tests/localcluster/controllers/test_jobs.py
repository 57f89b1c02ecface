"""Jobs with rules for failure and success, indexes, limits, suspension and ends; their simulated pods end as annotated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.kube.resource import EVENTS, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.controllers.workloads import JOBS
from dra_kubeletplugin.localcluster.kubelet import Timers
from tests.localcluster.controllers.test_workloads import pods, until, workload

JSON = dict[str, Any]
PREFIX = "simulated.dra-kubeletplugin.dev"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(("node-1",), timers=Timers(pod_sync_backoff=0.1)) as cluster:
        yield cluster


def job(code: str = "0", restart: str = "Never", lasts: str = "50ms", **spec: Any) -> JSON:
    made = workload("batch/v1", "Job", "job", restart=restart, **spec)
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    notes = {f"{PREFIX}/duration": lasts, f"{PREFIX}/exit-code": code}
    made["spec"]["template"]["metadata"]["annotations"] = notes
    return made


def says(status: JSON) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions") or []}


async def ends(cluster: LocalCluster, how: str, reason: str) -> JSON:
    first = "SuccessCriteriaMet" if how == "Complete" else "FailureTarget"
    found = await until(cluster, JOBS, "job", lambda s: bool({"Complete", "Failed"} & set(says(s))))
    assert says(found["status"]) == {first: ("True", reason), how: ("True", reason)}
    assert not found["status"].get("active")
    status: JSON = found["status"]
    return status


async def test_a_rule_for_an_exit_code_fails_the_job_at_once(cluster: LocalCluster) -> None:
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    await cluster.apply(job("42", podFailurePolicy={"rules": [rule]}))
    status = await ends(cluster, "Failed", "PodFailurePolicy")
    assert "failed with exit code 42 matching FailJob rule at index 0" in status["conditions"][0]["message"]


async def test_a_failure_that_is_ignored_is_made_up_for_and_does_not_count(cluster: LocalCluster) -> None:
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    await cluster.apply(job(lasts="forever", backoffLimit=0, podFailurePolicy={"rules": [rule]}))
    [first] = await cluster.wait("a pod", lambda: _running(cluster, 1))
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    await cluster.client.patch(PODS, first["metadata"]["name"], {"status": {"conditions": [gone]}}, "default", "status")
    await cluster.client.delete(PODS, first["metadata"]["name"], "default")
    [second] = await cluster.wait("another pod", lambda: _running(cluster, 1, but=first))
    cluster.node.runtime.end(second["metadata"]["uid"], "main")
    status = await ends(cluster, "Complete", "CompletionsReached")
    assert (status["succeeded"], status.get("failed")) == (1, None)


async def _running(cluster: LocalCluster, count: int, but: JSON | None = None) -> list[JSON]:
    found = [
        p for p in await pods(cluster)
        if p["status"].get("phase") == "Running" and (but is None or p["metadata"]["uid"] != but["metadata"]["uid"])
    ]  # fmt: skip
    return found if len(found) == count else []


async def test_each_index_succeeds_or_fails_by_itself(cluster: LocalCluster) -> None:
    spec = {"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 0}
    await cluster.apply(job(lasts="forever", **spec))
    for pod in await cluster.wait("all pods", lambda: _running(cluster, 4)):
        index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        assert {"name": "JOB_COMPLETION_INDEX", "value": index} in pod["spec"]["containers"][0]["env"]
        cluster.node.runtime.end(pod["metadata"]["uid"], "main", int(index == "1"))
    status = await ends(cluster, "Failed", "FailedIndexes")
    assert (status["completedIndexes"], status["failedIndexes"]) == ("0,2,3", "1")


async def test_a_success_policy_ends_the_job_and_what_still_runs(cluster: LocalCluster) -> None:
    spec = {"completions": 3, "parallelism": 3, "completionMode": "Indexed"}
    await cluster.apply(job(lasts="forever", **spec, successPolicy={"rules": [{"succeededIndexes": "2"}]}))
    found = await cluster.wait("all pods", lambda: _running(cluster, 3))
    [leader] = [p for p in found if p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "2"]
    cluster.node.runtime.end(leader["metadata"]["uid"], "main")
    status = await ends(cluster, "Complete", "SuccessPolicy")
    assert (status["succeeded"], status["completedIndexes"]) == (1, "2")
    assert [p["metadata"]["uid"] for p in await pods(cluster)] == [leader["metadata"]["uid"]]


async def test_a_suspended_job_has_no_pods_and_goes_on_where_it_was(cluster: LocalCluster) -> None:
    await cluster.apply(job(lasts="forever", completions=2, parallelism=1, backoffLimit=0))
    [first] = await cluster.wait("a pod", lambda: _running(cluster, 1))
    cluster.node.runtime.end(first["metadata"]["uid"], "main")
    await until(cluster, JOBS, "job", lambda s: s.get("succeeded") == 1)
    await cluster.wait("the next", lambda: _running(cluster, 1, but=first))
    await cluster.client.patch(JOBS, "job", {"spec": {"suspend": True}}, "default")
    suspended = {"Suspended": ("True", "JobSuspended")}
    found = await until(cluster, JOBS, "job", lambda s: says(s) == suspended and not s.get("terminating"))
    assert "startTime" not in found["status"]
    assert found["status"].get("failed") is None
    await cluster.client.patch(JOBS, "job", {"spec": {"suspend": False}}, "default")
    await until(cluster, JOBS, "job", lambda s: says(s) == {"Suspended": ("False", "JobResumed")})
    [last] = await cluster.wait("the last", lambda: _running(cluster, 1, but=first))
    cluster.node.runtime.end(last["metadata"]["uid"], "main")
    found = await until(cluster, JOBS, "job", lambda s: "Complete" in says(s))
    assert (found["status"]["succeeded"], found["status"].get("failed")) == (2, None)


async def test_a_job_that_takes_too_long_fails_and_one_that_is_over_goes_when_it_states(cluster: LocalCluster) -> None:
    await cluster.apply(job(lasts="forever", activeDeadlineSeconds=1, ttlSecondsAfterFinished=3600))
    await ends(cluster, "Failed", "DeadlineExceeded")
    await cluster.client.patch(JOBS, "job", {"spec": {"ttlSecondsAfterFinished": 1}}, "default")

    async def gone() -> bool:
        return not (await cluster.client.list(JOBS, "default"))["items"] and not await pods(cluster)

    await cluster.wait("the job to go", gone)


async def test_restarts_in_place_count_against_the_limit(cluster: LocalCluster) -> None:
    await cluster.apply(job("1", restart="OnFailure", backoffLimit=1))
    await ends(cluster, "Failed", "BackoffLimitExceeded")


async def test_the_job_of_somebody_else_s_controller_is_left_alone(cluster: LocalCluster) -> None:
    await cluster.apply(job(managedBy="example.com/other"))
    other = job()
    other["metadata"]["name"] = "ours"
    await cluster.apply(other)
    await until(cluster, JOBS, "ours", lambda s: "Complete" in says(s))
    assert {p["metadata"]["labels"]["job-name"] for p in await pods(cluster)} == {"ours"}


async def test_a_pod_that_is_deleted_by_force_has_failed(cluster: LocalCluster) -> None:
    await cluster.apply(job(lasts="forever", backoffLimit=0))
    [first] = await cluster.wait("a pod", lambda: _running(cluster, 1))
    await cluster.client.delete(PODS, first["metadata"]["name"], "default", grace=0)
    status = await ends(cluster, "Failed", "BackoffLimitExceeded")
    assert status["failed"] == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({"backoffLimit": 0}, "BackoffLimitExceeded"), ({"activeDeadlineSeconds": 1}, "DeadlineExceeded")],
)
async def test_the_end_of_a_job_is_reported_once(cluster: LocalCluster, spec: JSON, reason: str) -> None:
    await cluster.apply(
        job("1" if "backoffLimit" in spec else "0", lasts="50ms" if "backoffLimit" in spec else "1h", **spec)
    )
    await ends(cluster, "Failed", reason)

    async def told() -> list[JSON]:
        found = (await cluster.client.list(EVENTS, "default"))["items"]
        return [e for e in found if e["reason"] == reason]

    await cluster.wait("the event", told)
    await cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}})
    assert [e["count"] for e in await told()] == [1]
