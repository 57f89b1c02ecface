"""Names are sorted by the numbers in them."""

from __future__ import annotations

import pytest

from dra_kubeletplugin.base.text import names_by_reason, natural

NODES = [f"nimbus-{i}" for i in range(1, 12)]


@pytest.mark.parametrize(
    "names",
    [
        ["a", "a9", "a10", "b"],
        ["p-03", "p-07", "p-0b", "p-13", "p-8b", "p-c3", "p-cb", "p-d3"],
        ["", "n-1", "n-1-x"],
        NODES,
    ],
)
def test_numbers_in_names_are_compared_as_numbers(names: list[str]) -> None:
    assert sorted([*reversed(names)], key=natural) == names


def test_names_with_the_same_reason_are_grouped_in_natural_order() -> None:
    reasons = {"card-10": "gate", "other": "name", "card-9": "gate", "card-1": "gate"}
    assert list(names_by_reason(reasons).items()) == [("gate", ["card-1", "card-9", "card-10"]), ("name", ["other"])]
