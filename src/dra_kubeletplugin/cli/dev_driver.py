"""A driver as ``dra dev`` starts it: ``dra run``, ending with its parent, with a health that verbs can decide.

``python -m dra_kubeletplugin.cli.dev_driver DRIVER [OPTIONS of dra run]``
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ..driver import Driver, load_driver
from ..driver.calls import Calls
from ..driver.contract import Health
from ..errors import DraError
from ..resources.types import Taint
from . import report
from .options import Parser, add_settings, given

_PR_SET_PDEATHSIG = 1  # prctl(2)
HEALTH = "DRA_DEV_HEALTH"
"""A file with what verbs say of devices' health: JSON, by name of the device."""


class _Told(msgspec.Struct, frozen=True):
    """What `dra dev health` says of a device."""

    healthy: bool | None
    message: str = ""
    effect: str = ""


def steered(driver: type[Driver], file: Path) -> type[Driver]:
    """The driver with what ``file`` says of devices in place of what it reports itself."""

    class Steered(driver):  # type: ignore[valid-type,misc]
        _own = Calls()

        async def health(self) -> Mapping[str, Health]:
            reported = dict(await self._own(super().health))
            for device, told in _told(file).items():
                taint = self.unhealthy_taint
                if told.effect and told.healthy is False:
                    taint = Taint(key=taint.key if taint else "dra-kubeletplugin.dev/unhealthy", effect=told.effect)
                    reported[device] = Health(told.healthy, told.message, taint)
                else:
                    reported[device] = Health(told.healthy, told.message)
            return reported

    Steered.__name__ = Steered.__qualname__ = driver.__name__
    Steered.__module__ = driver.__module__
    return Steered


def _told(file: Path) -> dict[str, _Told]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, _Told])
    except FileNotFoundError:
        return {}


def main(argv: Sequence[str] | None = None) -> int:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before we asked
        return 1
    parser = Parser(prog="dra dev")
    parser.add_argument("driver")
    add_settings(parser)
    args = parser.parse_args(argv)
    from .run import run

    try:
        driver = load_driver(args.driver)
        file = os.environ.get(HEALTH, "")
        run(steered(driver, Path(file)) if file and driver.health is not Driver.health else driver, given(args))
    except DraError as e:
        return report(e)


if __name__ == "__main__":
    sys.exit(main())
