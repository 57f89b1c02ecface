"""``dra controller``: runs a driver's controller until a signal, a failure, or the loss of its Lease.

Exit codes are those of ``dra run``.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import NoReturn

from ..base.settings import ControllerSettings, load
from ..driver import Driver, Role, load_driver, make
from ..host.memory import fix_thresholds, keep_trimmed
from ..plugin.controller.controller import Controller
from .serving import serve
from .shell.driver_options import given_own, load_options, variables
from .shell.exit_codes import Exit
from .shell.options import given
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


def controller_command(args: argparse.Namespace) -> NoReturn:
    controller(args.loaded.get(args.driver, args.driver), args)


def controller(
    target: str | type[Driver],
    args: argparse.Namespace,
    beside: Callable[[Controller, StopSignal], Awaitable[object]] = exit_when_lease_lost,
) -> NoReturn:
    """Runs the controller and exits the process.

    Args:
        target: a driver class, or a driver in the form of the command line, such as a file.
        args: the settings, and the options that the driver defines.
        beside: runs while the controller serves.

    Raises :class:`DraError` for a user's mistake, before anything is started.
    """
    fix_thresholds()
    stop = StopSignal()
    stop.handle()
    driver = load_driver(target) if isinstance(target, str) else target
    settings, options = load_options(
        lambda: load(given(args, ControllerSettings), None, ControllerSettings), driver, given_own(args, driver)
    )
    if not settings.driver_name:
        settings = dataclasses.replace(settings, driver_name=driver.name)
    serve(
        lambda: Controller(make(driver, Role.CONTROLLER, options), settings),
        settings,
        stop,
        beside,
        variables([driver]),
    )
