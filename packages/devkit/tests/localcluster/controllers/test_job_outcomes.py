"""How the results of pods decide about their Job.

Upstream: pod_failure_policy_test.go, success_policy_test.go, indexed_job_utils_test.go.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.localcluster.controllers.job_outcomes import (
    INDEX,
    JobAction,
    PodEnd,
    backoff_left,
    format_indexes,
    outcome,
    parse_indexes,
    pod_end,
    tally,
)
from dra_kubeletplugin.base.json_types import JSON

TEMPLATE: JSON = {"template": {"spec": {"restartPolicy": "Never"}}}


def pod(phase: str = "Failed", code: int = 1, index: str = "", container: str = "main", **meta: Any) -> JSON:
    state = {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"}}
    annotations = {INDEX: index} if index else {}
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations, **meta},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": container, "state": state}],
            "conditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
    }


def codes(operator: str, *values: int, name: str | None = None) -> JSON:
    return {"onExitCodes": {"operator": operator, "values": list(values), "containerName": name}}


def policy(*rules: JSON) -> JSON:
    return {**TEMPLATE, "podFailurePolicy": {"rules": list(rules)}}


@pytest.mark.parametrize(
    ("rules", "action", "message"),
    [
        ([], "Count", ""),
        ([{"action": "FailJob", **codes("In", 2, 3)}], "Count", ""),
        (
            [{"action": "Ignore", **codes("In", 2)}, {"action": "FailJob", **codes("In", 1)}],
            "FailJob",
            "Container main for pod ns/p failed with exit code 1 matching FailJob rule at index 1",
        ),
        (
            [{"action": "FailIndex", **codes("NotIn", 2)}],
            "FailIndex",
            "Container main for pod ns/p failed with exit code 1 matching FailIndex rule at index 0",
        ),
        ([{"action": "FailJob", **codes("In", 1, name="other")}], "Count", ""),
        (
            [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}],
            "Ignore",
            "Pod ns/p has condition DisruptionTarget matching Ignore rule at index 0",
        ),
        ([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}], "Count", ""),
    ],
)
def test_the_first_matching_rule_decides_about_a_failed_pod(rules: list[JSON], action: str, message: str) -> None:
    pod_result = pod_end(pod(), policy(*rules))
    assert pod_result is not None
    assert (pod_result.action, pod_result.why) == (JobAction(action), message)


def test_no_rule_matches_a_container_that_succeeded() -> None:
    pod_result = pod_end(pod(code=0), policy({"action": "FailJob", **codes("NotIn", 1)}))
    assert pod_result is not None
    assert pod_result.action is JobAction.COUNT


def test_a_deleted_pod_counts_as_failed_unless_the_job_waits_for_its_end() -> None:
    deleted = pod("Running", deletionTimestamp="2026-01-01T00:00:00Z")
    assert pod_end(pod("Running"), TEMPLATE) is None
    assert pod_end(deleted, {**TEMPLATE, "podReplacementPolicy": "Failed"}) is None
    pod_result = pod_end(deleted, {**TEMPLATE, "podReplacementPolicy": "TerminatingOrFailed"})
    assert pod_result is not None
    assert not pod_result.succeeded


def failed_pod(index: str = "", action: JobAction = JobAction.COUNT, finished_at: float = 0, why: str = "") -> PodEnd:
    return PodEnd(f"f{index}", index, False, finished_at, action, why)


def test_ignored_failures_do_not_count_and_a_fail_job_rule_ends_the_job() -> None:
    counts = tally([failed_pod(), failed_pod(action=JobAction.IGNORE)], TEMPLATE)
    assert counts.failed == 1
    assert outcome({**TEMPLATE, "backoffLimit": 1}, counts, 0, 0) is None
    counts = tally([failed_pod(action=JobAction.FAIL_JOB, why="so")], TEMPLATE)
    end = outcome(TEMPLATE, counts, 0, 0)
    assert end is not None
    assert (end.succeeded, end.reason, end.message) == (False, "PodFailurePolicy", "so")


def test_each_index_has_its_own_backoff_limit() -> None:
    spec = {**TEMPLATE, "backoffLimit": 2**31 - 1, "backoffLimitPerIndex": 1, "completions": 3, "maxFailedIndexes": 1}
    counts = tally([failed_pod("0"), failed_pod("0"), failed_pod("1"), PodEnd("s", "2", True)], spec)
    assert (counts.given_up, counts.done) == ({"0"}, {"2"})
    assert outcome(spec, counts, 0, 0) is None
    counts = tally([failed_pod("0"), failed_pod("0"), PodEnd("s", "1", True), PodEnd("t", "2", True)], spec)
    end = outcome(spec, counts, 0, 0)
    assert end is not None
    assert (end.reason, end.message) == ("FailedIndexes", "Job has failed indexes")
    counts = tally([failed_pod("0", JobAction.FAIL_INDEX), failed_pod("1", JobAction.FAIL_INDEX)], spec)
    end = outcome(spec, counts, 0, 0)
    assert end is not None
    assert end.reason == "MaxFailedIndexesExceeded"


@pytest.mark.parametrize(
    ("rule", "done", "is_met"),
    [
        ({"succeededIndexes": "0-1"}, "0", False),
        ({"succeededIndexes": "0-1"}, "0,1", True),
        ({"succeededCount": 2}, "1,3", True),
        ({"succeededCount": 2}, "1", False),
        ({"succeededIndexes": "0-2", "succeededCount": 1}, "3", False),
        ({"succeededIndexes": "0-2", "succeededCount": 1}, "2,3", True),
    ],
)
def test_a_job_succeeds_when_a_rule_of_its_success_policy_matches(rule: JSON, done: str, is_met: bool) -> None:
    spec = {**TEMPLATE, "completions": 5, "successPolicy": {"rules": [{"succeededCount": 99}, rule]}}
    counts = tally([PodEnd(i, i, True) for i in done.split(",")], spec)
    end = outcome(spec, counts, 0, 0)
    assert (end is not None) is is_met
    if end is not None:
        assert (end.succeeded, end.reason, end.message) == (True, "SuccessPolicy", "Matched rules at index 1")


@pytest.mark.parametrize(
    ("limit", "restarts", "is_exceeded"), [(0, 0, False), (0, 1, True), (3, 2, False), (3, 3, True)]
)
def test_container_restarts_count_only_with_restart_policy_on_failure(
    limit: int, restarts: int, is_exceeded: bool
) -> None:
    spec = {"template": {"spec": {"restartPolicy": "OnFailure"}}, "backoffLimit": limit}
    assert (outcome(spec, tally([], spec), restarts, 0) is not None) is is_exceeded
    never_restarting = {**TEMPLATE, "backoffLimit": limit}
    assert outcome(never_restarting, tally([], never_restarting), restarts, 0) is None


def test_the_backoff_doubles_up_to_ten_minutes() -> None:
    now = time.time()
    assert backoff_left(0, now) == 0
    assert [round(backoff_left(n, now)) for n in (1, 2, 3, 30)] == [10, 20, 40, 600]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_parsing_formatted_indexes_returns_the_same_indexes(indexes: set[int]) -> None:
    text = format_indexes(map(str, indexes))
    assert parse_indexes(text) == indexes
    assert all(int(a) + 1 < int(b) for a, b in (p.split("-") for p in text.split(",") if "-" in p))
