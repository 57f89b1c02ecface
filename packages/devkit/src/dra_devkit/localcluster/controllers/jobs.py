"""The Job controller: runs pods to completion, with the required number of completions and a limit of failures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.resourceapi.defaulting import now

from ...scheduling.framework.pod_info import is_finished
from ..informer import Informers, ObjectChange, conditions_of
from .base import key_of
from .job_outcomes import (
    INDEX,
    JobOutcome,
    PodEnd,
    Tally,
    backoff_left,
    ends_of_deleted_pods,
    format_indexes,
    outcome,
    pod_end,
    tally,
)
from .workloads import JOBS, Workload, condition, controller_of, is_active, is_ready

_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_ENDS = {"Complete": True, "Failed": False}
# The conditions of a Job whose outcome is decided while pods still run.
_TARGETS = {"SuccessCriteriaMet": True, "FailureTarget": False}
_COMPLETE = JobOutcome(True, "CompletionsReached", "Reached expected number of succeeded pods")


class JobController(Workload):
    name = "job-controller"
    resource = JOBS

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers)
        # By UID of a Job: the ends of its pods, by UID of the pod; kept because a pod may be deleted after its end
        self._ended: dict[str, dict[str, PodEnd]] = {}
        self._deleted: set[str] = set()  # UIDs of pods that this controller deleted; their ends do not count
        self._uncounted: dict[str, list[JSON]] = {}  # by UID of a Job: pods that were deleted before they were counted
        self.watch(JOBS, self._job_changed)

    def _job_changed(self, change: ObjectChange) -> None:
        if change.gone:
            uid = change.object["metadata"]["uid"]
            self._ended.pop(uid, None)
            self._uncounted.pop(uid, None)

    def _child_changed(self, change: ObjectChange) -> None:
        super()._child_changed(change)
        if not change.gone:
            return
        uid, owner = change.object["metadata"]["uid"], controller_of(change.object)
        if uid in self._deleted:
            self._deleted.remove(uid)
        elif owner is not None and owner["uid"] in self._ended:
            self._uncounted.setdefault(owner["uid"], []).append(change.object)

    async def sync(self, obj: JSON) -> None:
        spec, status = obj["spec"], obj.get("status") or {}
        if spec.get("managedBy") not in {None, "kubernetes.io/job-controller"}:
            return  # another controller manages it
        if _true_condition(status, _ENDS) is not None:
            await self._clean_up(obj, status)
            return
        pods = self.pods_of(obj)
        found = tally(self._count(obj, pods), spec)
        active = [p for p in pods if is_active(p)]
        terminating = [p for p in pods if not is_finished(p) and p["metadata"].get("deletionTimestamp")]
        fresh: JSON = {"startTime": status.get("startTime") or now()}
        conditions = [c for c in status.get("conditions") or [] if c["type"] == "Suspended"]
        end = self._end(spec, status, found, active)
        if end is None and spec.get("suspend"):
            terminating += await self._delete_pods(obj, active)
            active, fresh = [], {}
            conditions = [self._changed_condition(obj, "Suspended", "True", "JobSuspended", "Job suspended")]
        elif end is None:
            if conditions:
                conditions = [self._changed_condition(obj, "Suspended", "False", "JobResumed", "Job resumed")]
            active, deleted = await self._run(obj, active, terminating, found)
            terminating += deleted
        else:
            await self._delete_pods(obj, active)
            terminating += active
            active = []
            conditions += self._ending(obj, end, last=not terminating)
            if end.succeeded and not terminating:
                fresh["completionTime"] = now()
        counts = {"succeeded": len(found.done), "failed": found.failed, "active": len(active)}
        fresh |= {k: v for k, v in counts.items() if v}
        fresh |= {"ready": sum(map(is_ready, active)), "terminating": len(terminating), "uncountedTerminatedPods": {}}
        if spec.get("completionMode") == "Indexed":
            fresh |= {"completedIndexes": format_indexes(found.done)} if found.done else {}
            fresh |= {"failedIndexes": format_indexes(found.given_up)} if found.given_up else {}
        if conditions:
            fresh["conditions"] = conditions
        await self.write_status(obj, fresh)
        # Events are sent after the write. If they were sent before, a retry after a conflict would send them again.
        self._record_changes(obj, conditions)

    def _count(self, obj: JSON, pods: list[JSON]) -> list[PodEnd]:
        """Returns the ends of all pods, without pods that this controller deleted.

        These include pods that were deleted by force, and pods that the Job's status counted before a restart of the controller.
        """
        job = obj["metadata"]["uid"]
        first = job not in self._ended
        known = self._ended.setdefault(job, {})
        uncounted = self._uncounted.pop(job, [])
        for pod in [*pods, *uncounted]:
            uid = pod["metadata"]["uid"]
            if uid in known or uid in self._deleted:
                continue
            if end := pod_end(pod, obj["spec"], gone=pod in uncounted):
                known[uid] = end
        if first:
            known.update({e.uid: e for e in ends_of_deleted_pods(obj.get("status") or {}, list(known.values()))})
        return list(known.values())

    def _end(self, spec: JSON, status: JSON, found: Tally, active: list[JSON]) -> JobOutcome | None:
        """Returns the Job's outcome; None if the Job continues. An outcome that is already in the status is final."""
        if (target := _true_condition(status, _TARGETS)) is not None:
            return JobOutcome(_TARGETS[target["type"]], target.get("reason", ""), target.get("message", ""))
        started = status.get("startTime")
        since = time.time() - datetime.fromisoformat(started).timestamp() if started else 0.0
        if end := outcome(spec, found, sum(map(_restarts, active)), since):
            return end
        completions = spec.get("completions")
        if completions is None:  # a Job without completions is complete when one pod has succeeded and no pod is active
            return _COMPLETE if found.done and not active else None
        return _COMPLETE if len(found.done) >= int(completions) else None

    def _ending(self, obj: JSON, end: JobOutcome, *, last: bool) -> list[JSON]:
        """Returns the condition that announces the outcome. If ``last`` (all pods have ended), also returns the final condition."""
        names = ["SuccessCriteriaMet", "Complete"] if end.succeeded else ["FailureTarget", "Failed"]
        known = conditions_of(obj)
        return [
            known.get(name) or _with_probe_time(condition(obj, name, "True", end.reason, end.message, now()))
            for name in names[: 1 + last]
        ]

    def _changed_condition(self, obj: JSON, type: str, status: str, reason: str, message: str) -> JSON:
        known = conditions_of(obj)
        if type in known and known[type]["status"] == status:
            return dict(known[type])
        return _with_probe_time(condition(obj, type, status, reason, message, now()))

    def _record_changes(self, obj: JSON, conditions: list[JSON]) -> None:
        known = conditions_of(obj)
        for c in conditions:
            if c["status"] == known.get(c["type"], {}).get("status"):
                continue
            match c["type"]:
                case "Suspended":
                    self.record_event(obj, JOBS, "Normal", c["reason"].removeprefix("Job"), c["message"])
                case "Complete":
                    self.record_event(obj, JOBS, "Normal", "Completed", "Job completed")
                case "Failed":
                    self.record_event(obj, JOBS, "Warning", c["reason"], c.get("message", ""))

    # --- pods -----------------------------------------------------------------------------------

    async def _run(
        self, obj: JSON, active: list[JSON], terminating: list[JSON], found: Tally
    ) -> tuple[list[JSON], list[JSON]]:
        """Creates or deletes pods to reach the wanted number.

        Returns:
            The active pods, and the pods that were deleted.
        """
        spec = obj["spec"]
        completions, parallelism = spec.get("completions"), int(spec.get("parallelism", 1))
        if completions is None:
            wanted = len(active) if found.done else parallelism
        else:
            wanted = min(parallelism, completions - len(found.done) - len(found.given_up))
        if len(active) > wanted:
            deleted = active[max(0, wanted) :]
            await self._delete_pods(obj, deleted)
            return active[: max(0, wanted)], deleted
        if (limit := spec.get("activeDeadlineSeconds")) is not None:
            self.queue.add_after(key_of(JOBS, obj), float(limit) + 0.1)
        capacity = wanted - len(active)
        if spec.get("podReplacementPolicy") == "Failed":
            capacity -= len(terminating)
        out = list(active)
        for index in self._next(obj, active, terminating, found, capacity):
            out.append(await self.make_pod(obj, spec["template"], *_with_index(obj, index, found)))
        return out, []

    def _next(
        self, obj: JSON, active: list[JSON], terminating: list[JSON], found: Tally, capacity: int
    ) -> Iterator[str]:
        """Yields the index of each pod to create now, at most ``capacity``. The index is empty unless the Job is indexed.

        If an index is in backoff after a failure, queues the Job again for the end of the backoff.
        """
        spec, key = obj["spec"], key_of(JOBS, obj)
        by_index = spec.get("backoffLimitPerIndex") is not None
        if not by_index and capacity > 0:
            remaining = backoff_left(found.failed, max(found.last.values(), default=0.0))
            if remaining > 0:
                self.queue.add_after(key, remaining)
                return
        if spec.get("completionMode") != "Indexed":
            yield from [""] * max(0, capacity)
            return
        waits_for = terminating if spec.get("podReplacementPolicy") == "Failed" else []
        taken = {(p["metadata"].get("annotations") or {}).get(INDEX) for p in [*active, *waits_for]}
        for number in range(int(spec.get("completions") or 0)):
            index = str(number)
            if capacity <= 0:
                return
            if index in taken | found.done | found.given_up:
                continue
            if by_index and (remaining := backoff_left(found.failures[index], found.last.get(index, 0.0))) > 0:
                self.queue.add_after(key, remaining)
                continue
            capacity -= 1
            yield index

    async def _delete_pods(self, obj: JSON, pods: list[JSON]) -> list[JSON]:
        for pod in pods:
            self._deleted.add(pod["metadata"]["uid"])
            await self.delete_pod(obj, pod)
        return pods

    async def _clean_up(self, obj: JSON, status: JSON) -> None:
        """Deletes a finished Job when its ``ttlSecondsAfterFinished`` has passed."""
        meta = obj["metadata"]
        self._ended.pop(meta["uid"], None)
        self._uncounted.pop(meta["uid"], None)
        ttl = obj["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        times = [c["lastTransitionTime"] for c in status["conditions"] if c["type"] in _ENDS]
        remaining = datetime.fromisoformat(times[0]).timestamp() + ttl - time.time()
        if remaining > 0:
            self.queue.add_after(key_of(JOBS, obj), remaining)
            return
        await self.delete(JOBS, obj)


def _true_condition(status: Mapping[str, Any], types: Mapping[str, bool]) -> JSON | None:
    """Returns the true condition of one of the types; None if there is none."""
    return next((c for c in status.get("conditions") or [] if c["type"] in types and c["status"] == "True"), None)


def _with_probe_time(found: JSON) -> JSON:
    return {**found, "lastProbeTime": found["lastTransitionTime"]}


def _restarts(pod: Mapping[str, Any]) -> int:
    status = pod.get("status") or {}
    every = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return sum(int(s.get("restartCount") or 0) for s in every)


def _with_index(obj: JSON, index: str, found: Tally) -> tuple[JSON, JSON]:
    """Returns metadata and spec fields of a new pod. ``index`` is empty unless the Job is indexed."""
    name, spec = obj["metadata"]["name"], obj["spec"]["template"]["spec"]
    labels = {"batch.kubernetes.io/job-name": name, "job-name": name}
    labels["batch.kubernetes.io/controller-uid"] = labels["controller-uid"] = obj["metadata"]["uid"]
    if not index:
        return {"labels": labels}, {}
    annotations = {INDEX: index}
    if obj["spec"].get("backoffLimitPerIndex") is not None:
        annotations[_FAILURES] = str(found.failures[index])
    entry = {"name": "JOB_COMPLETION_INDEX", "value": index}
    extra = {
        key: [{**c, "env": [*(c.get("env") or []), entry]} for c in spec[key]]
        for key in ("initContainers", "containers")
        if spec.get(key)
    }
    meta = {"labels": {**labels, INDEX: index}, "annotations": annotations, "generateName": f"{name}-{index}-"}
    return meta, {"hostname": spec.get("hostname") or f"{name}-{index}", **extra}
