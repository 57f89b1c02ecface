"""Unix sockets: names that fit, stale and live ones told apart, removal by inode.

gRPC's own handling is dangerous twice over: a second server silently takes a live path, and the first one's shutdown then
deletes the second one's file. So a server listens under a hidden name and gets its real one by rename; nobody's file but
our own is ever removed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from ..errors import SocketError

MAX_PATH = 107  # bytes of sun_path less the NUL; unix(7)
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    # The kubelet sends no keep-alives today; should it, C-core must not hang up on it.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
]


@dataclass(frozen=True)
class SocketPaths:
    registration: Path
    dra: Path


def socket_paths(registry_dir: Path, plugin_dir: Path, driver: str, pod_uid: str = "") -> SocketPaths:
    """Names as Go drivers use them; with a pod's UID each instance has its own, hashed where a path would be too long.

    Raises :class:`SocketError` where nothing fits.
    """
    if not pod_uid:
        names = [f"{driver}-reg.sock", f"dra-{_hash(driver.encode(), 16)}-reg.sock"]
        dra_names = ["dra.sock", "d"]
    else:
        both = driver.encode() + b"\0" + pod_uid.encode()
        names = [
            f"{driver}-{pod_uid}-reg.sock",
            f"{driver}-{_hash(pod_uid.encode(), 8)}-reg.sock",
            f"dra-{_hash(both, 16)}-reg.sock",
        ]
        dra_names = [f"dra-{pod_uid}.sock", f"dra-{_hash(pod_uid.encode(), 8)}.sock", _hash(pod_uid.encode(), 8)]
    return SocketPaths(_first_fit(registry_dir, names), _first_fit(plugin_dir, dra_names))


def _hash(data: bytes, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()[:size]).decode().rstrip("=")


def _first_fit(folder: Path, names: list[str]) -> Path:
    for name in names:
        if len(os.fsencode(folder / name)) <= MAX_PATH:
            return folder / name
    over = len(os.fsencode(folder / names[-1])) - MAX_PATH
    raise SocketError(
        f"no socket name fits into {folder}: a Unix socket's path holds {MAX_PATH} bytes, and even {names[-1]!r} is {over} "
        "too long: use a shorter --kubelet-root (KUBELET_ROOT) or driver name"
    )


class UnixServer:
    """A gRPC server on one path. ``server`` takes services before :meth:`start`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = grpc.aio.server(options=_OPTIONS)
        self._inode: tuple[int, int] | None = None

    async def start(self) -> None:
        """Serves. Raises :class:`SocketError` with the reason where it cannot."""
        self._check()
        hidden = self.path.with_name(f".{secrets.token_hex(3)}")
        if len(os.fsencode(hidden)) > MAX_PATH:
            raise SocketError(f"{self.path}: no room for a temporary name beside it within {MAX_PATH} bytes")
        # umask holds for the whole process, so it is not touched: the socket gets its mode before its name.
        try:
            self.server.add_insecure_port(f"unix:{_escaped(hidden)}")
        except RuntimeError as e:
            raise SocketError(f"{self.path} cannot be served: {_why(self.path.parent, e)}") from None
        await self.server.start()
        hidden.chmod(0o600)
        found = hidden.stat()
        self._inode = (found.st_dev, found.st_ino)
        hidden.rename(self.path)

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
            raise SocketError(
                f"{self.path} is served by another process: stop that plugin, or give each its POD_UID for a rolling update"
            )

    async def stop(self, grace: float | None = None) -> None:
        """No new calls; waits ``grace`` seconds for those under way; removes our own file, never another's."""
        self.unlink()
        await self.server.stop(grace)

    def unlink(self) -> None:
        if self._inode is None:
            return
        with contextlib.suppress(FileNotFoundError):
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._inode:
                self.path.unlink()
        self._inode = None


def is_live(path: Path) -> bool:
    """Whether somebody accepts connections on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        try:
            s.connect(os.fsencode(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a full backlog, or not permitted: somebody is there
        return True


def _escaped(path: Path) -> str:
    # gRPC decodes percent signs in its targets.
    return str(path).replace("%", "%25")


def _why(folder: Path, e: Exception) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written by uid {os.getuid()}"
    return str(e)
