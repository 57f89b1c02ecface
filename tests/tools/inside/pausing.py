"""Pauses at random before steps that other processes can observe, for example before a rename. See tests/tools/pauses.py.

Without pauses, the state between two such steps lasts microseconds, so that tests rarely read it or kill the process in it.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

# Audit events of Python, each with the probability of a pause.
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
    """Installs the pauses until this process ends. A pause happens only while ``when`` returns true."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        probability = _STEPS.get(event)
        if probability is None or not when() or chance.random() > probability:
            return
        if event == "open" and str(arguments[0]).endswith(_CODE):
            return
        time.sleep(chance.uniform(0.05, 0.6))

    sys.addaudithook(hook)


__all__ = ["pause_at_steps"]
