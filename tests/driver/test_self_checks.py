"""The results of a driver's own checks are validated when they are created."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin import Check
from dra_kubeletplugin.driver.self_checks import parse_checks
from dra_kubeletplugin.errors import DriverError


def test_a_problem_and_its_remedy_are_one_line() -> None:
    check = Check("driver-root", "no libgpu.so\nbelow /run\udc80", "mount /run/gpu")
    assert check.sentence == "check driver-root: no libgpu.so below /run\ufffd: mount /run/gpu"
    assert Check("driver-root", "missing").sentence == "check driver-root: missing"
    assert parse_checks([check]) == (check,)


@pytest.mark.parametrize("name", ["", "Driver root", "a" * 41, "-a", 7, None])
def test_a_name_that_cannot_be_a_metric_label_is_rejected(name: Any) -> None:
    with pytest.raises(DriverError, match="the name must have at most 40"):
        Check(name)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "must return a list of Check"),
        ([Check("a"), "b"], "returned 'b': it must return a list of Check"),
        ([Check("a"), Check("a", "x")], "returned the check a twice"),
        ([Check(f"c{i}") for i in range(51)], "at most 50"),
    ],
)
def test_a_result_that_is_no_list_of_checks_is_rejected(result: Any, text: str) -> None:
    with pytest.raises(DriverError, match=text):
        parse_checks(result)


def test_problem_and_todo_must_be_text() -> None:
    with pytest.raises(DriverError, match="problem and todo must be text"):
        Check("a", OSError("x"))  # type: ignore[arg-type]
