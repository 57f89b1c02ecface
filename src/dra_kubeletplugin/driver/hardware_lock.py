"""Locks for pieces of hardware. A lock excludes all other threads and tasks, also in the other plugin instance of a rolling update.

A lock is an flock(2) on a file, so the kernel releases it when its process dies. The holder removes the file before it releases
the lock. So the folder contains only the files of locks in use, and the files of killed processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..base.files import read_text_file
from ..base.flock import FileLock
from ..base.telemetry.logs import log_fields
from ..errors import DriverError, HardwareLockedError, clip, describe, shown

LOCKS = "hardware-locks"  # name of the folder in the driver's folder
_MAX_NAME = 200  # bytes of a file name, without its suffix
_LIMIT = 1e9  # seconds; a longer wait is a mistake


@dataclass(eq=False)
class _Hold:
    """A lock from its acquisition to its release."""

    file: FileLock
    owner: object  # the task or thread that acquired it
    of_step: bool
    is_held: bool = True


# The locks of the current context, including locks of a caller in another task or thread. Released locks are ignored.
_taken: ContextVar[tuple[_Hold, ...]] = ContextVar("taken", default=())


class HardwareLock:
    """The lock of one piece of hardware. Use it with ``with`` in a plain method, and with ``async with`` in an ``async def`` method.

    A driver may keep the object and use it again, also in several threads and tasks at once.

    Args:
        folder: the folder of the lock files; it is created if it is missing.
        key: the name of the hardware.
        timeout: seconds to wait for the lock.
        of_step: whether the framework takes the lock for a shared step.
    """

    def __init__(self, folder: Path, key: str, timeout: float, *, of_step: bool = False) -> None:
        self.key = check_key(key)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < _LIMIT:
            raise DriverError(f"hardware_lock({key!r}): the timeout is {shown(timeout)}, it must be in seconds")
        self.timeout = timeout
        self._path = folder / f"{_file_name(key)}.lock"
        self._of_step = of_step
        self._hold: _Hold | None = None

    def __enter__(self) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise DriverError(
                f"hardware_lock({self.key!r}): write `async with` here, because `with` blocks the event loop"
            )
        with self._taking() as file:
            file.acquire(self.timeout)

    def __exit__(self, *exc: object) -> None:
        self.release()

    async def __aenter__(self) -> None:
        with self._taking() as file:
            await file.acquire_async(self.timeout)

    async def __aexit__(self, *exc: object) -> None:
        self.release()

    def release(self) -> None:
        """Releases the lock. May be called in any thread, and again."""
        hold, self._hold = self._hold, None
        if hold:
            hold.is_held = False
            with contextlib.suppress(OSError):  # the lock is released even if its file cannot be removed
                hold.file.remove()

    def _check_taken(self) -> None:
        for other in _taken.get():
            # A shared step runs in another task or thread while its call waits, so waiting for the call's lock would never end. Another
            # task of the call may wait: the call can release the lock meanwhile.
            waits = self._of_step or other.of_step or other.owner == _current()
            if waits and other.is_held and other.file.path == self._path:
                raise DriverError(
                    f"hardware_lock({self.key!r}): this call already holds the lock; the framework takes it for a shared step, around "
                    f"the methods setup_<step>({self.key!r}, ...) and teardown_<step>({self.key!r}, ...)"
                )

    @contextlib.contextmanager
    def _taking(self) -> Iterator[FileLock]:
        """Notes that the lock is held if the block takes it. Converts errors of the block."""
        self._check_taken()
        file = FileLock(self._path, makes_folder=True)
        try:
            yield file
        except TimeoutError:
            raise HardwareLockedError(
                f"hardware {shown(self.key)} is locked by {self._holder()} for more than {self.timeout:g} s"
            ) from None
        except OSError as e:
            raise HardwareLockedError(
                f"the lock of hardware {shown(self.key)} cannot be taken: {describe(e)}"
            ) from None
        self._hold = _Hold(file, _current(), self._of_step)
        _taken.set((*(hold for hold in _taken.get() if hold.is_held), self._hold))
        with contextlib.suppress(OSError):  # a full disk: only the message of a waiting process is less exact
            file.write(_own_text().encode(errors="replace"))

    def _holder(self) -> str:
        holder = ""
        with contextlib.suppress(OSError):
            holder = clip(read_text_file(self._path, errors="replace").strip(), 300)
        return holder or "another process"


def check_key(key: object) -> str:
    """Returns ``key`` if it can be the name of a piece of hardware. Raises :class:`DriverError`."""
    if not isinstance(key, str) or not key:
        raise DriverError(f"{shown(key)} is not the name of a piece of hardware: use text such as a PCI address")
    try:
        if len(_file_name(key)) > _MAX_NAME:
            raise DriverError(
                f"{shown(key)} is too long for the name of a piece of hardware: use at most {_MAX_NAME} characters"
            )
    except UnicodeEncodeError:
        raise DriverError(f"{shown(key)} is not the name of a piece of hardware: it is not valid Unicode") from None
    return key


def _file_name(key: str) -> str:
    return quote(key, safe=":")


def _current() -> object:
    """Returns the current task, or the thread outside an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()


def _own_text() -> str:
    claim = log_fields().get("claim")
    return f"process {os.getpid()}" + (f" for claim {claim}" if claim else "")


__all__ = ["LOCKS", "HardwareLock", "check_key"]
