"""Kills the start of the control plane before each of its lines, several times each; test_controlplane.py runs it.

``python -m tests.testing.killed_control_plane ASSETS FOLDER`` prints after each kill how many servers it had started by then. The last
kills are those of a start that waits for both to be ready.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from dra_kubeletplugin.testing import child_watcher, controlplane
from dra_kubeletplugin.testing.controlplane import ControlPlane

_EACH = 3  # what it started is at another point each time
_FILES = {controlplane.__file__, child_watcher.__file__}


def kill_before(line: int, plane: ControlPlane, told: int) -> None:
    """``told`` gets how many servers there were, and whether they were waited for."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in _FILES:
            return None
        if event == "line":
            if left == 0 or frame.f_code.co_name == "_wait":
                os.write(told, bytes([len(plane._running), frame.f_code.co_name == "_wait"]))
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return trace

    sys.settrace(trace)
    plane.__enter__()


def main(assets: Path, folder: Path) -> None:
    kills, waited = 0, 0
    ControlPlane._create_credentials = lambda _: None  # type: ignore[method-assign] - it takes a second, and nobody reads them
    folder.mkdir()
    while waited < _EACH:
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            try:
                kill_before(kills // _EACH, ControlPlane(assets, folder), theirs)
            finally:
                os._exit(70)
        os.close(theirs)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        started, waits = os.read(ours, 2)
        waited += waits
        os.close(ours)
        print(started, flush=True)
        kills += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
