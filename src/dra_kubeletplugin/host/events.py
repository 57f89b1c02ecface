"""Watches for hardware changes: the kernel's uevents, or the events of a described host. Source: netlink(7)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .described_events import Listener
from .described_host import is_described

log = logging.getLogger(__name__)
_POLL_INTERVAL = 0.1  # seconds between reads of a described host's events, because a file does not wake the event loop
_UEVENTS, _FROM_KERNEL = 15, 1  # linux/netlink.h: the protocol of uevents, and the group that the kernel sends to
_LARGEST = 8192  # bytes; an event of the kernel has at most 4 KiB
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
    if not subsystems or (sys.platform != "linux" and not is_described(sysfs)):
        yield False
        return
    if is_described(sysfs):
        with _described_events(sysfs, notify, subsystems):
            yield True
        return
    try:
        events = _uevents()
    except OSError as e:
        log.warning("cannot receive udev events, so devices are rescanned at an interval only: %s", e)
        yield False
        return
    dropped = _dropped_events(events)

    def readable() -> None:
        nonlocal dropped
        received = False
        with contextlib.suppress(OSError):  # the socket is empty, or its buffer was too small (ENOBUFS)
            while True:
                message, (sender, _) = events.recvfrom(_LARGEST)
                received |= (
                    sender == 0 and _subsystem(message) in subsystems
                )  # any process can send; the kernel's id is 0
        before, dropped = dropped, _dropped_events(events)
        if received or dropped != before:  # a lost event may have been from a watched subsystem
            notify()

    loop = asyncio.get_running_loop()
    with events:
        loop.add_reader(events, readable)
        try:
            yield True
        finally:
            loop.remove_reader(events)


def _uevents() -> socket.socket:
    """Opens a socket that receives the uevents of all subsystems. Raises ``OSError``."""
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _UEVENTS)
    try:
        events.setblocking(False)
        events.bind((0, _FROM_KERNEL))
    except OSError:
        events.close()
        raise
    return events


def _subsystem(message: bytes) -> str:
    """Returns the subsystem of a uevent: ``ACTION@DEVPATH``, then ``KEY=VALUE`` texts, each with a NUL byte at its end."""
    _, _, rest = message.partition(b"\0SUBSYSTEM=")
    return rest.partition(b"\0")[0].decode(errors="replace")


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


def _dropped_events(events: socket.socket) -> int:
    """Returns how many events did not fit into the socket's buffer. Source: socket(7), sock_diag(7)."""
    try:
        return int(struct.unpack("=9I", events.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))[8])
    except (OSError, struct.error):
        return 0
