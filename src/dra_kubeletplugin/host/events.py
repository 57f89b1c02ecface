"""Watches for hardware changes: the kernel's uevents, or the events of a described host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .described_events import Listener
from .described_host import is_described
from .sysfs import text

log = logging.getLogger(__name__)
_POLL_INTERVAL = 0.1  # seconds between reads of a described host's events, because a file does not wake the event loop
_UID_MAP = "/proc/self/uid_map"
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

    Events may be lost, so the caller must also rescan at an interval.
    """
    if not subsystems or (sys.platform != "linux" and not is_described(sysfs)):
        yield False
        return
    if is_described(sysfs):
        with _described_events(sysfs, notify, subsystems):
            yield True
        return
    try:
        monitor = _monitor(subsystems)
    except (ImportError, OSError) as e:
        needs = " (events need libudev, and ldconfig to find it)" if isinstance(e, ImportError) else ""
        log.warning("cannot receive udev events, so devices are rescanned at an interval only: %s%s", e, needs)
        yield False
        return

    def readable() -> None:
        received = False
        try:
            while monitor.poll(timeout=0) is not None:
                received = True
        except OSError:  # the socket's buffer was too small for all events (ENOBUFS)
            received = True
            # poll() reads nothing while the socket has this error, which ends when it is read.
            with socket.socket(fileno=os.dup(monitor.fileno())) as same:
                same.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if received:
            notify()

    loop = asyncio.get_running_loop()
    loop.add_reader(monitor.fileno(), readable)
    try:
        yield True
    finally:
        loop.remove_reader(monitor.fileno())


def _monitor(subsystems: Sequence[str]) -> Any:
    """Returns a started monitor. The source is the kernel, because udev's own events need a running udevd.

    Raises ``ImportError`` without libudev, and ``OSError`` if the kernel sends no events to this process.
    """
    if (text(_UID_MAP) or "").split() not in ([], ["0", "0", "4294967295"]):  # user_namespaces(7)
        raise OSError("the kernel sends none to a user namespace (hostUsers: false)")
    import pyudev  # hosts that are described need neither it nor libudev

    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
    for subsystem in subsystems:
        monitor.filter_by(subsystem)
    monitor.start()
    return monitor


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
