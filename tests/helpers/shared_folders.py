"""Creates an expensive folder once in a run of pytest, for all workers of pytest-xdist."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns the folder ``name`` of this run. The first worker fills it with ``make``; the other workers wait for it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the workers of a run have their folders side by side
    folder, unfinished = base / name, base / f"{name}.unfinished"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(unfinished, ignore_errors=True)  # of a worker that failed
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder
