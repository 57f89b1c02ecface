"""Writes, reads and removes the CDI files of claims in the folder that container runtimes read.

Each claim has one spec, which is always complete, and a note, which only the framework reads. The note contains the claim's record.

Names follow the convention of Go drivers: kind ``k8s.<driver>/claim``, file ``<vendor>-<class>_<claimUID>.json``, device
``<claimUID>-<device>[-<shareID>]``. A name is never used for another claim, because runtimes cache specs. The note is a hidden file
with the suffix ``.record``, so that no runtime reads it. Annotations in the spec are no alternative: they need CDI 0.6.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..base.files import create_file, read_file
from ..errors import InvalidSpecError
from .spec import validate_device_name, validate_kind, version_to_declare

T = TypeVar("T")
CLASS = "claim"
_TEMPORARY = ".tmp-"
_SPEC, _NOTE = ".json", ".record"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_PROBE_SIZE = 4096  # bytes


class ClaimSpecs:
    """The CDI files of one driver in one folder. All methods block. The object has no state.

    Args:
        root: the folder.
        driver: the driver's name.
        token: identifies this process in the names of temporary files; by default its process id.
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
        # Texts and not Path objects, because creating a Path takes longer than the system call that uses it.
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
        """Returns the CDI device id ``vendor/class=name``, which the kubelet gets in the response."""
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
        """Returns a spec with the lowest CDI version that has all its fields.

        Args:
            devices: pairs of device name and container edits. The edits are not empty; :class:`ContainerEdits` has checked them.

        Raises:
            InvalidSpecError: a name is invalid or occurs twice.
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
        """Writes a claim's spec. Every user can read it, whatever the umask is.

        The spec survives the death of this process, but it may not survive a power failure. Every claim is prepared again after a boot.

        Raises ``OSError``.
        """
        self._write(self._spec(uid), f"{self._notes}{name_of(uid)}{_SPEC}", encoded(spec), 0o644)

    def write_note(self, uid: str, note: bytes) -> None:
        """Writes a claim's note. Only its owner can read it.

        A new note is written directly under its final name, which is twice as fast as :func:`write_file`. A partial note does no harm:
        readers ignore it, and no reader relies on a new note yet.

        Raises ``OSError``.
        """
        path = self._note(uid)
        try:
            self._in_folder(lambda: write_new(path, note, 0o600))
        except FileExistsError:
            self._write(path, path, note, 0o600)

    def probe(self) -> None:
        """Checks that files can be written: writes and removes a file as large as the spec of a claim with many devices.

        Raises ``OSError`` that names the folder.
        """
        temporary = f"{self._notes}{_TEMPORARY}{self.token}"
        with naming_path_in_errors(str(self.root)):
            fd = self._in_folder(lambda: create_file(temporary, 0o600))
            try:
                write_all(fd, bytes(_PROBE_SIZE))
            finally:
                os.close(fd)
                os.unlink(temporary)

    def _write(self, path: str, hidden: str, data: bytes, mode: int) -> None:
        # The temporary name does not end with .json or .yaml, so runtimes do not read the partial file.
        temporary = f"{hidden}{_TEMPORARY}{self.token}"
        self._in_folder(lambda: write_file(path, temporary, data, mode))

    def _in_folder(self, write: Callable[[], T]) -> T:
        """Calls ``write``, and again after creating the folder if it is missing."""
        try:
            return write()
        except FileNotFoundError:
            self.root.mkdir(exist_ok=True)  # without parents: if a parent is missing, the pod lacks a mount
            return write()

    def remove(self, uid: str) -> None:
        """Removes the spec of a claim, if it exists.

        Raises ``OSError``.
        """
        remove_file(self._spec(uid))

    def remove_note(self, uid: str) -> None:
        """Removes the note of a claim, if it exists.

        Raises ``OSError``.
        """
        remove_file(self._note(uid))

    def has_content(self, uid: str, spec: Mapping[str, Any] | None, note: bytes) -> bool:
        """Whether the claim's files exist with exactly this content. ``spec`` None means that the spec is not compared."""
        try:
            same = spec is None or read_file(self._spec(uid), links=False) == encoded(spec)
            return same and read_file(self._note(uid), links=False) == note
        except (OSError, ValueError):
            return False

    def note(self, uid: str) -> bytes:
        """Returns the note of a claim. Raises ``OSError``, also if it is not a regular file or is too large."""
        return read_file(self._note(uid), links=False)

    def uids(self) -> list[str]:
        """Returns the UIDs of the claims that have a spec or a note of this driver. Files with other names are ignored.

        Raises ``OSError``.
        """
        specs = (n for n in self._names(self._prefix) if n.endswith(_SPEC))
        notes = (n for n in self._names(f".{self._prefix}") if n.endswith(_NOTE))
        found = {n[len(self._prefix) : -len(_SPEC)] for n in specs}
        found |= {n[1 + len(self._prefix) : -len(_NOTE)] for n in notes}
        return sorted(filter(is_uid, found))

    def clean(self, alive: Callable[[str], bool]) -> None:
        """Removes temporary files of interrupted writes. ``alive`` returns whether the process with a token still runs.

        A file that cannot be removed stays until the next call. Raises ``OSError`` if the folder cannot be read.
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
    """Creates a file directly under its final name, which is twice as fast as :func:`write_file`.

    If the process dies meanwhile, the file is partial. Use this function only while no reader relies on the file.

    Raises ``OSError`` that names ``path``; ``FileExistsError`` if the file exists.
    """
    fd = os.open(path, _NEW, mode)
    try:
        with naming_path_in_errors(path):
            try:
                write_all(fd, data)
                if mode & 0o077:  # the umask may have removed these bits
                    os.fchmod(fd, mode)
            finally:
                os.close(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def write_file(path: str, temporary: str, data: bytes, mode: int) -> None:
    """Writes a file so that readers never see a part of it: writes ``temporary`` in the same folder, then renames it to ``path``.

    Raises ``OSError`` that names ``path``.
    """
    with naming_path_in_errors(path):
        fd = create_file(temporary, mode)
        try:
            try:
                write_all(fd, data)
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


def is_uid(uid: str) -> bool:
    """Whether ``uid`` may be part of a file name and of a CDI device's name, as the UUIDs of the API server may."""
    return _UID.fullmatch(uid) is not None


