"""Jobs: pods that run to their end, so many times, with so many failures allowed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from ...errors import ApiError
from ...kube import KubeClient
from ...resources.defaults import now
from ..informer import Informers
from .base import Key, key_of
from .workloads import JOBS, KINDS, Workload, is_active, is_ready

JSON = dict[str, Any]
_INDEX = "batch.kubernetes.io/job-completion-index"
_PAUSE, _LONGEST = 10.0, 600.0  # seconds between a failure and the next try; it doubles
_NOT_IMPLEMENTED = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "maxFailedIndexes")


class JobController(Workload):
    name = "job-controller"
    resource = JOBS
    kinds: ClassVar = KINDS

    def __init__(self, client: KubeClient, informers: Informers) -> None:
        super().__init__(client, informers)
        self._ended: dict[str, dict[str, str]] = {}  # Job → pods that have ended (UIDs), and how: they may be deleted

    async def reconcile(self, key: Key) -> None:
        obj = self.informers.find(key.resource, key.name, key.namespace)
        if obj is None:
            return
        await super().reconcile(key)

    async def sync(self, obj: JSON) -> None:
        spec, status = obj["spec"], obj.get("status") or {}
        pods = self.pods_of(obj)
        if _is_over(status):
            await self._clean_up(obj, status)
            return
        if found := [field for field in _NOT_IMPLEMENTED if spec.get(field) is not None]:
            self.tell(
                obj,
                "Warning",
                "NotImplemented",
                f"spec.{found[0]} is not implemented by the local cluster: nothing is started",
            )
            return
        ended = self._count(obj, pods)
        succeeded = {uid for uid, how in ended.items() if how != "Failed"}
        failed = len(ended) - len(succeeded)
        active = [p for p in pods if is_active(p)]
        fresh: JSON = {"startTime": status.get("startTime") or now()}
        reason, text = self._failure(spec, status, failed)
        indexed = spec.get("completionMode") == "Indexed"
        done = {how for how in ended.values() if how != "Failed"} if indexed else succeeded
        conditions: list[JSON] = []
        if spec.get("suspend"):
            await self._delete_all(obj, active)
            active, fresh = [], {}
            conditions = [_condition("Suspended", "JobSuspended", "Job suspended")]
        elif reason:
            await self._delete_all(obj, active)
            active = []
            conditions = [_condition(t, reason, text) for t in ("FailureTarget", "Failed")]
            self.tell(obj, "Warning", reason, text)
        elif self._is_complete(spec, done, active):
            await self._delete_all(obj, active)
            active = []
            text = "Reached expected number of succeeded pods"
            conditions = [_condition(t, "CompletionsReached", text) for t in ("SuccessCriteriaMet", "Complete")]
            fresh["completionTime"] = now()
            self.tell(obj, "Normal", "Completed", "Job completed")
        else:
            active = await self._start(obj, active, done, failed)
        counts = {"active": len(active), "succeeded": len(done), "failed": failed, "ready": sum(map(is_ready, active))}
        fresh |= {k: v for k, v in counts.items() if v or k == "ready"} | {
            "uncountedTerminatedPods": {},
            "terminating": 0,
        }
        if indexed and done:
            fresh["completedIndexes"] = ",".join(sorted(done, key=int))
        if conditions:
            fresh["conditions"] = conditions
        await self.write_status(obj, fresh)

    def _count(self, obj: JSON, pods: list[JSON]) -> dict[str, str]:
        """Every pod that has ended: Failed, or for one that succeeded its index or UID."""
        ended = self._ended.setdefault(obj["metadata"]["uid"], {})
        for pod in pods:
            phase = (pod.get("status") or {}).get("phase")
            meta = pod["metadata"]
            if phase == "Succeeded":
                ended[meta["uid"]] = (meta.get("annotations") or {}).get(_INDEX, meta["uid"])
            elif phase == "Failed":
                ended[meta["uid"]] = "Failed"
        return ended

    def _failure(self, spec: JSON, status: JSON, failed: int) -> tuple[str, str]:
        if failed > spec.get("backoffLimit", 6):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        limit = spec.get("activeDeadlineSeconds")
        if limit is not None and (started := status.get("startTime")):
            if time.time() - datetime.fromisoformat(started).timestamp() >= limit:
                return "DeadlineExceeded", "Job was active longer than specified deadline"
        return "", ""

    @staticmethod
    def _is_complete(spec: JSON, done: set[str], active: list[JSON]) -> bool:
        completions = spec.get("completions")
        if completions is None:  # a work queue: one success, and all others have ended
            return bool(done) and not active
        return len(done) >= int(completions)

    async def _start(self, obj: JSON, active: list[JSON], done: set[str], failed: int) -> list[JSON]:
        spec = obj["spec"]
        completions, parallelism = spec.get("completions"), spec.get("parallelism", 1)
        if completions is None:
            wanted = 0 if done else parallelism
        else:
            wanted = min(parallelism, completions - len(done))
        if len(active) > wanted and completions is not None:
            await self._delete_all(obj, active[wanted:])
            return active[:wanted]
        if failed and len(active) < wanted and (left := self._pause(obj, failed)) > 0:
            self.queue.add_after(key_of(JOBS, obj), left)
            return active
        if (limit := spec.get("activeDeadlineSeconds")) is not None:
            self.queue.add_after(key_of(JOBS, obj), float(limit) + 0.1)
        taken = {(p["metadata"].get("annotations") or {}).get(_INDEX) for p in active} | done
        free = (str(i) for i in range(completions or 0) if str(i) not in taken)
        out = list(active)
        for _ in range(wanted - len(active)):
            labels = {"batch.kubernetes.io/job-name": obj["metadata"]["name"], "job-name": obj["metadata"]["name"]}
            labels["batch.kubernetes.io/controller-uid"] = labels["controller-uid"] = obj["metadata"]["uid"]
            meta: JSON = {"labels": labels}
            more: JSON = {}
            if spec.get("completionMode") == "Indexed":
                index = next(free)
                meta["annotations"] = {_INDEX: index}
                labels[_INDEX] = index
                meta["generateName"] = f"{obj['metadata']['name']}-{index}-"
                more = {
                    "hostname": f"{obj['metadata']['name']}-{index}",
                    **_with_index(spec["template"]["spec"], index),
                }
            out.append(await self.make_pod(obj, spec["template"], meta, more))
        return out

    def _pause(self, obj: JSON, failed: int) -> float:
        """Seconds that a Job has to wait since its last failure."""
        last = 0.0
        for pod in self.pods_of(obj):
            if (pod.get("status") or {}).get("phase") == "Failed":
                for found in pod["status"].get("containerStatuses") or []:
                    if at := ((found.get("state") or {}).get("terminated") or {}).get("finishedAt"):
                        last = max(last, datetime.fromisoformat(at).timestamp())
        return last + min(_LONGEST, _PAUSE * 2.0 ** (min(failed, 20) - 1)) - time.time()

    async def _delete_all(self, obj: JSON, pods: list[JSON]) -> None:
        for pod in pods:
            await self.delete_pod(obj, pod)

    async def _clean_up(self, obj: JSON, status: JSON) -> None:
        """Deletes a Job that is over, where it says when."""
        ttl = obj["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        times = [c["lastTransitionTime"] for c in status["conditions"] if c["type"] in {"Complete", "Failed"}]
        left = datetime.fromisoformat(times[0]).timestamp() + ttl - time.time()
        if left > 0:
            self.queue.add_after(key_of(JOBS, obj), left)
            return
        meta = obj["metadata"]
        try:
            await self.client.delete(JOBS, meta["name"], meta["namespace"], uid=meta["uid"])
        except ApiError as e:
            if e.status not in {404, 409}:
                raise


def _is_over(status: Mapping[str, Any]) -> bool:
    return any(c["type"] in {"Complete", "Failed"} and c["status"] == "True" for c in status.get("conditions") or [])


def _condition(type: str, reason: str, message: str) -> JSON:
    stamp = now()
    known = {"status": "True", "lastProbeTime": stamp, "lastTransitionTime": stamp}
    return {"type": type, "reason": reason, "message": message, **known}


def _with_index(spec: Mapping[str, Any], index: str) -> JSON:
    entry = {"name": "JOB_COMPLETION_INDEX", "value": index}
    return {
        key: [{**c, "env": [*(c.get("env") or []), entry]} for c in spec[key]]
        for key in ("initContainers", "containers")
        if spec.get(key)
    }
