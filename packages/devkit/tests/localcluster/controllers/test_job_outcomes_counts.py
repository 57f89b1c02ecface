"""The counts in a Job's status stay the same after the deletion of its pods."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.localcluster.controllers.job_outcomes import INDEX, ends_of_deleted_pods, format_indexes, pod_end, tally

ENDS = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=12
)  # index, success, pod still exists


def pod(number: int, index: int, *, succeeded: bool) -> dict[str, Any]:
    meta = {"name": f"p{number}", "namespace": "default", "uid": f"p{number}", "annotations": {INDEX: str(index)}}
    return {"metadata": meta, "status": {"phase": "Succeeded" if succeeded else "Failed"}}


@given(ENDS)
def test_a_restarted_controller_has_the_same_counts(
    pod_ends: list[tuple[int, bool, bool]],
) -> None:
    spec: dict[str, Any] = {"completions": 6}
    done: set[int] = set()
    pods = []
    for number, (index, succeeded, exists) in enumerate(pod_ends):
        if index in done:
            continue  # a finished index gets no further pod
        done |= {index} if succeeded else set()
        pods.append((pod(number, index, succeeded=succeeded), exists))
    before = tally([e for p, _ in pods if (e := pod_end(p, spec))], spec)
    status = {"succeeded": len(before.done), "failed": before.failed}
    status |= {"completedIndexes": format_indexes(before.done)} if before.done else {}  # type: ignore[dict-item]
    remaining = [e for p, exists in pods if exists and (e := pod_end(p, spec))]
    after = tally([*remaining, *ends_of_deleted_pods(status, remaining)], spec)
    assert (after.done, after.failed) == (before.done, before.failed)


def test_a_force_deleted_pod_has_failed_and_a_running_pod_has_not() -> None:
    running = {"metadata": {"name": "p", "namespace": "d", "uid": "p"}, "status": {"phase": "Running"}}
    assert pod_end(running, {}) is None
    result = pod_end(running, {}, gone=True)
    assert result is not None
    assert not result.succeeded
