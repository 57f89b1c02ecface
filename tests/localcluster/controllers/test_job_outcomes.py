"""What the ends of pods mean for their Job. Upstream: pod_failure_policy_test.go, success_policy_test.go, indexed_job_utils_test.go."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.localcluster.controllers.job_outcomes import (
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

JSON = dict[str, Any]
TEMPLATE: JSON = {"template": {"spec": {"restartPolicy": "Never"}}}


def pod(phase: str = "Failed", code: int = 1, index: str = "", container: str = "main", **meta: Any) -> JSON:
    ends = {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"}}
    annotations = {INDEX: index} if index else {}
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations, **meta},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": container, "state": ends}],
            "conditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
    }


def codes(operator: str, *values: int, name: str | None = None) -> JSON:
    return {"onExitCodes": {"operator": operator, "values": list(values), "containerName": name}}


def policy(*rules: JSON) -> JSON:
    return {**TEMPLATE, "podFailurePolicy": {"rules": list(rules)}}


@pytest.mark.parametrize(
    ("rules", "action", "why"),
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
def test_the_first_rule_that_fits_a_failed_pod_decides(rules: list[JSON], action: str, why: str) -> None:
    found = pod_end(pod(), policy(*rules))
    assert found is not None
    assert (found.action, found.why) == (JobAction(action), why)


def test_a_container_that_ended_well_fits_no_rule() -> None:
    found = pod_end(pod(code=0), policy({"action": "FailJob", **codes("NotIn", 1)}))
    assert found is not None
    assert found.action is JobAction.COUNT


def test_a_deleted_pod_has_failed_unless_the_job_waits_for_its_end() -> None:
    gone = pod("Running", deletionTimestamp="2026-01-01T00:00:00Z")
    assert pod_end(pod("Running"), TEMPLATE) is None
    assert pod_end(gone, {**TEMPLATE, "podReplacementPolicy": "Failed"}) is None
    found = pod_end(gone, {**TEMPLATE, "podReplacementPolicy": "TerminatingOrFailed"})
    assert found is not None
    assert not found.succeeded


def fail(index: str = "", action: JobAction = JobAction.COUNT, at: float = 0, why: str = "") -> PodEnd:
    return PodEnd(f"f{index}", index, False, at, action, why)


def test_ignored_failures_do_not_count_and_one_can_end_the_job() -> None:
    found = tally([fail(), fail(action=JobAction.IGNORE)], TEMPLATE)
    assert found.failed == 1
    assert outcome({**TEMPLATE, "backoffLimit": 1}, found, 0, 0) is None
    found = tally([fail(action=JobAction.FAIL_JOB, why="so")], TEMPLATE)
    end = outcome(TEMPLATE, found, 0, 0)
    assert end is not None
    assert (end.succeeded, end.reason, end.message) == (False, "PodFailurePolicy", "so")


def test_each_index_has_its_own_limit() -> None:
    spec = {**TEMPLATE, "backoffLimit": 2**31 - 1, "backoffLimitPerIndex": 1, "completions": 3, "maxFailedIndexes": 1}
    found = tally([fail("0"), fail("0"), fail("1"), PodEnd("s", "2", True)], spec)
    assert (found.given_up, found.done) == ({"0"}, {"2"})
    assert outcome(spec, found, 0, 0) is None
    found = tally([fail("0"), fail("0"), PodEnd("s", "1", True), PodEnd("t", "2", True)], spec)
    end = outcome(spec, found, 0, 0)
    assert end is not None
    assert (end.reason, end.message) == ("FailedIndexes", "Job has failed indexes")
    found = tally([fail("0", JobAction.FAIL_INDEX), fail("1", JobAction.FAIL_INDEX)], spec)
    end = outcome(spec, found, 0, 0)
    assert end is not None
    assert end.reason == "MaxFailedIndexesExceeded"


@pytest.mark.parametrize(
    ("rule", "done", "met"),
    [
        ({"succeededIndexes": "0-1"}, "0", False),
        ({"succeededIndexes": "0-1"}, "0,1", True),
        ({"succeededCount": 2}, "1,3", True),
        ({"succeededCount": 2}, "1", False),
        ({"succeededIndexes": "0-2", "succeededCount": 1}, "3", False),
        ({"succeededIndexes": "0-2", "succeededCount": 1}, "2,3", True),
    ],
)
def test_a_job_has_succeeded_once_a_rule_of_its_success_policy_is_met(rule: JSON, done: str, met: bool) -> None:
    spec = {**TEMPLATE, "completions": 5, "successPolicy": {"rules": [{"succeededCount": 99}, rule]}}
    found = tally([PodEnd(i, i, True) for i in done.split(",")], spec)
    end = outcome(spec, found, 0, 0)
    assert (end is not None) is met
    if end is not None:
        assert (end.succeeded, end.reason, end.message) == (True, "SuccessPolicy", "Matched rules at index 1")


@pytest.mark.parametrize(("limit", "restarts", "over"), [(0, 0, False), (0, 1, True), (3, 2, False), (3, 3, True)])
def test_restarts_of_containers_count_where_they_are_restarted_in_place(limit: int, restarts: int, over: bool) -> None:
    spec = {"template": {"spec": {"restartPolicy": "OnFailure"}}, "backoffLimit": limit}
    assert (outcome(spec, tally([], spec), restarts, 0) is not None) is over
    never = {**TEMPLATE, "backoffLimit": limit}
    assert outcome(never, tally([], never), restarts, 0) is None


def test_the_pause_doubles_and_is_never_longer_than_ten_minutes() -> None:
    now = time.time()
    assert backoff_left(0, now) == 0
    assert [round(backoff_left(n, now)) for n in (1, 2, 3, 30)] == [10, 20, 40, 600]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_indexes_come_back_as_they_were_written(indexes: set[int]) -> None:
    text = format_indexes(map(str, indexes))
    assert parse_indexes(text) == indexes
    assert all(int(a) + 1 < int(b) for a, b in (p.split("-") for p in text.split(",") if "-" in p))
