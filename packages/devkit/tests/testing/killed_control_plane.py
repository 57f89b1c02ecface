"""Kills the start of the control plane before each of its lines, several times each; test_controlplane.py runs it.

``python -m packages.devkit.tests.testing.killed_control_plane ASSETS FOLDER`` prints, for each kill, how many servers had been started before it.
In the last kills, both servers run and the start waits until they are ready.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from dra_devkit.testing import child_watcher, controlplane
from dra_devkit.testing.controlplane import ControlPlane

_EACH = 3  # kills for each line, because the progress of the servers differs between runs
_FILES = {controlplane.__file__, child_watcher.__file__}


def kill_before(line: int, plane: ControlPlane, report_fd: int) -> None:
    """Starts the control plane and kills this process before a line.

    Writes two bytes to ``report_fd``: the number of servers, and whether the start waited for them.
    """
    lines_left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines_left
        if frame.f_code.co_filename not in _FILES:
            return None
        if event == "line":
            if lines_left == 0 or frame.f_code.co_name == "_wait":
                os.write(report_fd, bytes([len(plane._running), frame.f_code.co_name == "_wait"]))
                os.kill(os.getpid(), signal.SIGKILL)
            lines_left -= 1
        return trace

    sys.settrace(trace)
    plane.__enter__()


def main(assets: Path, folder: Path) -> None:
    kills, waited = 0, 0
    ControlPlane._create_credentials = lambda _: None  # type: ignore[method-assign] - creating credentials takes a second, and no test reads them
    folder.mkdir()
    while waited < _EACH:
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            try:
                kill_before(kills // _EACH, ControlPlane(assets, folder), write_end)
            finally:
                os._exit(70)
        os.close(write_end)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        started, is_waiting = os.read(read_end, 2)
        waited += is_waiting
        os.close(read_end)
        print(started, flush=True)
        kills += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
