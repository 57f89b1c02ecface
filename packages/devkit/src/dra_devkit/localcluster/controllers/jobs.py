"""The Job controller: runs pods to completion, with the required number of completions and a limit of failures.

It ignores policies for failures and success, and limits of single indexes; the API server warns about them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import ConflictError, NotFoundError
from dra_kubeletplugin.resourceapi.defaulting import now

from ...scheduling.framework.pod_info import is_finished
from ..informer import Informers, ObjectChange
from .base import Key, key_of
from .workloads import JOBS, KINDS, Workload, condition, controller_of, is_active, is_ready

_INDEX = "batch.kubernetes.io/job-completion-index"
_ENDS = {"Complete": True, "Failed": False}
# The conditions of a Job whose outcome is decided while pods still run.
_TARGETS = {"SuccessCriteriaMet": True, "FailureTarget": False}
# Seconds between a failure and the next attempt. The first value doubles with each failure, up to the second value.
_BACKOFF, _MAX_BACKOFF = 10.0, 600.0


@dataclass(frozen=True)
class _PodEnd:
    """The end of a pod. ``at`` is its time in seconds since the epoch. ``index`` is empty unless the Job is indexed."""

    index: str
    succeeded: bool
    at: float


class _Outcome(NamedTuple):
    succeeded: bool
    reason: str
    message: str


class _Tally(NamedTuple):
    """Counts of a Job's ended pods. ``done``: the succeeded indexes; the UIDs of the succeeded pods if the Job is not indexed."""

    done: set[str]
    succeeded: int
    failed: int
    last_failure: float  # seconds since the epoch


