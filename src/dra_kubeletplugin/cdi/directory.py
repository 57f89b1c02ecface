"""The folder that runtimes read: one spec a claim, written whole or not at all, and beside it a note that only we read.

Kind ``k8s.<driver>/claim``, file ``<vendor>-<class>_<claimUID>.json``, device ``<claimUID>-<device>[-<shareID>]``: the
convention of Go drivers. Names are never used again, because runtimes cache. A note is hidden and of another ending, so that
no runtime looks at it; annotations of the spec would need CDI 0.6, which runtimes in use do not have.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import InvalidSpecError
from .spec import validate_device_name, validate_kind, version_to_declare

CLASS = "claim"
_TEMPORARY = ".tmp-"
_SPEC, _NOTE = ".json", ".record"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MOST = 16 << 20  # bytes of one file; a claim's is a few hundred
_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_PROBE = 4096  # bytes


class ClaimSpecs:
    """The CDI files of one driver in one folder. All methods block; none keeps state.

    Args:
        root: the folder.
        driver: the driver's name.
        token: of this process, in the names of files that are being written.
    """

    def __init__(self, root: Path, driver: str, token: str = "") -> None:
        self.root = root
        self.driver = driver
        self.token = token or str(os.getpid())
        self.vendor = f"k8s.{driver}"
        self.kind = f"{self.vendor}/{CLASS}"
        if driver:
            validate_kind(self.kind)
        self._prefix = f"{self.vendor}-{CLASS}_"
        # Texts where every claim passes: a path object costs more than the system calls that it is for.
        self._specs = f"{root}/{self._prefix}"
        self._notes = f"{root}/.{self._prefix}"

    @staticmethod
    def device_name(uid: str, device: str, share_id: str | None = None) -> str:
        return f"{uid}-{device}" + (f"-{share_id}" if share_id else "")

    @staticmethod
    def metadata_name(uid: str, request: str) -> str:
        """Returns the name of the CDI device that mounts a request's metadata file. No device has an underscore in its name."""
        return f"{uid}_{request}"

    def device_id(self, name: str) -> str:
        """The fully qualified id in the response to the kubelet, ``vendor/class=name``."""
        return f"{self.kind}={name}"

    def path(self, uid: str) -> Path:
        return Path(self._spec(uid))

    def note_path(self, uid: str) -> Path:
        return Path(self._note(uid))

    def _spec(self, uid: str) -> str:
        return f"{self._specs}{name_of(uid)}{_SPEC}"

    def _note(self, uid: str) -> str:
        return f"{self._notes}{name_of(uid)}{_NOTE}"

    def build(self, devices: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
        """A spec of ``(device name, container edits)`` pairs, with the least version that fits.

        ``edits`` are those of :class:`ContainerEdits`, which were checked when they were made, and not empty.

        Raises :class:`InvalidSpecError` for a wrong name, or one that comes twice.
        """
        seen: set[str] = set()
        for name, _ in devices:
            validate_device_name(name)
            if name in seen:
                raise InvalidSpecError(f'invalid spec, multiple device "{name}"')
            seen.add(name)
        spec: dict[str, Any] = {"cdiVersion": "", "kind": self.kind}
        spec["devices"] = [{"name": name, "containerEdits": edits} for name, edits in devices]
        spec["cdiVersion"] = version_to_declare(spec)
        return spec

    def write(self, uid: str, spec: Mapping[str, Any]) -> None:
        """Writes a claim's spec, for everybody, whatever the umask.

        It survives the death of this process and not a power failure, after which everything is prepared afresh.

        Raises ``OSError``.
        """
        self._write(self._spec(uid), f"{self._notes}{name_of(uid)}{_SPEC}", encoded(spec), 0o644)

    def write_note(self, uid: str, note: bytes) -> None:
        """Writes a claim's note, for the owner alone.

        A new note is written under its final name, which is twice as fast: half a note is ignored, and no reader relies on it yet.

        Raises ``OSError``.
        """
        path = self._note(uid)
        try:
            write_new(path, note, 0o600)
        except FileExistsError:
            self._write(path, path, note, 0o600)
        except FileNotFoundError:
            self.root.mkdir(exist_ok=True)  # not its parents: what is missing there is a mount
            write_new(path, note, 0o600)

    def probe(self) -> None:
        """Writes and removes a file, as large as that of a claim with many devices.

        Raises ``OSError`` that names the folder.
        """
        temporary = f"{self._notes}{_TEMPORARY}{self.token}"
        with naming(str(self.root)):
            fd = self._open(temporary, _CREATE, 0o600)
            try:
                _write_all(fd, bytes(_PROBE))
            finally:
                os.close(fd)
                os.unlink(temporary)

    def _write(self, path: str, hidden: str, data: bytes, mode: int) -> None:
        # Scanners read .json and .yaml only, so a half-written file is never seen.
        temporary = f"{hidden}{_TEMPORARY}{self.token}"
        try:
            write_file(path, temporary, data, mode)
        except FileNotFoundError:
            self.root.mkdir(exist_ok=True)  # not its parents: what is missing there is a mount
            write_file(path, temporary, data, mode)

    def _open(self, path: str, flags: int, mode: int) -> int:
        try:
            return os.open(path, flags, mode)
        except FileNotFoundError:
            self.root.mkdir(exist_ok=True)  # not its parents: what is missing there is a mount
            return os.open(path, flags, mode)

    def remove(self, uid: str) -> None:
        """Removes the spec of a claim; one that is not there is no fault.

        Raises ``OSError``.
        """
        remove_file(self._spec(uid))

    def remove_note(self, uid: str) -> None:
        """Removes the note of a claim; one that is not there is no fault.

        Raises ``OSError``.
        """
        remove_file(self._note(uid))

    def exists(self, uid: str) -> bool:
        return self.path(uid).exists()

    def holds(self, uid: str, spec: Mapping[str, Any] | None, note: bytes) -> bool:
        """Whether the files of a claim are there and say exactly this."""
        try:
            same = spec is None or content_of(self._spec(uid)) == encoded(spec)
            return same and content_of(self._note(uid)) == note
        except (OSError, ValueError):
            return False

    def note(self, uid: str) -> bytes:
        """The note of a claim.

        Raises ``OSError``, or ``ValueError`` where it is no such file.
        """
        return content_of(self._note(uid))

    def read(self, uid: str) -> dict[str, Any]:
        """The spec of a claim.

        Raises ``OSError``, or ``ValueError`` where it is no such file or no JSON object.
        """
        try:
            spec: dict[str, Any] = msgspec.json.decode(content_of(self._spec(uid)), type=dict)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        return spec

    def uids(self) -> list[str]:
        """Returns the UIDs of the claims that have a CDI file of this driver. Files with other names are ignored.

        Raises ``OSError``.
        """
        specs = (n for n in self._names(self._prefix) if n.endswith(_SPEC))
        notes = (n for n in self._names(f".{self._prefix}") if n.endswith(_NOTE))
        found = {n[len(self._prefix) : -len(_SPEC)] for n in specs}
        found |= {n[1 + len(self._prefix) : -len(_NOTE)] for n in notes}
        return sorted(filter(is_uid, found))

    def clean(self, alive: Callable[[str], bool]) -> None:
        """Removes temporary files of interrupted writes; ``alive`` returns whether the writer with this token still lives.

        A file that cannot be removed stays until the next call. Raises ``OSError`` where the folder cannot be read.
        """
        for name in self._names(f".{self._prefix}"):
            _, temporary, token = name.rpartition(_TEMPORARY)
            if temporary and token != self.token and not alive(token):
                with contextlib.suppress(OSError):
                    (self.root / name).unlink(missing_ok=True)

    def _names(self, prefix: str) -> list[str]:
        try:
            return sorted(p.name for p in self.root.iterdir() if p.name.startswith(prefix))
        except FileNotFoundError:
            return []


def write_new(path: str, data: bytes, mode: int) -> None:
    """Writes a file that does not exist yet under its final name, which is twice as fast as :func:`write_file`.

    A process that dies leaves a part of it. Use it where no reader relies on the file yet.

    Raises ``OSError`` that names ``path``; ``FileExistsError`` if the file exists.
    """
    fd = os.open(path, _NEW, mode)
    try:
        with naming(path):
            try:
                _write_all(fd, data)
                if mode & 0o077:  # the umask may have removed these
                    os.fchmod(fd, mode)
            finally:
                os.close(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def write_file(path: str, temporary: str, data: bytes, mode: int) -> None:
    """Writes a file whole or not at all: under another name in the same folder first, then renamed.

    Raises ``OSError`` that names ``path``.
    """
    with naming(path):
        fd = os.open(temporary, _CREATE, mode)
        try:
            try:
                _write_all(fd, data)
                os.fchmod(fd, mode)
            finally:
                os.close(fd)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def encoded(spec: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(spec)


def content_of(path: str) -> bytes:
    """Reads a file. Never waits for a pipe and never reads a device or an endless file.

    Raises ``OSError``, or ``ValueError`` for a file that the driver cannot have written.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with naming(path), os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > _MOST:
            raise ValueError(f"it is no regular file of at most {_MOST:,} bytes")
        return file.read(_MOST)


def is_uid(uid: str) -> bool:
    """Whether ``uid`` can be a claim's UID in a file name and in the name of a CDI device. The API server makes UUIDs."""
    return _UID.fullmatch(uid) is not None


def name_of(uid: str) -> str:
    """The part of a file name that stands for a claim: its UID, or a digest of a UID that :func:`is_uid` rejects.

    So no UID is a path or too long, and a removal is possible for each UID. No file is written for a UID that is rejected.
    """
    return uid if is_uid(uid) else f"sha256-{hashlib.sha256(uid.encode(errors='replace')).hexdigest()[:40]}"


def remove_file(path: str) -> None:
    """Removes a file, if it is there. Raises ``OSError``."""
    with ignoring_absence(path):
        os.unlink(path)


@contextlib.contextmanager
def ignoring_absence(path: str) -> Iterator[None]:
    """For removals of ``path``: ignores errors where it is not there.

    A path that is too long, or leads through a file or a loop of links, is not there. On a read-only file system Linux refuses to
    remove a path before it looks whether it exists, so the path is looked up after any other error.
    """
    try:
        yield
    except OSError as e:
        if e.errno in _NOT_THERE:
            return
        try:
            os.lstat(path)
        except OSError as found:
            if found.errno in _NOT_THERE:
                return
        raise


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Makes an ``OSError`` name ``path``: errors of descriptors name no file, and names of temporary files change with each try."""
    try:
        yield
    except OSError as e:
        e.filename, e.filename2 = path, None
        raise


def _write_all(fd: int, data: bytes) -> None:
    """A disk that fills up takes a part of what it is given, and says so only in the count."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
