"""A gRPC server on a Unix socket that stays reachable: bound without harm to others, restored when somebody removes its file.

gRPC's own handling is dangerous twice over: a second server silently takes a live path, and the first one's shutdown then
deletes the second one's file. So a server listens under a hidden name and gets its real one by rename; nobody's file but
our own is ever removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc.aio

from ...base import forks
from ...errors import SocketError, describe
from .path_lock import PathLock, lock_of
from .sockets import MAX_PATH, hidden_name, is_live

log = logging.getLogger(__name__)
_LOOK = 1.0  # seconds between looks whether the file is still there
_TRIES = 3
_KEPT = 16  # servers whose file was removed; calls that came before go on in them
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    # The kubelet sends no keep-alives today; should it, C-core must not hang up on it.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
]


def _nobody() -> None:
    """Nobody has to be told."""


class UnixServer:
    """Services on one path.

    Args:
        path: of the socket.
        token: names this instance in hidden names, at most 18 bytes with the folder below the system's limit.
        services: each adds one to a server; they are added again to the one that serves after the socket was removed.
        lock_folder: where the lock on the path is; the socket's own folder when left out.
        lost: called when somebody removed the socket, before it is restored.
    """

    def __init__(
        self,
        path: Path,
        token: str,
        services: Sequence[Callable[[grpc.aio.Server], None]],
        lock_folder: Path | None = None,
        lost: Callable[[], None] = _nobody,
    ) -> None:
        self.path = path
        self.fault = ""
        """Why nobody can connect now; empty where the socket is in its place."""
        self._token = token
        self._services = tuple(services)
        self._lock = PathLock(lock_of(path, lock_folder or path.parent), token)
        self._lost = lost
        self._servers: list[grpc.aio.Server] = []  # the last one has the path
        self._inode: tuple[int, int] | None = None
        self._bound = 0
        self._hidden: set[str] = set()  # the addresses of our sockets, whatever their names in the file system are now
        self._closed = False

    @property
    def inode(self) -> tuple[int, int] | None:
        """Device and inode number of the socket; None while there is none of ours."""
        return self._inode

    async def start(self) -> None:
        """Serves. Raises :class:`SocketError` with the reason where it cannot."""
        try:
            locked = self._lock.acquire()
        except OSError as e:
            raise SocketError(f"{self.path} cannot be served: {_why(self._lock.path.parent, e)}") from None
        if not locked:
            raise self._taken()
        try:
            await self._bind()
        except BaseException:
            self._lock.release()
            raise

    async def keep(self) -> None:
        """Looks whether the socket is in its place, and puts it back. Never returns.

        While it serves the socket cannot come back as another with the same inode: the kernel keeps ours.
        """
        while True:
            await asyncio.sleep(_LOOK)
            if self._closed or self._in_place():
                self.fault = ""
                continue
            before = self.fault
            if not before:
                self._lost()
            removed = self.fault = f"{self.path} was removed by somebody"
            try:
                await self._bind()
            except Exception as e:  # tried again at the next look
                text = e.message if isinstance(e, SocketError) else describe(e)
                self.fault = f"{removed}, and cannot be restored: {text}"
                if self.fault != before:
                    log.warning("%s", self.fault)
                continue
            log.warning("%s: it is there again", removed)
            self.fault = ""

    async def stop(self, grace: float | None = None) -> None:
        """No new calls; waits ``grace`` seconds for those under way; removes our own file, never another's."""
        self.unlink()
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        self._servers.clear()
        for name in self._hidden:
            forks.keep_address(name)
        self._lock.release()

    def unlink(self) -> None:
        """Removes the socket, so that nobody new connects; calls go on."""
        self._closed = True
        if self._in_place():
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        self._inode = None

    # --- binding --------------------------------------------------------------------------------

    def _in_place(self) -> bool:
        if self._inode is None:
            return False
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode

    async def _bind(self) -> None:
        """Again where another driver, which starts too, took the hidden socket for one of the dead before anybody listened there."""
        for left in reversed(range(_TRIES)):
            try:
                await self._bind_once()
            except SocketError as e:
                if not left or not isinstance(e.__cause__, FileNotFoundError) or not self.path.parent.is_dir():
                    raise
            else:
                return

    async def _bind_once(self) -> None:
        self._check()
        hidden = self.path.with_name(hidden_name(self._token, self._bound))
        self._bound += 1
        if len(os.fsencode(hidden)) > MAX_PATH:
            raise SocketError(f"{self.path}: no room for a temporary name beside it within {MAX_PATH} bytes")
        server = grpc.aio.server(options=_OPTIONS)
        for add in self._services:
            add(server)
        self._hidden.add(str(hidden))
        forks.close_address(str(hidden))
        # umask holds for the whole process, so it is not touched: the socket gets its mode before its name.
        try:
            # gRPC decodes percent signs in its targets.
            server.add_insecure_port("unix:" + str(hidden).replace("%", "%25"))
            await server.start()
            hidden.chmod(0o600)
            found = hidden.stat()
            hidden.rename(self.path)
        except BaseException as e:  # CancelledError too: a stop during the start leaves nothing
            with contextlib.suppress(OSError):  # such as EROFS, also where there is no such file
                hidden.unlink(missing_ok=True)
            await server.stop(None)
            if isinstance(e, RuntimeError):  # of gRPC, which logs the cause and raises without it
                e = _bind_error(hidden) or e
            if isinstance(e, RuntimeError | OSError):
                raise SocketError(f"{self.path} cannot be served: {_why(self.path.parent, e)}") from e
            raise
        self._inode = (found.st_dev, found.st_ino)
        self._servers.append(server)
        if self._closed:  # stopped meanwhile
            self.unlink()
        elif len(self._servers) > _KEPT:
            await self._servers.pop(0).stop(None)

    def _check(self) -> None:
        """Stale sockets are overwritten, live ones are not ours to take, other files are never touched."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as e:
            raise SocketError(f"{self.path} cannot be looked at: {e.strerror}") from None
        if not stat.S_ISSOCK(mode):
            raise SocketError(f"{self.path} exists and is no socket: remove it, or use another --kubelet-root")
        if is_live(self.path):
            raise self._taken()

    def _taken(self) -> SocketError:
        return SocketError(
            f"{self.path} is served by another process: stop that plugin, or give each its POD_UID for a rolling update"
        )


def _bind_error(path: Path) -> OSError | None:
    """Why no socket can be bound at ``path``; None where one can."""
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
        path.unlink()
    except OSError as e:
        return e
    return None


def _why(folder: Path, e: Exception) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written by uid {os.getuid()}: see its mode and its mount"
    if isinstance(e, PermissionError):
        return f"{describe(e)}: the mode of {folder} permits it, so see what a security policy such as SELinux denies"
    return describe(e)
