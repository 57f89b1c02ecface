"""The rows of `dra top` and of the pages are grouped, sorted and filtered."""

from __future__ import annotations

import pytest

from dra_tools.usage.arranging import Grouping, Order, arranged, matching
from packages.tools.tests.usage.test_usage import rows_of


def test_groups_and_orders_use_the_natural_order_of_names() -> None:
    rows = rows_of(12).devices
    (group,) = arranged(rows)
    assert [r.name for r in group.devices] == [f"gpu-{i}" for i in range(12)]
    assert (group.held, group.bad) == (1, 1)
    assert [g.title for g in arranged(rows, Grouping.NUMA)] == ["n1  NUMA 0", "n1  NUMA 1"]
    firsts = {o: arranged(rows, Grouping.NODE, o)[0].devices[0].name for o in Order}
    assert firsts == {"name": "gpu-0", "use": "gpu-2", "health": "gpu-3", "holder": "gpu-2"}
    assert arranged(rows, backwards=True)[0].devices[0].name == "gpu-11"


@pytest.mark.parametrize(("words", "names"), [
    ("", 12), ("GPU-1", 3), ("numa=1", 6), ("numa=1 gpu-1", 2), ("!numa=1", 6), ("model=h100 held", 1), ("ml/p", 1), ("absent", 0),
    ("tainted", 1), ("!", 12),
])  # fmt: skip
def test_a_filter_matches_rows_with_all_its_words(words: str, names: int) -> None:
    assert len(matching(rows_of(12).devices, words)) == names
