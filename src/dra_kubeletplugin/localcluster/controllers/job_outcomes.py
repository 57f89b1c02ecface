"""What the ends of a Job's pods mean for the Job. Pure: pods and a specification in, a verdict out.

Source: kubernetes, pkg/controller/job: pod_failure_policy.go, backoff_utils.go, indexed_job_utils.go, success_policy.go.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

JSON = Mapping[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"
_PAUSE, _LONGEST = 10.0, 600.0  # seconds between a failure and the next try; it doubles


class JobAction(Enum):
    """What a rule makes of a pod that failed."""

    COUNT = "Count"
    IGNORE = "Ignore"
    FAIL_INDEX = "FailIndex"
    FAIL_JOB = "FailJob"


@dataclass(frozen=True)
class PodEnd:
    """A pod that has ended. ``at`` is in seconds since the epoch, ``index`` empty where the Job has none."""

    uid: str
    index: str
    succeeded: bool
    at: float = 0.0
    action: JobAction = JobAction.COUNT
    why: str = ""


@dataclass(frozen=True)
class JobOutcome:
    """How a Job ends."""

    succeeded: bool
    reason: str
    message: str


@dataclass
class Tally:
    """Of all ends: ``done`` and ``given_up`` are indexes, or UIDs of pods where the Job has none."""

    done: set[str] = field(default_factory=set)
    failed: int = 0
    given_up: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)  # by index
    last: dict[str, float] = field(default_factory=dict)  # failure, by index
    fails_job: str = ""


def ended(pod: JSON, spec: JSON, *, gone: bool = False) -> PodEnd | None:
    """None for a pod that has not ended. One that is deleted has, unless the Job waits until it really has, and is ``gone``."""
    meta, status = pod["metadata"], pod.get("status") or {}
    index = (meta.get("annotations") or {}).get(INDEX, "")
    phase = status.get("phase")
    if phase == "Succeeded":
        return PodEnd(meta["uid"], index, True)
    leaves = meta.get("deletionTimestamp") and spec.get("podReplacementPolicy") != "Failed"
    if phase != "Failed" and not leaves and not gone:
        return None
    action, why = _judge(pod, spec) if phase == "Failed" or gone else (JobAction.COUNT, "")
    stamps = [
        datetime.fromisoformat(stopped["finishedAt"]).timestamp()
        for s in status.get("containerStatuses") or []
        if (stopped := (s.get("state") or {}).get("terminated")) and stopped.get("finishedAt")
    ]
    return PodEnd(meta["uid"], index, False, max(stamps, default=time.time()), action, why)


def _judge(pod: JSON, spec: JSON) -> tuple[JobAction, str]:
    """The first rule that fits decides."""
    meta = pod["metadata"]
    where = f"{meta['namespace']}/{meta['name']}"
    for i, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or []):
        if what := _fits(rule, pod.get("status") or {}, where):
            return JobAction(rule["action"]), f"{what} matching {rule['action']} rule at index {i}"
    return JobAction.COUNT, ""


def _fits(rule: JSON, status: JSON, where: str) -> str:
    if codes := rule.get("onExitCodes"):
        for found in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
            code = ((found.get("state") or {}).get("terminated") or {}).get("exitCode")
            if not code or codes.get("containerName") not in {None, found["name"]}:
                continue
            if (code in codes["values"]) == (codes["operator"] == "In"):
                return f"Container {found['name']} for pod {where} failed with exit code {code}"
        return ""
    known = {(c.get("type"), c.get("status")) for c in status.get("conditions") or []}
    for pattern in rule.get("onPodConditions") or []:
        if (pattern["type"], pattern.get("status") or "True") in known:
            return f"Pod {where} has condition {pattern['type']}"
    return ""


def before_us(status: JSON, found: Iterable[PodEnd]) -> Iterable[PodEnd]:
    """Ends that a Job's status counts and that none of those ``found`` explains: their pods are gone."""
    found = list(found)
    well = {e.index or e.uid for e in found if e.succeeded}
    if "completedIndexes" in status:
        lost = {str(i) for i in parse_indexes(status["completedIndexes"])} - well
        yield from (PodEnd(f"succeeded {index}", index, True) for index in lost)
    else:
        yield from (PodEnd(f"succeeded {n}", "", True) for n in range(len(well), int(status.get("succeeded") or 0)))
    missing = int(status.get("failed") or 0) - sum(not e.succeeded and e.action is not JobAction.IGNORE for e in found)
    known = {e.index for e in found if e.action is JobAction.FAIL_INDEX}
    given_up = {str(i) for i in parse_indexes(status["failedIndexes"])} if status.get("failedIndexes") else set()
    places = [*sorted(given_up - known), *[""] * max(0, missing)][: max(0, missing)]
    yield from (
        PodEnd(f"failed {n}", index, False, action=JobAction.FAIL_INDEX if index else JobAction.COUNT)
        for n, index in enumerate(places)
    )


