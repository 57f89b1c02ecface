"""Signals to child processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


def signal_child(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Sends a signal to a child process of asyncio. Does nothing if it has ended.

    Use this instead of ``process.send_signal``, ``terminate`` and ``kill``. On Python 3.11 these poll the child first. The poll can
    take the exit status of a child that has just ended, and asyncio then reports the exit code 255.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
