"""``dra run``: runs a driver as a node's plugin until a signal or a failure. Exit codes are in :mod:`.serving`."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import NoReturn

from ..base.settings import Settings
from ..driver import Driver, Role
from ..host.memory import keep_trimmed
from ..plugin.node import Plugin
from .serving import run_driver
from .shell.signals import StopSignal


async def trim_memory(plugin: Plugin, stop: StopSignal) -> None:
    """Returns unused memory to the kernel after the start and after peaks of work, so that an idle plugin is small."""
    await plugin.ready()
    await keep_trimmed()


def run(
    args: argparse.Namespace,
    driver: type[Driver] | None = None,
    beside: Callable[[Plugin, StopSignal], Awaitable[object]] = trim_memory,
) -> NoReturn:
    """Runs the plugin and exits the process. See :func:`.run_driver`."""
    run_driver(driver, args, Settings, Role.NODE, Plugin, beside)
