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
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from . import described

log = logging.getLogger(__name__)
SUBSYSTEMS = ("pci", "vfio", "usb", "block", "net", "drm")
_KOBJECT_UEVENT = 15  # NETLINK_KOBJECT_UEVENT, linux/netlink.h
_KERNEL_GROUP = 1
_LONGEST = 8192  # bytes; the kernel's own limit is 2,048 and a head
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
def _monitor(sysfs: Path, subsystems: tuple[str, ...], woken: asyncio.Event) -> Iterator[None]:
    if described.is_described(sysfs) or sys.platform != "linux":
        yield
        return
    wanted = {f"SUBSYSTEM={subsystem}".encode() for subsystem in subsystems}
    try:
        listener = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _KOBJECT_UEVENT)
    except OSError as e:
        log.warning("no kernel events (%s): devices are looked at by interval only", e)
        yield
        return

    def readable() -> None:
        try:
            while True:
                event, (sender, _) = listener.recvfrom(_LONGEST)
                if sender == 0 and wanted.intersection(event.split(b"\0")):  # 0 is the kernel
                    woken.set()
        except BlockingIOError:
            pass
        except OSError:  # ENOBUFS: events were lost, which is a reason to look as well
            woken.set()

    with listener:
        try:
            listener.setblocking(False)
            listener.bind((0, _KERNEL_GROUP))
        except OSError as e:
            log.warning("no kernel events (%s): devices are looked at by interval only", e)
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(listener.fileno(), readable)
        try:
            yield
        finally:
            loop.remove_reader(listener.fileno())
