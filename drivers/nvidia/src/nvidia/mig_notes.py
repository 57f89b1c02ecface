"""Remembers on disk for which claim a MIG instance was created, and which GPUs have MIG mode on because of claims.

A note is on disk before its instance exists, and is removed after the instance was destroyed. So after a crash, an
instance without a note belongs to no claim, and lost records can be recovered from the notes.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_kubeletplugin import AllocatedDevice, Claim, PreparedDevice, RecoveredClaim, SharedStep

SUFFIX = ".instance.json"
INSTANCE = {"boot", "uid", "namespace", "name", "request", "pool", "device", "address", "profile", "start", "created"}
"""The fields of a note about an instance."""


class MigMode(enum.Enum):
    """Who needs the MIG mode of a GPU while it is on."""

    OF_OPERATOR = enum.auto()
    """The driver did not turn it on in this boot."""
    OF_CLAIMS = enum.auto()
    UNUSED = enum.auto()
    """The driver turned it on, and could not turn it off after the last claim."""


class Notes:
    """The files that say which claim has an instance, and on which GPUs the driver turned MIG mode on.

    Reading them needs no library, so lost records can be recovered while the library cannot be opened.

    Args:
        folder: of the files.
        boot: id of this boot. Instances do not survive a reboot, so older notes are ignored.
    """

    def __init__(self, folder: Path, boot: str) -> None:
        self._folder = folder
        self._boot = boot

    def recovered(self, setup: Callable[..., None], release: Callable[..., None]) -> list[RecoveredClaim]:
        """Returns the claims of all instances, with the driver's methods for their shared and undo steps."""
        claims: dict[str, list[dict[str, Any]]] = {}
        for note in self._instances():
            claims.setdefault(note["uid"], []).append(note)
        return [
            RecoveredClaim(
                uid=uid,
                namespace=notes[0]["namespace"],
                name=notes[0]["name"],
                devices=[PreparedDevice(request=n["request"], pool=n["pool"], name=n["device"]) for n in notes],
                shared_steps=[SharedStep(setup, a) for a in sorted({n["address"] for n in notes if n["created"]})],
                undo_steps=[(release, {key: n[key] for key in ("address", "profile", "start")}) for n in notes],
            )
            for uid, notes in claims.items()
        ]

    # --- instances ------------------------------------------------------------------------------

    def claim_of(self, address: str, profile: int, start: int) -> str:
        """Returns the UID of the claim that has the instance; empty if no claim has it."""
        return str(self._read(self._instance(address, profile, start)).get("uid", ""))

    def was_created(self, address: str, profile: int, start: int) -> bool:
        """Whether the driver created the instance for a claim. False for an operator's instance."""
        return bool(self._read(self._instance(address, profile, start)).get("created"))

    def add(
        self, address: str, profile: int, start: int, claim: Claim, device: AllocatedDevice, *, created: bool
    ) -> None:
        self._write(
            self._instance(address, profile, start),
            uid=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            request=device.request,
            pool=device.pool,
            device=device.name,
            address=address,
            profile=profile,
            start=start,
            created=created,
        )

    def remove(self, address: str, profile: int, start: int) -> None:
        self._instance(address, profile, start).unlink(missing_ok=True)

    # --- MIG mode -------------------------------------------------------------------------------

    def mode(self, address: str) -> MigMode:
        """Returns who needs MIG mode. A damaged note counts as the note of a claim."""
        try:
            note = json.loads(self._mode(address).read_text())
            if note["boot"] != self._boot:
                return MigMode.OF_OPERATOR
            return MigMode.UNUSED if note.get("unused") else MigMode.OF_CLAIMS
        except FileNotFoundError:
            return MigMode.OF_OPERATOR
        except (ValueError, LookupError, TypeError, AttributeError):
            return MigMode.OF_CLAIMS

    def set_mode(self, address: str, mode: MigMode) -> None:
        if mode is MigMode.OF_OPERATOR:
            self._mode(address).unlink(missing_ok=True)
        else:
            self._write(self._mode(address), unused=mode is MigMode.UNUSED)

    # --- files ----------------------------------------------------------------------------------

    def _instances(self) -> list[dict[str, Any]]:
        return [note for path in sorted(self._folder.glob(f"*{SUFFIX}")) if (note := self._read(path))]

    def _instance(self, address: str, profile: int, start: int) -> Path:
        return self._folder / f"{address}-{profile}-{start}{SUFFIX}"

    def _mode(self, address: str) -> Path:
        return self._folder / f"{address}.mode.json"

    def _write(self, path: Path, **fields: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"boot": self._boot, **fields}))
        temporary.replace(path)

    def _read(self, path: Path) -> dict[str, Any]:
        """Returns a note of this boot about an instance; empty if there is none. A damaged note counts as none."""
        try:
            note = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return note if isinstance(note, dict) and note.keys() >= INSTANCE and note["boot"] == self._boot else {}
