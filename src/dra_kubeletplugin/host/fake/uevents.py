"""The uevents of a described host: a file with a line for each, in place of the kernel's netlink socket."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_LOG = ".uevents"


def tell(root: Path, action: str, subsystem: str, device: str) -> None:
    """``action`` is the kernel's word: add, remove, bind, unbind or change."""
    with (root / _LOG).open("a") as log:
        log.write(f"{action} {subsystem} {device}\n")


class Listener:
    """Of the events of some subsystems, from now on."""

    def __init__(self, root: Path, subsystems: Collection[str]) -> None:
        self._log = root / _LOG
        self._subsystems = frozenset(subsystems)
        self._read = self._log.stat().st_size if self._log.exists() else 0

    def heard(self) -> bool:
        """Whether there has been one since it was last asked. A host that is not there any more tells of nothing."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._read)
                new = log.read()
        except OSError:
            return False
        whole = new[: new.rfind(b"\n") + 1]  # a line may be half written
        self._read += len(whole)
        return any(line.split()[1] in self._subsystems for line in whole.decode().splitlines())


__all__ = ["Listener", "tell"]
