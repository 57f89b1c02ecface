"""Signals: the exception that a signal raises in this process, and signals to child processes."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Interrupted(KeyboardInterrupt):
    """Raised when a signal asks the process to end. Only the exit handling of a command raises and catches it.

    It can interrupt any code, also a driver's, and does not mean that this code failed.
    """


def signal_child(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Sends a signal to a child process of asyncio. Does nothing if it has ended.

    Use this instead of ``process.send_signal``, ``terminate`` and ``kill``. On Python 3.11 these poll the child first. The poll can
    take the exit status of a child that has just ended, and asyncio then reports the exit code 255.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
