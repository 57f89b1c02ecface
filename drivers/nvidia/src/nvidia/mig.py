"""Creates and destroys MIG instances, and remembers on disk for which claim an instance was created.

A note is on disk before its instance exists, and is removed after the instance was destroyed. So after a crash, an
instance without a note belongs to no claim, and lost records can be recovered from the notes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dra_kubeletplugin import AllocatedDevice, Claim, PreparedDevice, RecoveredClaim, SharedStep
from dra_kubeletplugin.driver.metrics import Histogram

from .devices import Place
from .sdk import Gpu, Gpus, Instance, InUseError, OccupiedError

MODE_STEP = "mig_mode"
SUFFIX = ".instance.json"
INSTANCE = {"boot", "uid", "namespace", "name", "request", "pool", "device", "address", "profile", "start"}
"""The fields of a note about an instance."""


class Partitions:
    """The MIG instances of one node, and the notes about them.

    Args:
        folder: of the notes.
        boot: id of this boot. Instances do not survive a reboot, so older notes are ignored.
        durations: how long creating and destroying takes; its label is ``operation``.
    """

    def __init__(self, gpus: Gpus, folder: Path, boot: str, log: logging.Logger, durations: Histogram) -> None:
        self._gpus = gpus
        self._folder = folder
        self._boot = boot
        self._log = log
        self._durations = durations

    # --- instances ------------------------------------------------------------------------------

    def create(self, gpu: Gpu, place: Place, claim: Claim, device: AllocatedDevice) -> Instance:
        """Creates an instance for a claim. What an earlier attempt created was undone before.

        Raises:
            OccupiedError: another instance occupies the place.
        """
        note = self._note(gpu.address, place.profile.id, place.start)
        occupied = f"{device.name} cannot be created: another MIG instance on {gpu.address} occupies its place"
        if self.find(gpu.uuid, place):  # without a note, so the undo step leaves it alone
            raise OccupiedError(occupied)
        self._write(
            note,
            uid=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            request=device.request,
            pool=device.pool,
            device=device.name,
            address=gpu.address,
            profile=place.profile.id,
            start=place.start,
        )
        try:
            with self._durations.timed(operation="create"):
                return self._gpus.create(gpu.uuid, place.profile, place.start)
        except OccupiedError:
            raise OccupiedError(occupied) from None

    def find(self, uuid: str, place: Place) -> Instance | None:
        return next(
            (i for i in self._gpus.instances(uuid) if (i.profile, i.start) == (place.profile.id, place.start)), None
        )

    def numbers(self, uuid: str) -> dict[tuple[int, int], int]:
        """Returns the library's numbers of the GPU instances, by profile and start."""
        return {(i.profile, i.start): i.gpu_instance for i in self._gpus.instances(uuid)}

    def destroy(self, gpu: Gpu | None, address: str, profile: int, start: int, claim_uid: str) -> None:
        """Destroys the instance that was created for a claim, and its note. Idempotent.

        Without the GPU, only the note exists. Without the note, an instance at this place belongs to an operator.
        """
        note = self._note(address, profile, start)
        if gpu is not None and self._read(note).get("uid") == claim_uid:
            try:
                with self._durations.timed(operation="destroy"):
                    self._gpus.destroy(gpu.uuid, profile, start)
            except InUseError:
                raise InUseError(f"a process still uses the MIG instance at {start} of {address}") from None
        if self._read(note).get("uid", claim_uid) == claim_uid:
            note.unlink(missing_ok=True)

    def destroy_unclaimed(self, gpu: Gpu) -> None:
        """Destroys the instances that no claim has, also those that an operator created."""
        for instance in self._gpus.instances(gpu.uuid):
            note = self._note(gpu.address, instance.profile, instance.start)
            if self._read(note):
                continue
            place = f"MIG instance of profile {instance.profile} at {instance.start} of {gpu.address}"
            try:
                self._gpus.destroy(gpu.uuid, instance.profile, instance.start)
                self._log.warning("destroyed a %s: no claim has it", place)
            except InUseError:
                self._log.warning("a %s belongs to no claim, and a process uses it: it is not destroyed", place)

    # --- MIG mode -------------------------------------------------------------------------------

    def turn_on(self, gpu: Gpu) -> None:
        """Turns MIG mode on, and notes that the driver did it."""
        if not gpu.mig:
            self._write(self._mode(gpu.address))
            try:
                self._gpus.set_mig(gpu.uuid, on=True)
            except InUseError:
                raise InUseError(f"MIG mode of {gpu.address} cannot be turned on: a process uses the GPU") from None

    def turn_off(self, gpu: Gpu | None, address: str) -> None:
        """Turns MIG mode off if the driver turned it on and no instance is left. Idempotent."""
        if gpu is not None and gpu.mig and self.turned_on(address) and gpu.switches_mig:
            if self._gpus.instances(gpu.uuid):
                self._log.warning(
                    "%s still has MIG instances, which belong to no claim: its MIG mode stays on", address
                )
                return
            self._gpus.set_mig(gpu.uuid, on=False)
        self._mode(address).unlink(missing_ok=True)

    def turned_on(self, address: str) -> bool:
        """Whether the driver, and not an operator, turned MIG mode on in this boot. A damaged note counts too."""
        path = self._mode(address)
        try:
            return bool(json.loads(path.read_text()).get("boot") == self._boot)
        except FileNotFoundError:
            return False
        except (ValueError, AttributeError):
            return True

    # --- notes ----------------------------------------------------------------------------------

    def recovered(self) -> Iterator[RecoveredClaim]:
        """Returns the claims of all instances, from the notes."""
        claims: dict[str, list[dict[str, Any]]] = {}
        for note in self.notes():
            claims.setdefault(note["uid"], []).append(note)
        for uid, notes in claims.items():
            yield RecoveredClaim(
                uid=uid,
                namespace=notes[0]["namespace"],
                name=notes[0]["name"],
                devices=[PreparedDevice(request=n["request"], pool=n["pool"], name=n["device"]) for n in notes],
                shared_steps=[SharedStep(MODE_STEP, address) for address in sorted({n["address"] for n in notes})],
            )

    def notes(self) -> list[dict[str, Any]]:
        """Returns the notes about instances."""
        return [note for path in sorted(self._folder.glob(f"*{SUFFIX}")) if (note := self._read(path))]

    def _note(self, address: str, profile: int, start: int) -> Path:
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
