"""Tells when hardware comes or goes: kernel uevents through udev's library, where there is one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from . import described

log = logging.getLogger(__name__)
SUBSYSTEMS = (
    "accel",
    "auxiliary",
    "block",
    "drm",
    "infiniband",
    "mdev",
    "misc",
    "net",
    "nvme",
    "pci",
    "usb",
    "vfio",
    "vfio-dev",
)


@contextlib.contextmanager
def kernel_events(sysfs: Path, notify: Callable[[], None], subsystems: tuple[str, ...] = SUBSYSTEMS) -> Iterator[bool]:
    """Calls ``notify`` on the event loop after each event of these subsystems; answers whether events come at all.

    The source is the kernel, because udev's own needs a running udevd. Events are lost when buffers overflow, and pods in a
    user namespace get none, so whoever relies on them looks by interval too.
    """
    if described.is_described(sysfs) or sys.platform != "linux":
        yield False
        return
    try:
        import pyudev

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in subsystems:
            monitor.filter_by(subsystem)
        monitor.start()
    except Exception as e:  # ImportError without libudev, OSError without netlink
        log.warning("no udev events (%s): devices are looked at by interval only", e)
        yield False
        return

    def readable() -> None:
        with contextlib.suppress(OSError):  # ENOBUFS: events were lost, which is a reason to look as well
            while monitor.poll(timeout=0) is not None:
                pass
        notify()

    loop = asyncio.get_running_loop()
    loop.add_reader(monitor.fileno(), readable)
    try:
        yield True
    finally:
        loop.remove_reader(monitor.fileno())
