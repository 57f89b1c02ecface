"""The cost of a list that contains itself many times is computed without a walk of all copies: 40 nested pairs have 2^40 values."""

from __future__ import annotations

import pytest

from dra_devkit.scheduling import cel
from dra_devkit.scheduling.cel import costs

_DEVICE = cel.Device("d.example.com", {"name": "d"})


def _nested(depth: int, body: str) -> str:
    for i in range(depth, 0, -1):
        body = f"cel.bind(x{i}, [x{i - 1}, x{i - 1}], {body})"
    return f"cel.bind(x0, [1], {body})"


@pytest.mark.parametrize(
    "call", ["indexOf(1) == 0", "lastIndexOf(1) == 0", "isSorted()", "min() == 1", "max() == 1", "sum() == 1"]
)
def test_an_expression_over_shared_lists_ends_at_its_cost_limit(call: str) -> None:
    """A naive computation of the cost walks 2^40 steps without a limit, as in Kubernetes."""
    selector = cel.compile_selector(_nested(40, f"dyn(x40).{call}"))
    with pytest.raises(cel.CelError, match="actual cost limit exceeded"):
        selector.matches(_DEVICE)


def test_a_shared_list_costs_the_same_as_copies() -> None:
    shared = [1, "a" * 25, {"k" * 10: b"b" * 20}]
    copy = [1, "a" * 25, {"k" * 10: b"b" * 20}]
    assert costs._traversal([shared, {"x": shared}]) == costs._traversal([shared, {"x": copy}]) == 12
