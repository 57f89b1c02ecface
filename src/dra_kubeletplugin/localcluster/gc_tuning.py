"""How Python's collector of cycles is set in a process that is a local cluster and little else."""

from __future__ import annotations

import gc

_NEW = 50_000  # objects that are made before the youngest are looked through; 700 where nobody says anything


def settle() -> None:
    """What is there stays, and is not looked through any more; what comes is looked through less often.

    A cluster's objects live long and hold no cycles, so that looking for them finds nothing: it was a fifth of all work.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW, 20, 50)


__all__ = ["settle"]
