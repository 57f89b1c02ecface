"""The uevents of a described host: a file with one line per event, in place of the kernel's netlink socket."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_LOG = ".uevents"


def write_event(root: Path, action: str, subsystem: str, device: str) -> None:
    """Writes one event. ``action`` is a word of the kernel: add, remove, bind, unbind or change."""
    with (root / _LOG).open("a") as log:
        log.write(f"{action} {subsystem} {device}\n")


class Listener:
    """Reads the events of some subsystems that are written after its creation."""

    def __init__(self, root: Path, subsystems: Collection[str]) -> None:
        self._log = root / _LOG
        self._subsystems = frozenset(subsystems)
        self._read = self._log.stat().st_size if self._log.exists() else 0

    def has_new(self) -> bool:
        """Returns whether an event was written since the last call; False if the described host was deleted."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._read)
                new = log.read()
        except OSError:
            return False
        whole = new[: new.rfind(b"\n") + 1]  # the last line may be incomplete
        self._read += len(whole)
        return any(line.split()[1] in self._subsystems for line in whole.decode().splitlines())
