"""Tells when hardware comes or goes: the kernel's own events, read from its socket.

Source: netlink(7), lib/kobject_uevent.c of Linux: a datagram is ``ACTION@DEVPATH`` and then ``KEY=VALUE``, each ended by a zero byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from . import described

log = logging.getLogger(__name__)
_UEVENTS, _KERNEL = 15, 1  # NETLINK_KOBJECT_UEVENT and its group; the other is udevd's
_BUFFER = 1024 * 1024  # bytes; about 3,000 events
_RCVBUFFORCE = 33  # asm-generic/socket.h; beyond the machine's limit, for who has CAP_NET_ADMIN
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
def kernel_events(
    sysfs: Path, notify: Callable[[], None], subsystems: tuple[str, ...] = SUBSYSTEMS, buffer: int = _BUFFER
) -> Iterator[bool]:
    """Calls ``notify`` on the event loop after each event of these subsystems; answers whether events come at all.

    The source is the kernel, because udev's own needs a running udevd. Events are lost when ``buffer`` overflows, which notifies
    too, and pods in a user namespace get none, so whoever relies on them looks by interval as well.
    """
    if described.is_described(sysfs) or sys.platform != "linux":
        yield False
        return
    try:
        listening = _listen(buffer)
    except OSError as e:
        log.warning("no kernel events (%s): devices are looked at by interval only", e)
        yield False
        return

    wanted = {f"SUBSYSTEM={s}".encode() for s in subsystems}
    loop = asyncio.get_running_loop()
    with listening:
        loop.add_reader(listening, lambda: notify() if _heard(listening, wanted) else None)
        try:
            yield True
        finally:
            loop.remove_reader(listening)


def _listen(buffer: int) -> socket.socket:
    out = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, _UEVENTS)
    try:
        try:
            out.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, buffer)
        except OSError:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        out.bind((0, _KERNEL))
    except BaseException:
        out.close()
        raise
    return out


def _heard(listening: socket.socket, wanted: set[bytes]) -> bool:
    """Reads all that is there; whether one of it is ``wanted``, or some was lost, which may have been."""
    out = False
    while True:
        try:
            data, (sender, _) = listening.recvfrom(16 * 1024)
        except BlockingIOError:
            return out
        except OSError as e:
            if e.errno != errno.ENOBUFS:
                return True
            out = True
            continue
        if sender == 0 and not wanted.isdisjoint(data.split(b"\0")):  # 0 is the kernel
            out = True
