"""Runs a driver for ``dra dev``, like ``dra run`` or ``dra controller``. The process ends with its parent. Verbs set its devices' health.

``python -m dra_devkit.commands.dev_driver node|controller DRIVER [OPTIONS]``
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from dra_kubeletplugin.base.settings import ControllerSettings, Settings
from dra_kubeletplugin.cli.controller import controller, exit_when_lease_lost
from dra_kubeletplugin.cli.run import run, trim_memory
from dra_kubeletplugin.cli.shell.driver_options import add_own_options
from dra_kubeletplugin.cli.shell.exit_handling import report
from dra_kubeletplugin.cli.shell.options import add_settings
from dra_kubeletplugin.cli.shell.parsing import Parser
from dra_kubeletplugin.cli.shell.signals import StopSignal
from dra_kubeletplugin.devices.discovery import DeviceDiscovery
from dra_kubeletplugin.devices.health_monitor import HealthMonitor
from dra_kubeletplugin.driver import Driver, load_driver
from dra_kubeletplugin.driver.attachment import reports_health
from dra_kubeletplugin.driver.health import Health
from dra_kubeletplugin.errors import DraError, NotReadyError
from dra_kubeletplugin.plugin.controller.controller import Controller
from dra_kubeletplugin.plugin.node import Plugin
from dra_kubeletplugin.resourceapi.types import Taint

from ..testing.health_override import with_health_overrides

_PR_SET_PDEATHSIG = 1  # prctl(2)
NODE, CONTROLLER = "node", "controller"
HEALTH = "DRA_DEV_HEALTH"
"""The environment variable with the path of a file: the health that verbs set, in JSON by device name."""
READY = "DRA_DEV_READY"
"""The environment variable with the path of a file: the causes why the process is not ready. `dra dev` reads the file."""
PARENT = "DRA_DEV_PARENT"
"""The environment variable with the process id of `dra dev`, the parent. This process ends when the parent ends."""
_CHECK_INTERVAL = 0.5  # seconds between two readiness checks
_FAILING_LIMIT = 1.5  # seconds for which a driver's discovery may fail until `dra dev` stops waiting for the driver


class _HealthOverride(msgspec.Struct, frozen=True):
    """The health of a device according to `dra dev set-health`."""

    healthy: bool | None
    message: str = ""
    effect: str = ""


def with_health_from_file(driver: type[Driver], file: Path) -> type[Driver]:
    """Returns a subclass of the driver that reports the health in ``file`` for the devices in it."""

    def overrides(self: Driver) -> dict[str, Health]:
        out = {}
        for device, override in _read_overrides(file).items():
            taint = self.unhealthy_taint
            if override.effect and override.healthy is False:
                key = taint.key if taint else "dra-kubeletplugin.dev/unhealthy"
                out[device] = Health(override.healthy, override.message, [Taint(key=key, effect=override.effect)])
            else:
                out[device] = Health(override.healthy, override.message)
        return out

    return with_health_overrides(driver, overrides)


def _read_overrides(file: Path) -> dict[str, _HealthOverride]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, _HealthOverride])
    except FileNotFoundError:
        return {}


class _DriverProcess(Protocol):
    """A plugin or a controller."""

    async def ready(self, timeout: float | None = None) -> None: ...

    @property
    def discovery(self) -> DeviceDiscovery: ...

    async def not_ready(self) -> list[str]: ...

    async def notes(self) -> list[str]: ...


async def report_readiness(process: _DriverProcess, health: HealthMonitor | None = None) -> NoReturn:
    """Writes into the file of ``DRA_DEV_READY``, after each change, why the process is not ready, or its notes.

    Before it writes the notes, it waits a short time for the first health report, which may add notes.
    """
    file, clock = Path(os.environ[READY]), asyncio.get_running_loop().time
    last_success, written = clock(), b""
    while True:
        began = clock()
        with contextlib.suppress(NotReadyError):
            await process.ready(_CHECK_INTERVAL)
        why = await process.not_ready()  # the lines of /readyz
        if not why and health:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(health.first_call_done.wait(), _FAILING_LIMIT)
        last_success = last_success if process.discovery.fault else clock()
        # A slow driver may take longer; only failures count.
        failed_for_good = bool(why) and clock() - last_success > _FAILING_LIMIT
        notes = [] if why else await process.notes()
        state = msgspec.json.encode({"waits": why, "failed_for_good": failed_for_good, "notes": notes})
        if state != written:
            temporary = file.with_suffix(".tmp")
            temporary.write_bytes(state)
            temporary.rename(file)
            written = state
        await asyncio.sleep(began + _CHECK_INTERVAL - clock())


async def _beside_plugin(plugin: Plugin, stop: StopSignal) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(report_readiness(plugin, plugin.health if reports_health(plugin.driver) else None))
        tasks.create_task(trim_memory(plugin, stop))


async def _beside_controller(process: Controller, stop: StopSignal) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(report_readiness(process))
        tasks.create_task(exit_when_lease_lost(process, stop))


def main(argv: Sequence[str] | None = None) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(os.environ[PARENT]):  # the parent ended while this process started
        return 1
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _node(words[1:]) if words[0] == NODE else _controller(words[1:])
    except DraError as e:
        return report(e)


def _node(argv: Sequence[str]) -> NoReturn:
    driver, args = _parsed(argv, Settings)
    file = os.environ.get(HEALTH, "")
    run(args, with_health_from_file(driver, Path(file)) if file else driver, _beside_plugin)


def _controller(argv: Sequence[str]) -> NoReturn:
    driver, args = _parsed(argv, ControllerSettings)
    controller(args, driver, _beside_controller)


def _parsed(argv: Sequence[str], kind: type[Settings]) -> tuple[type[Driver], argparse.Namespace]:
    driver = load_driver(argv[0])
    parser = Parser(prog="dra dev")
    add_settings(parser, kind)
    add_own_options(parser, [driver])
    return driver, parser.parse_args(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