def tally(ends: Iterable[PodEnd], spec: JSON) -> Tally:
    out = Tally()
    limit = spec.get("backoffLimitPerIndex")
    for end in ends:
        if end.succeeded:
            out.done.add(end.index or end.uid)
            continue
        if end.action is JobAction.FAIL_JOB and not out.fails_job:
            out.fails_job = end.why
        if end.action is JobAction.IGNORE:
            continue
        out.failed += 1
        out.failures[end.index] += 1
        out.last[end.index] = max(end.at, out.last.get(end.index, 0.0))
        if limit is not None and (end.action is JobAction.FAIL_INDEX or out.failures[end.index] > limit):
            out.given_up.add(end.index)
    out.given_up -= out.done
    return out


def verdict(spec: JSON, found: Tally, restarts: int, running_for: float) -> JobOutcome | None:
    """Whether the Job ends now for another reason than that it is complete.

    Args:
        restarts: of containers in pods that are active.
        running_for: seconds.
    """
    limit = int(spec.get("backoffLimit", 6))
    if found.fails_job:
        return JobOutcome(False, "PodFailurePolicy", found.fails_job)
    if found.failed > limit or (
        spec["template"]["spec"].get("restartPolicy") == "OnFailure" and restarts > max(0, limit - 1)
    ):
        return JobOutcome(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and running_for >= deadline:
        return JobOutcome(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    if found.given_up:
        most = spec.get("maxFailedIndexes")
        if most is not None and len(found.given_up) > most:
            text = "Job has exceeded the specified maximal number of failed indexes"
            return JobOutcome(False, "MaxFailedIndexesExceeded", text)
        if len(found.given_up) + len(found.done) >= int(spec.get("completions") or 0):
            return JobOutcome(False, "FailedIndexes", "Job has failed indexes")
    for i, rule in enumerate((spec.get("successPolicy") or {}).get("rules") or []):
        if _satisfied(rule, {int(index) for index in found.done}):
            return JobOutcome(True, "SuccessPolicy", f"Matched rules at index {i}")
    return None


def _satisfied(rule: JSON, done: set[int]) -> bool:
    wanted = parse_indexes(rule["succeededIndexes"]) if rule.get("succeededIndexes") else None
    if wanted is not None:
        done = done & wanted
    if (count := rule.get("succeededCount")) is not None:
        return len(done) >= int(count)
    return wanted is not None and done >= wanted


def pause(failures: int, last: float) -> float:
    """Seconds until what has failed so often, the last time at ``last``, may be tried again."""
    if not failures:
        return 0.0
    return last + min(_LONGEST, _PAUSE * 2.0 ** (min(failures, 20) - 1)) - time.time()


def parse_indexes(text: str) -> set[int]:
    """``0-2,5`` → 0, 1, 2, 5. Raises ``ValueError``."""
    out: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        out |= set(range(int(first), int(last or first) + 1))
    return out


def format_indexes(indexes: Iterable[str]) -> str:
    """The reverse: neighbours together, two of them with a comma."""
    runs: list[list[int]] = []
    for index in sorted(map(int, indexes)):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(_run(run) for run in runs)


def _run(run: Sequence[int]) -> str:
    if len(run) < 3:
        return ",".join(map(str, run))
    return f"{run[0]}-{run[-1]}"


__all__ = [
    "INDEX",
    "JobAction",
    "JobOutcome",
    "PodEnd",
    "Tally",
    "before_us",
    "ended",
    "format_indexes",
    "parse_indexes",
    "pause",
    "tally",
    "verdict",
]
