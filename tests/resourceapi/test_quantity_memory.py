"""A quantity of 10 KiB in a user's parameters does not stay in memory after its use."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest

from dra_kubeletplugin import Quantity


@pytest.mark.full
def test_long_quantities_do_not_stay_in_memory() -> None:
    Quantity("0." + "1" * 9_000)
    tracemalloc.start()
    try:
        for i in range(120):  # 1.1 MB of text. The cache of parsed quantities must not keep it.
            assert str(Quantity("0." + "1" * 9_000 + str(i))) == "111111112n"
            with contextlib.suppress(ValueError):
                Quantity("1" * 9_000 + str(i))
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
