"""Watches for hardware changes: uevents of the kernel, if libudev is installed, or the events of a described host."""

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
_POLL_INTERVAL = 0.1  # seconds between reads of a described host's events, because a file does not wake the event loop
_SO_MEMINFO = 55  # asm-generic/socket.h; the ninth number in the result is the count of dropped events
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
    """Calls ``notify`` on the event loop after each event of these subsystems. Yields whether events can be received.

    The source is the kernel, because udev's own events need a running udevd. Events are lost when a buffer overflows,
    and pods in a user namespace receive no events. So the caller must also rescan at an interval.
    """
    # A monitor without any subsystem filter would receive every event.
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
        log.warning("cannot receive udev events, so devices are rescanned at an interval only: %s", e)
        yield False
        return

    dropped = _dropped_events(monitor.fileno())

    def readable() -> None:
        nonlocal dropped
        received = False
        with contextlib.suppress(OSError):  # such as ENOBUFS
            # Events of other subsystems also call this function; `poll` then returns None.
            while monitor.poll(timeout=0) is not None:
                received = True
        before, dropped = dropped, _dropped_events(monitor.fileno())
        if received or dropped != before:  # a lost event may have been from a watched subsystem
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

    def read_events() -> None:
        nonlocal timer
        timer = loop.call_later(_POLL_INTERVAL, read_events)
        if listener.has_new():
            notify()

    timer = loop.call_later(_POLL_INTERVAL, read_events)
    try:
        yield
    finally:
        timer.cancel()


def _dropped_events(fd: int) -> int:
    """Returns how many events did not fit into the socket's buffer; libudev does not report this number.

    Source: socket(7), sock_diag(7).
    """
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            return int(struct.unpack("=9I", copy.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))[8])
    except (OSError, struct.error):
        return 0
