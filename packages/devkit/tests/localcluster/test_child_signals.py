"""Signals to child processes of asyncio."""

from __future__ import annotations

import asyncio
import signal

from dra_devkit.localcluster.child_signals import signal_child


async def test_a_signal_to_a_child_that_ends_does_not_change_its_exit_code() -> None:
    # On Python 3.11, Process.send_signal fails this test in most runs: asyncio then reports 255.
    for _ in range(20):
        child = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
        while child.returncode is None:
            signal_child(child, signal.SIGWINCH)
            await asyncio.sleep(0)
        assert child.returncode == 7


async def test_a_signal_to_an_ended_child_has_no_effect() -> None:
    child = await asyncio.create_subprocess_exec("true")
    await child.wait()
    signal_child(child, signal.SIGKILL)
    assert child.returncode == 0
