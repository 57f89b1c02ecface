"""Which drivers functions have while no container has them."""

from __future__ import annotations

from pathlib import Path

from dra_kubeletplugin import PciFunction

from .vfio import VFIO


class Natives:
    """Notes in files, because a restart or another instance must know too.

    A note counts for one boot, and while the function has VFIO's driver or, on the way there, none.
    """

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._folder = folder
        self._boot_id = boot_id

    def of(self, fn: PciFunction) -> str | None:
        """The driver that a function has while no container does."""
        if fn.driver not in {None, VFIO}:
            return fn.driver
        try:
            boot_id, _, driver = (self._folder / fn.address).read_text().strip().partition(" ")
        except OSError:
            return fn.driver
        return driver or None if boot_id == self._boot_id else fn.driver

    def note(self, address: str, driver: str | None) -> None:
        """Before the driver is taken away. Written aside and renamed: half a note would be another driver's name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / f".{address}"
        aside.write_text(f"{self._boot_id} {driver or ''}\n")
        aside.replace(self._folder / address)

    def forget(self, address: str) -> None:
        (self._folder / address).unlink(missing_ok=True)
