"""What a Job's status has counted stays counted, whatever became of its pods."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.localcluster.controllers.job_outcomes import (
    INDEX,
    ends_of_deleted_pods,
    format_indexes,
    pod_end,
    tally,
)

ENDS = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=12
)  # index, success, pod still there


def pod(number: int, index: int, *, succeeded: bool) -> dict[str, Any]:
    meta = {"name": f"p{number}", "namespace": "default", "uid": f"p{number}", "annotations": {INDEX: str(index)}}
    return {"metadata": meta, "status": {"phase": "Succeeded" if succeeded else "Failed"}}


@given(ENDS)
def test_a_controller_that_starts_again_counts_what_the_one_before_did(
    given_ends: list[tuple[int, bool, bool]],
) -> None:
    spec: dict[str, Any] = {"completions": 6}
    done: set[int] = set()
    pods = []
    for number, (index, succeeded, there) in enumerate(given_ends):
        if index in done:
            continue  # an index that is done gets no pod more
        done |= {index} if succeeded else set()
        pods.append((pod(number, index, succeeded=succeeded), there))
    whole = tally([e for p, _ in pods if (e := pod_end(p, spec))], spec)
    status = {"succeeded": len(whole.done), "failed": whole.failed}
    status |= {"completedIndexes": format_indexes(whole.done)} if whole.done else {}  # type: ignore[dict-item]
    left = [e for p, there in pods if there and (e := pod_end(p, spec))]
    again = tally([*left, *ends_of_deleted_pods(status, left)], spec)
    assert (again.done, again.failed) == (whole.done, whole.failed)


def test_a_pod_that_went_by_force_has_failed_and_one_that_runs_has_not() -> None:
    running = {"metadata": {"name": "p", "namespace": "d", "uid": "p"}, "status": {"phase": "Running"}}
    assert pod_end(running, {}) is None
    found = pod_end(running, {}, gone=True)
    assert found is not None
    assert not found.succeeded
