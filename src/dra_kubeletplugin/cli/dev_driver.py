"""A driver as ``dra dev`` starts it: ``dra run`` or ``dra controller``, ending with its parent, and with a health that verbs decide.

``python -m dra_kubeletplugin.cli.dev_driver node|controller DRIVER [OPTIONS]``
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

from ..base.settings import ControllerSettings, Settings
from ..devices.discovery import DeviceDiscovery
from ..devices.health_monitor import HealthMonitor
from ..driver import Driver, load_driver
from ..driver.contract import Health
from ..errors import DraError, NotReadyError
from ..plugin.controller.controller import Controller
from ..plugin.node import Plugin
from ..resourceapi.types import Taint
from ..testing.health_override import with_health_overrides
from .controller import controller, cut_when_lost
from .run import run, tidy
from .shell.driver_options import add_own_options
from .shell.exit_handling import report
from .shell.options import add_settings
from .shell.parsing import Parser
from .shell.signals import StopSignal

_PR_SET_PDEATHSIG = 1  # prctl(2)
NODE, CONTROLLER = "node", "controller"
HEALTH = "DRA_DEV_HEALTH"
"""A file with what verbs say of devices' health: JSON, by name of the device."""
READY = "DRA_DEV_READY"
"""A file for what keeps the process from being ready, as :class:`local.dev.drivers.Said` reads it."""
PARENT = "DRA_DEV_PARENT"
"""The process id of the `dra dev` that started this process, which ends with it."""
_LOOK = 0.5  # seconds between two looks at what keeps it
_PATIENCE = 1.5  # seconds in which a driver's methods fail until it is given up


class _HealthOverride(msgspec.Struct, frozen=True):
    """What `dra dev health` says of a device."""

    healthy: bool | None
    message: str = ""
    effect: str = ""


def steered(driver: type[Driver], file: Path) -> type[Driver]:
    """The driver with what ``file`` says of devices in place of what it reports itself."""

    def told(self: Driver) -> dict[str, Health]:
        out = {}
        for device, said in _told(file).items():
            taint = self.unhealthy_taint
            if said.effect and said.healthy is False:
                key = taint.key if taint else "dra-kubeletplugin.dev/unhealthy"
                out[device] = Health(said.healthy, said.message, Taint(key=key, effect=said.effect))
            else:
                out[device] = Health(said.healthy, said.message)
        return out

    return with_health_overrides(driver, told)


def _told(file: Path) -> dict[str, _HealthOverride]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, _HealthOverride])
    except FileNotFoundError:
        return {}


class _SteeredDriver(Protocol):
    """A plugin or a controller."""

    async def ready(self, timeout: float | None = None) -> None: ...

    @property
    def scan(self) -> DeviceDiscovery: ...

    async def not_ready(self) -> list[str]: ...

    async def notes(self) -> list[str]: ...


async def _tell(process: _SteeredDriver, health: HealthMonitor | None = None) -> None:
    """Writes into the file of ``DRA_DEV_READY`` what keeps the process from being ready, until it is, and then what is odd: of its
    first report of health too, unless that takes long."""
    file, clock = Path(os.environ[READY]), asyncio.get_running_loop().time
    well = clock()
    while True:
        began = clock()
        with contextlib.suppress(NotReadyError):
            await process.ready(_LOOK)
        why = await process.not_ready()  # as /readyz says it
        if not why and health:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(health.answered.wait(), _PATIENCE)
        well = well if process.scan.fault else clock()
        hopeless = bool(why) and clock() - well > _PATIENCE  # a slow machine is waited for, a driver that fails is not
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(
            msgspec.json.encode({"waits": why, "hopeless": hopeless, "notes": [] if why else await process.notes()})
        )
        temporary.rename(file)
        if not why:
            return
        await asyncio.sleep(began + _LOOK - clock())


async def _beside_plugin(plugin: Plugin, stop: StopSignal) -> None:
    await _tell(plugin, plugin.health if plugin.driver.reports_health else None)
    await tidy(plugin, stop)


async def _beside_controller(process: Controller, stop: StopSignal) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_tell(process))
        tasks.create_task(cut_when_lost(process, stop))


def main(argv: Sequence[str] | None = None) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(os.environ[PARENT]):  # it ended while we started
        return 1
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _node(words[1:]) if words[0] == NODE else _controller(words[1:])
    except DraError as e:
        return report(e)


def _node(argv: Sequence[str]) -> NoReturn:
    driver, args = _parsed(argv, Settings)
    file = os.environ.get(HEALTH, "")
    run(steered(driver, Path(file)) if file else driver, args, _beside_plugin)


def _controller(argv: Sequence[str]) -> NoReturn:
    driver, args = _parsed(argv, ControllerSettings)
    controller(driver, args, _beside_controller)


def _parsed(argv: Sequence[str], kind: type[Settings]) -> tuple[type[Driver], argparse.Namespace]:
    driver = load_driver(argv[0])
    parser = Parser(prog="dra dev")
    add_settings(parser, kind)
    add_own_options(parser, [driver])
    return driver, parser.parse_args(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
