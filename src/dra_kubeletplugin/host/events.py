"""Tells when hardware comes or goes, from the kernel's uevents.

Source: lib/kobject_uevent.c of Linux: a datagram of NUL-terminated texts, ``ACTION@DEVPATH`` and then ``KEY=value``, to multicast
group 1. udev's own group 2 needs a running udevd, and its library costs half a MiB and two child processes at start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from . import described

log = logging.getLogger(__name__)
_KOBJECT_UEVENT = 15  # NETLINK_KOBJECT_UEVENT, linux/netlink.h
_KERNEL_GROUP = 1
_LONGEST = 8192  # bytes; the kernel's own limit is 2,048 and a head
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
    wanted = {f"SUBSYSTEM={subsystem}".encode() for subsystem in subsystems}
    with contextlib.ExitStack() as stack:
        try:
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            listener = stack.enter_context(socket.socket(socket.AF_NETLINK, kind, _KOBJECT_UEVENT))
            listener.bind((0, _KERNEL_GROUP))
        except OSError as e:
            log.warning("no kernel events (%s): devices are looked at by interval only", e)
            yield False
            return

        def readable() -> None:
            if _wanted_among(listener, wanted):
                notify()

        loop = asyncio.get_running_loop()
        loop.add_reader(listener.fileno(), readable)
        stack.callback(loop.remove_reader, listener.fileno())
        yield True


def _wanted_among(listener: socket.socket, wanted: set[bytes]) -> bool:
    """Reads all events that wait; says whether one of them is wanted."""
    found = False
    while True:
        try:
            event, (sender, _) = listener.recvfrom(_LONGEST)
        except BlockingIOError:
            return found
        except OSError:  # ENOBUFS: events were lost, which is a reason to look as well
            found = True
            continue
        if sender == 0 and wanted.intersection(event.split(b"\0")):  # 0 is the kernel
            found = True
