"""Which lines of the package a test runs, in every process that it starts.

A copy of this file is ``sitecustomize.py`` in the tree that is measured, so that each of its processes begins with it. A line is
written down when it is reached first: a process that is killed has lost nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGE = f"{Path(__file__).parent}/dra_kubeletplugin/"
FOLDER = Path(__file__).parents[1] / ".trace"
_CURRENT = FOLDER / "current"
_seen: set[tuple[str, int]] = set()
_files: list[int] = []  # the last is written to; those before are kept open, for a thread that is about to write


def begin(test: str) -> None:
    """What runs from here on, also in processes that are started, is this test's."""
    part = _CURRENT.with_suffix(".part")
    part.write_text(test)
    part.rename(_CURRENT)
    _open(test)


def _open(test: str) -> None:
    name = FOLDER / f"{os.getpid()}-{len(list(FOLDER.iterdir()))}.hits"
    _files.append(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC))
    os.write(_files[-1], f"{test}\n".encode())
    _seen.clear()
    if len(_files) > 8:
        os.close(_files.pop(0))


def _called(frame: FrameType, event: str, arg: Any) -> Any:
    return _reached if frame.f_code.co_filename.startswith(_PACKAGE) else None


def _reached(frame: FrameType, event: str, arg: Any) -> Any:
    if event == "line":
        at = (frame.f_code.co_filename, frame.f_lineno)
        if at not in _seen:
            _seen.add(at)
            os.write(_files[-1], f"{at[0].removeprefix(_PACKAGE)}:{at[1]}\n".encode())
    return _reached


def hits(folder: Path) -> dict[str, set[str]]:
    """``path:line`` → tests that ran it."""
    out: dict[str, set[str]] = {}
    for file in folder.glob("*.hits"):
        test, *lines = file.read_text().splitlines()
        for line in lines:
            out.setdefault(line, set()).add(test)
    return out


if __name__ == "sitecustomize" and FOLDER.exists():
    _open(_CURRENT.read_text() if _CURRENT.exists() else "")
    threading.settrace(_called)
    sys.settrace(_called)
