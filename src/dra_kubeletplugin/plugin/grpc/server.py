"""A gRPC server on a Unix socket: binds without harming another server, and restores its socket file when it is removed.

With gRPC alone, a second server on a live path silently takes the path over, and the shutdown of the first server then deletes the
second server's file. Therefore, a server binds its socket to a hidden name and then renames the file. It never removes the file of
another server.
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

from ...base.flock import FileLock
from ...errors import SocketError, describe
from .sockets import MAX_PATH, hidden_name, is_live, lock_of

log = logging.getLogger(__name__)
_LOOK = 1.0  # seconds between checks of the socket file
_TRIES = 3
_KEPT = 4  # servers: those whose file was removed still finish their calls
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    # C-core must not close the connection if a future kubelet sends keep-alive pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
]


class UnixServer:
    """gRPC services on one path.

    Args:
        path: path of the socket.
        token: names this instance in hidden names; the folder's path with such a name must fit into the system's limit for socket paths.
        services: functions that add a service to a server. They are called again for a new server after the socket was removed.
        lock_folder: folder of the lock on the path; by default the socket's folder.
        lost: called when the socket was removed, before it is restored.
    """

    def __init__(
        self,
        path: Path,
        token: str,
        services: Sequence[Callable[[grpc.aio.Server], None]],
        lock_folder: Path | None = None,
        lost: Callable[[], object] = lambda: None,
    ) -> None:
        self.path = path
        self.fault = ""
        """Why clients cannot connect now; empty if the socket is in its place."""
        self._token = token
        self._services = tuple(services)
        self._lock = FileLock(lock_of(path, lock_folder or path.parent))
        self._lost = lost
        self._servers: list[grpc.aio.Server] = []  # the last one has the path
        self.inode: tuple[int, int] | None = None
        """Device and inode number of the socket; None while it does not exist."""
        self._bound = 0
        self._closed = False

    async def start(self) -> None:
        """Starts to serve. Raises :class:`SocketError` with the reason if it cannot."""
        try:
            self._lock.acquire_at_once()
        except TimeoutError:
            raise self._taken() from None
        except OSError as e:
            raise SocketError(f"{self.path} cannot be served: {_why(self._lock.path.parent, e)}") from None
        try:
            await self._bind()
        except BaseException:
            self._lock.remove()
            raise

    async def keep(self) -> None:
        """Checks that the socket is in its place, and restores it. Never returns.

        While the server runs, no other socket can get the same inode number, because the kernel keeps the server's inode.
        """
        while True:
            await asyncio.sleep(_LOOK)
            if self._closed or self._in_place():
                self.fault = ""
                continue
            before = self.fault
            if not before:
                self._lost()
            removed = self.fault = f"socket {self.path} was removed by another process"
            try:
                await self._bind()
            except Exception as e:  # retried at the next check
                text = e.message if isinstance(e, SocketError) else describe(e)
                self.fault = f"{removed}, and cannot be restored: {text}"
                if self.fault != before:
                    log.warning("cannot restore a socket that another process removed: %s: %s", self.path, text)
                continue
            log.warning("restored a socket that another process removed: %s", self.path)
            self.fault = ""

    async def stop(self, grace: float | None = None) -> None:
        """Accepts no new calls, waits ``grace`` seconds for the calls in flight, and removes the socket, but never another server's."""
        self.unlink()
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        self._servers.clear()
        self._lock.remove()

    def unlink(self) -> None:
        """Removes the socket, so that no client connects any more; running calls continue."""
        self._closed = True
        if self._in_place():
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        self.inode = None

    # --- binding --------------------------------------------------------------------------------

    def _in_place(self) -> bool:
        if self.inode is None:
            return False
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.inode

    async def _bind(self) -> None:
        """Binds. Retries if another driver's start removed the hidden socket as stale, before the socket had a listener."""
        for attempts in reversed(range(_TRIES)):
            try:
                await self._bind_once()
            except SocketError as e:
                if not attempts or not isinstance(e.__cause__, FileNotFoundError) or not self.path.parent.is_dir():
                    raise
            else:
                return

    async def _bind_once(self) -> None:
        self._check()
        hidden = self.path.with_name(hidden_name(self._token, self._bound))
        self._bound += 1
        if len(os.fsencode(hidden)) > MAX_PATH:
            raise SocketError(f"{self.path}: no space for a temporary name beside it within {MAX_PATH} bytes")
        server = grpc.aio.server(options=_OPTIONS)
        for add in self._services:
            add(server)
        # umask applies to the whole process, so it is not changed: the socket gets its mode before its final name.
        try:
            # gRPC decodes percent signs in its targets.
            server.add_insecure_port("unix:" + str(hidden).replace("%", "%25"))
            await server.start()
            hidden.chmod(0o600)
            found = hidden.stat()
            hidden.rename(self.path)
        except BaseException as e:  # also CancelledError, so that a stop during the start leaves no file
            with contextlib.suppress(OSError):  # e.g. EROFS, also if the file does not exist
                hidden.unlink(missing_ok=True)
            await server.stop(None)
            if isinstance(e, RuntimeError):  # gRPC logs the cause and raises without it
                e = _bind_error(hidden) or e
            if isinstance(e, RuntimeError | OSError):
                raise SocketError(f"{self.path} cannot be served: {_why(self.path.parent, e)}") from e
            raise
        self.inode = (found.st_dev, found.st_ino)
        self._servers.append(server)
        if self._closed:  # stopped meanwhile
            self.unlink()
        elif len(self._servers) > _KEPT:
            await self._servers.pop(0).stop(None)

    def _check(self) -> None:
        """Raises :class:`SocketError` if the path is a live socket or no socket. A stale socket may be overwritten."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as e:
            raise SocketError(f"{self.path} cannot be inspected: {e.strerror}") from None
        if not stat.S_ISSOCK(mode):
            raise SocketError(f"{self.path} exists and is not a socket: remove it, or use another --kubelet-root")
        if is_live(self.path):
            raise self._taken()

    def _taken(self) -> SocketError:
        return SocketError(
            f"{self.path} is served by another process: stop that plugin, or, for a rolling update, set POD_UID in each pod"
        )


def _bind_error(path: Path) -> OSError | None:
    """Returns why no socket can be bound at ``path``; None if one can."""
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
    if isinstance(e, PermissionError):
        return f"{describe(e)}: see the mode of {folder}, and what a security policy such as SELinux denies"
    return describe(e)
