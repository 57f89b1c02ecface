"""Tells when hardware comes or goes: kernel uevents through udev's library, where there is one, or a described host's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .fake.marker import is_described
from .fake.uevents import Listener

log = logging.getLogger(__name__)
_LOOK = 0.1  # seconds between looks for a described host's events: a file wakes nobody
_SO_MEMINFO = 55  # asm-generic/socket.h; the ninth number is what was dropped
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
def kernel_events(sysfs: Path, notify: Callable[[], None], subsystems: Sequence[str] = SUBSYSTEMS) -> Iterator[bool]:
    """Calls ``notify`` on the event loop after each event of these subsystems; answers whether events come at all.

    The source is the kernel, because udev's own needs a running udevd. Events are lost when buffers overflow, and pods in a
    user namespace get none, so whoever relies on them looks by interval too.
    """
    # Without any a monitor would not be filtered at all.
    if not subsystems or (sys.platform != "linux" and not is_described(sysfs)):
        yield False
        return
    if is_described(sysfs):
        with _described_events(sysfs, notify, subsystems):
            yield True
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

    lost = _lost(monitor.fileno())

    def readable() -> None:
        nonlocal lost
        heard = False
        with contextlib.suppress(OSError):  # such as ENOBUFS
            while monitor.poll(timeout=0) is not None:  # events of other subsystems wake us too, and are none
                heard = True
        before, lost = lost, _lost(monitor.fileno())
        if heard or lost != before:  # what was lost may have been one of ours
            notify()

    loop = asyncio.get_running_loop()
    loop.add_reader(monitor.fileno(), readable)
    try:
        yield True
    finally:
        loop.remove_reader(monitor.fileno())


@contextlib.contextmanager
def _described_events(sysfs: Path, notify: Callable[[], None], subsystems: Sequence[str]) -> Iterator[None]:
    listener, loop = Listener(sysfs, subsystems), asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        timer = loop.call_later(_LOOK, look)
        if listener.heard():
            notify()

    timer = loop.call_later(_LOOK, look)
    try:
        yield
    finally:
        timer.cancel()


def _lost(fd: int) -> int:
    """How many events did not fit into the socket's buffer. libudev keeps that to itself. Source: socket(7), sock_diag(7)."""
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            return int(struct.unpack("=9I", copy.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))[8])
    except (OSError, struct.error):
        return 0
