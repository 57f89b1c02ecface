"""Tells when hardware comes or goes: kernel uevents through udev's library, where there is one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from . import described

log = logging.getLogger(__name__)
SUBSYSTEMS = ("pci", "vfio", "usb", "block", "net", "drm")
_QUIET = 0.2  # seconds without a further event before a burst counts as over


async def changes(sysfs: Path, interval: float, subsystems: tuple[str, ...] = SUBSYSTEMS) -> AsyncIterator[str]:
    """Yields a reason each time that devices should be looked at again.

    That is after a burst of kernel events, and every ``interval`` seconds: events are lost when buffers overflow, and pods
    in a user namespace get none at all. The source is the kernel, because udev's own needs a running udevd.
    """
    woken = asyncio.Event()
    with _monitor(sysfs, subsystems, woken):
        while True:
            try:
                async with asyncio.timeout(interval):
                    await woken.wait()
            except TimeoutError:
                yield "interval"
                continue
            while woken.is_set():
                woken.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_QUIET):
                        await woken.wait()
            yield "event"


@contextlib.contextmanager
def _monitor(sysfs: Path, subsystems: tuple[str, ...], woken: asyncio.Event) -> Any:
    if described.is_described(sysfs) or sys.platform != "linux":
        yield
        return
    try:
        import pyudev

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in subsystems:
            monitor.filter_by(subsystem)
        monitor.start()
    except Exception as e:  # ImportError without libudev, OSError without netlink
        log.warning("no udev events (%s): devices are looked at by interval only", e)
        yield
        return

    def readable() -> None:
        with contextlib.suppress(OSError):  # ENOBUFS: events were lost, which is a reason to look as well
            while monitor.poll(timeout=0) is not None:
                pass
        woken.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(monitor.fileno(), readable)
    try:
        yield
    finally:
        loop.remove_reader(monitor.fileno())
