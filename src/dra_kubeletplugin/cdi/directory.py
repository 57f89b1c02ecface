"""The folder that runtimes read: one file a claim, written whole or not at all.

Kind ``k8s.<driver>/claim``, file ``<vendor>-<class>_<claimUID>.json``, device ``<claimUID>-<device>[-<shareID>]``: the
convention of Go drivers. Names are never used again, because runtimes cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .spec import minimum_version, validate_spec

CLASS = "claim"


class ClaimSpecs:
    """The CDI files of one driver in one folder. All methods block; none keeps state."""

    def __init__(self, root: Path, driver: str) -> None:
        self.root = root
        self.vendor = f"k8s.{driver}"
        self._prefix = f"{self.vendor}-{CLASS}_"

    @property
    def kind(self) -> str:
        return f"{self.vendor}/{CLASS}"

    @staticmethod
    def device_name(uid: str, device: str, share_id: str | None = None) -> str:
        return f"{uid}-{device}" + (f"-{share_id}" if share_id else "")

    def device_id(self, uid: str, device: str, share_id: str | None = None) -> str:
        """The fully qualified id that the kubelet is told, ``vendor/class=name``."""
        return f"{self.kind}={self.device_name(uid, device, share_id)}"

    def path(self, uid: str) -> Path:
        return self.root / f"{self._prefix}{uid}.json"

    def build(
        self, devices: Sequence[tuple[str, Mapping[str, Any]]], common: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A spec of ``(device name, container edits)`` pairs, with the least version that fits.

        Raises :class:`InvalidSpecError`.
        """
        spec: dict[str, Any] = {"cdiVersion": "", "kind": self.kind}
        spec["devices"] = [{"name": name, "containerEdits": dict(edits)} for name, edits in devices]
        if common:
            spec["containerEdits"] = dict(common)
        spec["cdiVersion"] = minimum_version(spec)
        validate_spec(spec)
        return spec

    def write(self, specs: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Writes ``(claim UID, spec)`` pairs durably, mode 0644 whatever the umask, with one sync of the folder for all.

        Raises ``OSError``.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        for uid, spec in specs:
            # Scanners read .json and .yaml only, so a half-written file is never seen.
            temporary = self.root / f".{self._prefix}{uid}.tmp-{os.getpid()}"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, msgspec.json.encode(spec))
                os.fchmod(fd, 0o644)
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.rename(self.path(uid))
        self._sync()

    def remove(self, uids: Iterable[str]) -> None:
        """Removes the files of claims; one that is not there is no fault."""
        for uid in uids:
            self.path(uid).unlink(missing_ok=True)
        self._sync()

    def exists(self, uid: str) -> bool:
        return self.path(uid).exists()

    def read(self, uid: str) -> dict[str, Any]:
        """The spec of a claim.

        Raises ``OSError`` or ``msgspec.DecodeError``.
        """
        spec: dict[str, Any] = msgspec.json.decode(self.path(uid).read_bytes(), type=dict)
        return spec

    def uids(self) -> list[str]:
        """The claims that have a file of ours. Leftovers of an interrupted write are removed on the way."""
        if not self.root.is_dir():
            return []
        out = []
        for entry in sorted(self.root.iterdir()):
            if entry.name.startswith(f".{self._prefix}") and not _alive(entry.name):
                entry.unlink(missing_ok=True)
            elif entry.name.startswith(self._prefix) and entry.suffix == ".json":
                out.append(entry.name[len(self._prefix) : -len(".json")])
        return out

    def _sync(self) -> None:
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _alive(name: str) -> bool:
    """Whether the process that writes a temporary file still lives."""
    match = re.search(r"\.tmp-(\d+)$", name)
    if match is None:
        return False
    try:
        os.kill(int(match[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it lives, as another user
    return True
