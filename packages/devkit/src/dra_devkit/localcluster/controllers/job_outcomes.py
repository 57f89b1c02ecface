"""Decides the outcome of a Job from its ended pods, as functions without API calls.

Source: kubernetes, pkg/controller/job: pod_failure_policy.go, backoff_utils.go, indexed_job_utils.go, success_policy.go.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

INDEX = "batch.kubernetes.io/job-completion-index"
# Seconds between a failure and the next attempt. The first value doubles with each failure, up to the second value.
_BACKOFF, _MAX_BACKOFF = 10.0, 600.0


class JobAction(Enum):
    """The action of a rule in a pod failure policy."""

    COUNT = "Count"
    IGNORE = "Ignore"
    FAIL_INDEX = "FailIndex"
    FAIL_JOB = "FailJob"


@dataclass(frozen=True)
class PodEnd:
    """The end of a pod. ``at`` is its time in seconds since the epoch. ``index`` is empty unless the Job is indexed."""

    uid: str
    index: str
    succeeded: bool
    at: float = 0.0
    action: JobAction = JobAction.COUNT
    why: str = ""


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a Job, with a reason and a message."""

    succeeded: bool
    reason: str
    message: str


@dataclass
class Tally:
    """Counts of a Job's ended pods.

    Attributes:
        done: the succeeded indexes of an indexed Job; otherwise the UIDs of the succeeded pods.
        given_up: failed indexes that are not retried.
        failures: number of failures by index.
        last: time of the last failure by index, in seconds since the epoch.
        fails_job: the message of a rule that fails the Job; empty if there is none.
    """

    done: set[str] = field(default_factory=set)
    failed: int = 0
    given_up: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)
    fails_job: str = ""


def pod_end(pod: ReadOnlyJSON, spec: ReadOnlyJSON, *, gone: bool = False) -> PodEnd | None:
    """Returns how a pod ended; None for a pod that has not ended.

    A pod that is being deleted has ended, unless the Job replaces only failed pods.

    Args:
        gone: whether the pod was removed from the API server.
    """
    meta, status = pod["metadata"], pod.get("status") or {}
    index = (meta.get("annotations") or {}).get(INDEX, "")
    phase = status.get("phase")
    if phase == "Succeeded":
        return PodEnd(meta["uid"], index, True)
    is_being_deleted = meta.get("deletionTimestamp") and spec.get("podReplacementPolicy") != "Failed"
    if phase != "Failed" and not is_being_deleted and not gone:
        return None
    action, why = _apply_failure_policy(pod, spec) if phase == "Failed" or gone else (JobAction.COUNT, "")
    stamps = [
        datetime.fromisoformat(stopped["finishedAt"]).timestamp()
        for s in status.get("containerStatuses") or []
        if (stopped := (s.get("state") or {}).get("terminated")) and stopped.get("finishedAt")
    ]
    return PodEnd(meta["uid"], index, False, max(stamps, default=time.time()), action, why)


def _apply_failure_policy(pod: ReadOnlyJSON, spec: ReadOnlyJSON) -> tuple[JobAction, str]:
    """Returns the action and message of the first failure policy rule that matches."""
    meta = pod["metadata"]
    where = f"{meta['namespace']}/{meta['name']}"
    for i, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or []):
        if match_text := _match_of(rule, pod.get("status") or {}, where):
            return JobAction(rule["action"]), f"{match_text} matching {rule['action']} rule at index {i}"
    return JobAction.COUNT, ""


def _match_of(rule: ReadOnlyJSON, status: ReadOnlyJSON, where: str) -> str:
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


def ends_of_deleted_pods(status: ReadOnlyJSON, found: Iterable[PodEnd]) -> Iterable[PodEnd]:
    """Yields a PodEnd for each pod that the Job's status counts and that is not in ``found``, because it no longer exists."""
    found = list(found)
    succeeded = {e.index or e.uid for e in found if e.succeeded}
    if "completedIndexes" in status:
        unseen = {str(i) for i in parse_indexes(status["completedIndexes"])} - succeeded
        yield from (PodEnd(f"succeeded {index}", index, True) for index in unseen)
    else:
        yield from (
            PodEnd(f"succeeded {n}", "", True) for n in range(len(succeeded), int(status.get("succeeded") or 0))
        )
    missing = int(status.get("failed") or 0) - sum(not e.succeeded and e.action is not JobAction.IGNORE for e in found)
    known = {e.index for e in found if e.action is JobAction.FAIL_INDEX}
    given_up = {str(i) for i in parse_indexes(status["failedIndexes"])} if status.get("failedIndexes") else set()
    indexes = [*sorted(given_up - known), *[""] * max(0, missing)][: max(0, missing)]
    yield from (
        PodEnd(f"failed {n}", index, False, action=JobAction.FAIL_INDEX if index else JobAction.COUNT)
        for n, index in enumerate(indexes)
    )


def tally(ends: Iterable[PodEnd], spec: ReadOnlyJSON) -> Tally:
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


def outcome(spec: ReadOnlyJSON, found: Tally, restarts: int, running_for: float) -> JobOutcome | None:
    """Returns the Job's outcome if it ends now; None otherwise. The caller checks whether the Job has enough completions.

    Args:
        restarts: container restarts of active pods.
        running_for: seconds since the Job started.
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
        maximum = spec.get("maxFailedIndexes")
        if maximum is not None and len(found.given_up) > maximum:
            text = "Job has exceeded the specified maximal number of failed indexes"
            return JobOutcome(False, "MaxFailedIndexesExceeded", text)
        if len(found.given_up) + len(found.done) >= int(spec.get("completions") or 0):
            return JobOutcome(False, "FailedIndexes", "Job has failed indexes")
    for i, rule in enumerate((spec.get("successPolicy") or {}).get("rules") or []):
        if _satisfied(rule, {int(index) for index in found.done}):
            return JobOutcome(True, "SuccessPolicy", f"Matched rules at index {i}")
    return None


def _satisfied(rule: ReadOnlyJSON, done: set[int]) -> bool:
    wanted = parse_indexes(rule["succeededIndexes"]) if rule.get("succeededIndexes") else None
    if wanted is not None:
        done = done & wanted
    if (count := rule.get("succeededCount")) is not None:
        return len(done) >= int(count)
    return wanted is not None and done >= wanted


def backoff_left(failures: int, last: float) -> float:
    """Returns the seconds until the next attempt; 0 or less if it is due.

    Args:
        last: the time of the last failure, in seconds since the epoch.
    """
    if not failures:
        return 0.0
    return last + min(_MAX_BACKOFF, _BACKOFF * 2.0 ** (min(failures, 20) - 1)) - time.time()


def parse_indexes(text: str) -> set[int]:
    """Parses indexes: ``0-2,5`` → 0, 1, 2, 5. Raises ``ValueError``."""
    out: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        out |= set(range(int(first), int(last or first) + 1))
    return out


def format_indexes(indexes: Iterable[str]) -> str:
    """Formats indexes. Three or more consecutive indexes become a range."""
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
