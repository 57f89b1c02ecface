"""Fixtures that several rooms of these tests share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def no_leak(tmp_path: Path) -> Iterator[None]:
    """At the end this process has no file below ``tmp_path`` open."""
    yield
    shown = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            shown.append(str(fd.readlink()))
    assert not [name for name in shown if name.startswith(str(tmp_path))], "left open"
