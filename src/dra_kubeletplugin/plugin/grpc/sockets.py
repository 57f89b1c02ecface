"""Unix sockets: names that fit into the path limit, detection of live sockets, removal of stale ones."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...errors import SocketError

MAX_PATH = 107  # bytes of sun_path less the NUL; unix(7)


class SocketPaths(msgspec.Struct, frozen=True):
    registration: Path
    dra: Path


def socket_paths(registry_dir: Path, plugin_dir: Path, driver: str, pod_uid: str = "") -> SocketPaths:
    """Returns socket paths with the names that Go drivers use.

    With a pod's UID, each instance has its own paths. Names are hashed if a path would be too long.

    Raises:
        SocketError: no name fits.
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
        f"no socket name fits into {folder}: a Unix socket's path has at most {MAX_PATH} bytes, and {names[-1]!r} makes it {over} "
        "bytes too long: use a shorter --kubelet-root (KUBELET_ROOT) or driver name"
    )


def lock_of(socket: Path, folder: Path) -> Path:
    """Returns the lock file in ``folder`` for a socket's path. Of several processes that want to serve there, one gets the lock."""
    return folder / f"{socket.name}.lock"


def is_live(path: Path) -> bool:
    """Whether a process accepts connections on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        try:
            s.connect(os.fsencode(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a full backlog, or no permission: the socket is in use
        return True


def hidden_name(token: str, number: int) -> str:
    """Returns the name under which an instance binds a socket before it renames it; the kubelet ignores such names."""
    return f".{token}{chr(ord('a') + number % 26)}"


_HIDDEN = re.compile(r"\.(\d+-[0-9a-f]{8})[a-z]")


def remove_hidden(folder: Path, alive: Callable[[str], bool]) -> list[Path]:
    """Removes the hidden sockets of instances that are not ``alive``, and returns them. ``alive`` gets the instance's token.

    A socket with a listener stays, because another driver's instance in the same folder may be about to rename it.
    """
    out = []
    for path in folder.iterdir() if folder.is_dir() else []:
        match = _HIDDEN.fullmatch(path.name)
        if match and not alive(match[1]) and path.is_socket() and not is_live(path):
            path.unlink(missing_ok=True)
            out.append(path)
    return out


def remove_stale(path: Path, dev: int | None = None, ino: int | None = None) -> bool:
    """Removes the socket that a dead instance left at ``path``. Returns whether it did.

    It only removes a socket without a listener. If ``dev`` and ``ino`` are known, it only removes that inode, because the path may
    belong to another instance now.
    """
    found = _socket_at(path)
    if found is None or (dev is not None and found != (dev, ino)) or is_live(path) or _socket_at(path) != found:
        return False
    path.unlink(missing_ok=True)
    return True


def _socket_at(path: Path) -> tuple[int, int] | None:
    try:
        info = path.lstat()
    except OSError:
        return None
    return (info.st_dev, info.st_ino) if stat.S_ISSOCK(info.st_mode) else None
