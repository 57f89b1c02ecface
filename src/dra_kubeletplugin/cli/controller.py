"""``dra controller``: runs a driver's controller until a signal, a failure, or the loss of its Lease.

Exit codes are those of ``dra run``.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from ..base.settings import ControllerSettings
from ..driver import Driver, Role
from ..host.memory import fix_thresholds, keep_trimmed
from ..plugin.controller.controller import Controller
from .serving import run_driver
from .shell.exit_codes import Exit
from .shell.signals import StopSignal


async def exit_when_lease_lost(process: Controller, stop: StopSignal) -> None:
    """When the Lease is lost, ends the process, including threads in a vendor's library, before another replica can lead.

    Until the loss, returns the memory of large claims to the kernel.
    """
    trim = asyncio.create_task(keep_trimmed(), name="trim memory")
    try:
        await process.elector.lost.wait()
    finally:
        trim.cancel()
        if process.elector.lost.is_set():
            stop.exit_after(process.times.slack, Exit.NEGATIVE)


def controller(
    args: argparse.Namespace,
    driver: type[Driver] | None = None,
    beside: Callable[[Controller, StopSignal], Awaitable[object]] = exit_when_lease_lost,
) -> NoReturn:
    """Runs the controller and exits the process. See :func:`.run_driver`."""
    fix_thresholds()
    run_driver(driver, args, ControllerSettings, Role.CONTROLLER, Controller, beside)
