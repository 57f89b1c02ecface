"""Tunes Python's cyclic garbage collector for a process that is mostly a local cluster."""

from __future__ import annotations

import gc

_NEW = 50_000  # allocations before a collection of the youngest generation; Python's default is 700


def settle() -> None:
    """Exempts existing objects from garbage collection, and makes collections of new objects rarer.

    A cluster's objects live long and have no cycles. Without this, collections took a fifth of the CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW, 20, 50)


__all__ = ["settle"]
