"""Garbage collection during and after the read of a cluster."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dra_devkit.commands.gc_tuning import without_collections


@pytest.fixture(autouse=True)
def gc_settings() -> Iterator[None]:
    """Begins with Python's own settings, because an earlier test of this process may have run a command that changes them."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_collection_is_off_during_a_read_and_rare_afterwards() -> None:
    before = gc.get_threshold()[0]
    with without_collections():
        assert not gc.isenabled()
        cluster = [{"number": [i]} for i in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(cluster)
    assert gc.get_threshold()[0] > before


def test_collection_is_on_after_an_error() -> None:
    with pytest.raises(OSError, match="unavailable"), without_collections():
        raise OSError("unavailable")
    assert gc.isenabled()
