"""Pauses at random before a Python process does what others see: starts a process, names a file, connects. See tests/tools/pauses.py.

Between two such steps is where another may look, or kill: a state that only lasts microseconds lasts long enough to be met.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

# Of Python's table of audit events: the part of steps at which to pause.
_STEPS = {
    "fcntl.flock": 0.05,
    "open": 0.005,
    "os.chmod": 0.05,
    "os.kill": 0.1,
    "os.link": 0.05,
    "os.mkdir": 0.05,
    "os.remove": 0.05,
    "os.rename": 0.05,
    "os.rmdir": 0.05,
    "os.symlink": 0.05,
    "socket.bind": 0.05,
    "socket.connect": 0.02,
    "subprocess.Popen": 0.2,
}
_CODE = (".py", ".pyc", ".so", ".pth")


def pause_at_steps(chance: random.Random, when: Callable[[], bool] = lambda: True) -> None:
    """For the rest of this process; ``when`` says whether now."""

    def hook(event: str, given: tuple[Any, ...]) -> None:
        part = _STEPS.get(event)
        if part is None or not when() or chance.random() > part:
            return
        if event == "open" and str(given[0]).endswith(_CODE):
            return
        time.sleep(chance.uniform(0.05, 0.6))

    sys.addaudithook(hook)


__all__ = ["pause_at_steps"]