def name_of(uid: str) -> str:
    """Returns the part of a file name that identifies a claim: its UID, or a digest of a UID that :func:`is_uid` rejects.

    The digest cannot contain a path and is not too long, so removal is safe for every UID. No file is written for a rejected UID.
    """
    return uid if is_uid(uid) else f"sha256-{hashlib.sha256(uid.encode(errors='replace')).hexdigest()[:40]}"


def remove_file(path: str) -> None:
    """Removes a file, if it exists. Raises ``OSError``."""
    with ignoring_absence(path):
        os.unlink(path)


@contextlib.contextmanager
def ignoring_absence(path: str) -> Iterator[None]:
    """Ignores the error of a removal in the block if ``path`` does not exist.

    A path that is too long, or that leads through a file or a loop of links, does not exist. On a read-only file system, Linux refuses
    the removal without checking whether the path exists. So after any other error, this function checks whether it exists.
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
def naming_path_in_errors(path: str) -> Iterator[None]:
    """Sets ``path`` as the file name of an ``OSError``.

    Without it, errors of file descriptors name no file, and other errors name the temporary file, so the text differs at each attempt.
    """
    try:
        yield
    except OSError as e:
        e.filename, e.filename2 = path, None
        raise


def write_all(fd: int, data: bytes) -> None:
    """Writes all of ``data``. On a full disk, ``os.write`` writes a part and raises nothing; only the next call raises."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