class JobController(Workload):
    name = "job-controller"
    resource = JOBS
    kinds: ClassVar = KINDS

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers)
        # By UID of a Job: the ends of its pods, by UID of the pod; kept because a pod may be deleted after its end
        self._ended: dict[str, dict[str, _PodEnd]] = {}
        self._deleted: set[str] = set()  # UIDs of pods that this controller deleted; their ends do not count
        self.watch(JOBS, self._job_changed)

    def _job_changed(self, change: ObjectChange) -> None:
        if change.gone:
            self._ended.pop(change.object["metadata"]["uid"], None)

    def _pod_changed(self, change: ObjectChange) -> None:
        super()._pod_changed(change)
        if change.gone:
            owner = controller_of(change.object)
            if owner is not None and owner["uid"] in self._ended:
                self._count(owner["uid"], change.object, gone=True)
            self._deleted.discard(change.object["metadata"]["uid"])

    async def reconcile(self, key: Key) -> None:
        if self.informers.find(key.resource, key.name, key.namespace) is not None:
            await super().reconcile(key)

    async def sync(self, obj: JSON) -> None:
        spec, status = obj["spec"], obj.get("status") or {}
        if spec.get("managedBy") not in {None, "kubernetes.io/job-controller"}:
            return  # another controller manages it
        if _true_condition(status, _ENDS) is not None:
            await self._clean_up(obj, status)
            return
        pods = self.pods_of(obj)
        found = self._tally(obj, pods)
        active = [p for p in pods if is_active(p)]
        terminating = [p for p in pods if not is_finished(p) and p["metadata"].get("deletionTimestamp")]
        fresh: JSON = {"startTime": status.get("startTime") or now()}
        conditions = [c for c in status.get("conditions") or [] if c["type"] == "Suspended"]
        end = _outcome(spec, status, found, active)
        if end is None and spec.get("suspend"):
            terminating += await self._delete_pods(obj, active)
            active, fresh = [], {}
            conditions = [_condition(obj, "Suspended", "True", "JobSuspended", "Job suspended")]
        elif end is None:
            if conditions:
                conditions = [_condition(obj, "Suspended", "False", "JobResumed", "Job resumed")]
            active, deleted = await self._run(obj, active, found)
            terminating += deleted
        else:
            terminating += await self._delete_pods(obj, active)
            active = []
            names = ["SuccessCriteriaMet", "Complete"] if end.succeeded else ["FailureTarget", "Failed"]
            names = names if not terminating else names[:1]  # the last condition is true after all pods have ended
            conditions += [_condition(obj, name, "True", end.reason, end.message) for name in names]
            if end.succeeded and not terminating:
                fresh["completionTime"] = now()
        counts = {"succeeded": found.succeeded, "failed": found.failed, "active": len(active)}
        fresh |= {k: v for k, v in counts.items() if v}
        fresh |= {"ready": sum(map(is_ready, active)), "terminating": len(terminating), "uncountedTerminatedPods": {}}
        if spec.get("completionMode") == "Indexed" and found.done:
            fresh["completedIndexes"] = _format_indexes(found.done)
        if conditions:
            fresh["conditions"] = conditions
        await self.write_status(obj, fresh)
        # Events are sent after the write. If they were sent before, a retry after a conflict would send them again.
        self._record_changes(obj, conditions)

    def _tally(self, obj: JSON, pods: Iterable[JSON]) -> _Tally:
        """Counts the ends of all pods, also of pods that no longer exist: the status has them after a restart of the controller."""
        status, job = obj.get("status") or {}, obj["metadata"]["uid"]
        ends = self._ended.setdefault(job, {})
        for pod in pods:
            self._count(job, pod)
        done = {e.index or uid for uid, e in ends.items() if e.succeeded} | _parse_indexes(
            status.get("completedIndexes")
        )
        failures = [e.at for e in ends.values() if not e.succeeded]
        return _Tally(
            done,
            max(len(done), int(status.get("succeeded") or 0)),
            max(len(failures), int(status.get("failed") or 0)),
            max(failures, default=0.0),
        )

    def _count(self, job: str, pod: JSON, *, gone: bool = False) -> None:
        """Counts the end of a pod. A pod that another client deletes has failed, unless this controller deleted it."""
        meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        ended = phase in {"Succeeded", "Failed"} or gone or meta.get("deletionTimestamp")
        if ended and meta["uid"] not in self._deleted:
            index = (meta.get("annotations") or {}).get(_INDEX, "")
            self._ended[job].setdefault(meta["uid"], _PodEnd(index, phase == "Succeeded", _end_time(pod)))

    def _record_changes(self, obj: JSON, conditions: list[JSON]) -> None:
        known = {(c["type"], c["status"]) for c in (obj.get("status") or {}).get("conditions") or []}
        for c in conditions:
            if (c["type"], c["status"]) in known:
                continue
            match c["type"]:
                case "Suspended":
                    self.record_event(obj, "Normal", c["reason"].removeprefix("Job"), c["message"])
                case "Complete":
                    self.record_event(obj, "Normal", "Completed", "Job completed")
                case "Failed":
                    self.record_event(obj, "Warning", c["reason"], c.get("message", ""))

    # --- pods -----------------------------------------------------------------------------------

    async def _run(self, obj: JSON, active: list[JSON], found: _Tally) -> tuple[list[JSON], list[JSON]]:
        """Creates or deletes pods to reach the wanted number. Returns the active pods, and the pods that were deleted."""
        spec, key = obj["spec"], key_of(JOBS, obj)
        completions, parallelism = spec.get("completions"), int(spec.get("parallelism", 1))
        if completions is None:
            wanted = len(active) if found.succeeded else parallelism
        else:
            wanted = max(0, min(parallelism, completions - found.succeeded))
        if len(active) > wanted:
            return active[:wanted], await self._delete_pods(obj, active[wanted:])
        if (limit := spec.get("activeDeadlineSeconds")) is not None:
            self.queue.add_after(key, float(limit) + 0.1)
        if len(active) == wanted:
            return active, []
        if (remaining := _backoff_left(found)) > 0:
            self.queue.add_after(key, remaining)
            return active, []
        out = list(active)
        for index in _free_indexes(spec, active, found, wanted - len(active)):
            out.append(await self.make_pod(obj, spec["template"], *_with_index(obj, index)))
        return out, []

    async def _delete_pods(self, obj: JSON, pods: list[JSON]) -> list[JSON]:
        for pod in pods:
            self._deleted.add(pod["metadata"]["uid"])
            await self.delete_pod(obj, pod)
        return pods

    async def _clean_up(self, obj: JSON, status: JSON) -> None:
        """Deletes a finished Job when its ``ttlSecondsAfterFinished`` has passed."""
        meta = obj["metadata"]
        self._ended.pop(meta["uid"], None)
        ttl = obj["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        times = [c["lastTransitionTime"] for c in status["conditions"] if c["type"] in _ENDS]
        remaining = datetime.fromisoformat(times[0]).timestamp() + ttl - time.time()
        if remaining > 0:
            self.queue.add_after(key_of(JOBS, obj), remaining)
            return
        with contextlib.suppress(NotFoundError, ConflictError):
            await self.client.delete(JOBS, meta["name"], meta["namespace"], uid=meta["uid"])


def _outcome(spec: JSON, status: JSON, found: _Tally, active: list[JSON]) -> _Outcome | None:
    """Returns the Job's outcome; None if the Job continues. An outcome that is already in the status is final."""
    if (target := _true_condition(status, _TARGETS)) is not None:
        return _Outcome(_TARGETS[target["type"]], target.get("reason", ""), target.get("message", ""))
    limit, restarts = int(spec.get("backoffLimit", 6)), sum(map(_restarts, active))
    restarting = spec["template"]["spec"].get("restartPolicy") == "OnFailure"
    if found.failed > limit or (restarting and restarts > max(0, limit - 1)):
        return _Outcome(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    deadline, started = spec.get("activeDeadlineSeconds"), status.get("startTime")
    if deadline is not None and started and time.time() - datetime.fromisoformat(started).timestamp() >= deadline:
        return _Outcome(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    completions = spec.get("completions")
    # a Job without completions is complete when one pod has succeeded and no pod is active
    complete = found.succeeded and not active if completions is None else found.succeeded >= int(completions)
    return _Outcome(True, "CompletionsReached", "Reached expected number of succeeded pods") if complete else None


def _true_condition(status: Mapping[str, Any], types: Mapping[str, bool]) -> JSON | None:
    """Returns the true condition of one of the types; None if there is none."""
    return next(
        (c for c in status.get("conditions") or [] if c["type"] in types and c["status"] == "True"),
        None,
    )


def _condition(obj: JSON, type: str, status: str, reason: str, message: str) -> JSON:
    """Returns a condition. It stays as it is if it already has this status."""
    known = {c["type"]: c for c in (obj.get("status") or {}).get("conditions") or []}
    if type in known and known[type]["status"] == status:
        return dict(known[type])
    found = condition(obj, type, status, reason, message, now())
    return {**found, "lastProbeTime": found["lastTransitionTime"]}


def _restarts(pod: Mapping[str, Any]) -> int:
    status = pod.get("status") or {}
    every = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return sum(int(s.get("restartCount") or 0) for s in every)


def _end_time(pod: JSON) -> float:
    stopped = [
        (s.get("state") or {}).get("terminated") or {} for s in pod.get("status", {}).get("containerStatuses") or []
    ]
    times = [datetime.fromisoformat(s["finishedAt"]).timestamp() for s in stopped if s.get("finishedAt")]
    return max(times, default=time.time())


def _backoff_left(found: _Tally) -> float:
    """Returns the seconds until the next attempt; at most 0 if it is due."""
    if not found.failed:
        return 0.0
    return found.last_failure + min(_MAX_BACKOFF, _BACKOFF * 2.0 ** (min(found.failed, 20) - 1)) - time.time()


def _free_indexes(spec: JSON, active: list[JSON], found: _Tally, count: int) -> Iterator[str]:
    """Yields the index of each pod to create, at most ``count``. The index is empty unless the Job is indexed."""
    if spec.get("completionMode") != "Indexed":
        yield from [""] * count
        return
    taken = {(p["metadata"].get("annotations") or {}).get(_INDEX) for p in active} | found.done
    free = (str(i) for i in range(int(spec.get("completions") or 0)) if str(i) not in taken)
    yield from (index for _, index in zip(range(count), free, strict=False))


def _with_index(obj: JSON, index: str) -> tuple[JSON, JSON]:
    """Returns metadata and spec fields of a new pod. ``index`` is empty unless the Job is indexed."""
    name, spec = obj["metadata"]["name"], obj["spec"]["template"]["spec"]
    labels = {"batch.kubernetes.io/job-name": name, "job-name": name}
    labels["batch.kubernetes.io/controller-uid"] = labels["controller-uid"] = obj["metadata"]["uid"]
    if not index:
        return {"labels": labels}, {}
    entry = {"name": "JOB_COMPLETION_INDEX", "value": index}
    extra = {
        key: [{**c, "env": [*(c.get("env") or []), entry]} for c in spec[key]]
        for key in ("initContainers", "containers")
        if spec.get(key)
    }
    meta = {"labels": {**labels, _INDEX: index}, "annotations": {_INDEX: index}, "generateName": f"{name}-{index}-"}
    return meta, {"hostname": spec.get("hostname") or f"{name}-{index}", **extra}


def _parse_indexes(text: str | None) -> set[str]:
    """Parses indexes: ``0-2,5`` → 0, 1, 2, 5."""
    out: set[str] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        out |= {str(i) for i in range(int(first), int(last or first) + 1)}
    return out


def _format_indexes(indexes: Iterable[str]) -> str:
    """Formats indexes. Three or more consecutive indexes become a range."""
    runs: list[list[int]] = []
    for index in sorted(map(int, indexes)):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(",".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs)
