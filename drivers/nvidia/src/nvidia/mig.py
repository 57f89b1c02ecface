"""Creates and destroys MIG instances, and changes MIG mode."""

from __future__ import annotations

import logging

from dra_kubeletplugin import AllocatedDevice, Claim
from dra_kubeletplugin.driver.metrics import Histogram

from .devices import Place
from .mig_notes import MigMode, Notes
from .sdk import Gpu, Gpus, Instance, InUseError, LibraryError, OccupiedError


class Partitions:
    """The MIG instances of one node.

    Args:
        durations: how long creating and destroying takes; its label is ``operation``.
    """

    def __init__(self, gpus: Gpus, notes: Notes, log: logging.Logger, durations: Histogram) -> None:
        self._gpus = gpus
        self._notes = notes
        self._log = log
        self._durations = durations

    # --- instances ------------------------------------------------------------------------------

    def create(self, gpu: Gpu, place: Place, claim: Claim, device: AllocatedDevice) -> Instance:
        """Creates an instance for a claim. What an earlier attempt created was undone before.

        Raises:
            OccupiedError: another instance occupies the place.
        """
        occupied = f"{device.name} cannot be created: another MIG instance on {gpu.address} occupies its place"
        if self.find(gpu.uuid, place):  # without a note, so the undo step leaves it alone
            raise OccupiedError(occupied)
        self._notes.add(gpu.address, place.profile.id, place.start, claim, device, created=True)
        try:
            with self._durations.labels(operation="create").time():
                return self._gpus.create(gpu.uuid, place.profile, place.start)
        except OccupiedError:
            raise OccupiedError(occupied) from None

    def use(self, gpu: Gpu, place: Place, claim: Claim, device: AllocatedDevice) -> Instance | None:
        """Returns an operator's instance, and notes that a claim has it: with dynamic MIG, it must not be destroyed."""
        self._notes.add(gpu.address, place.profile.id, place.start, claim, device, created=False)
        return self.find(gpu.uuid, place)

    def find(self, uuid: str, place: Place) -> Instance | None:
        return next(
            (i for i in self._gpus.instances(uuid) if (i.profile, i.start) == (place.profile.id, place.start)), None
        )

    def numbers(self, uuid: str) -> dict[tuple[int, int], int]:
        """Returns the library's numbers of the GPU instances, by profile and start."""
        return {(i.profile, i.start): i.gpu_instance for i in self._gpus.instances(uuid)}

    def release(self, gpu: Gpu | None, address: str, profile: int, start: int, claim_uid: str) -> None:
        """Destroys the instance that was created for a claim, and removes the note. Idempotent.

        Without the GPU, only the note exists. Without the note, an instance at this place belongs to an operator.
        """
        if self._notes.claim_of(address, profile, start) not in {"", claim_uid}:
            return
        if gpu is not None and self._notes.was_created(address, profile, start):
            try:
                with self._durations.labels(operation="destroy").time():
                    self._gpus.destroy(gpu.uuid, profile, start)
            except InUseError:
                raise InUseError(f"a process still uses the MIG instance at {start} of {address}") from None
        self._notes.remove(address, profile, start)

    def destroy_unclaimed(self, gpu: Gpu) -> None:
        """Destroys the instances that no claim has, also those that an operator created."""
        for instance in self._gpus.instances(gpu.uuid):
            if self._notes.claim_of(gpu.address, instance.profile, instance.start):
                continue
            place = f"MIG instance of profile {instance.profile} at {instance.start} of {gpu.address}"
            try:
                self._gpus.destroy(gpu.uuid, instance.profile, instance.start)
                self._log.warning("destroyed a %s: no claim has it", place)
            except InUseError:
                self._log.warning("a %s belongs to no claim, and a process uses it: it is not destroyed", place)

    # --- MIG mode -------------------------------------------------------------------------------

    def mode(self, address: str) -> MigMode:
        """Returns who needs the MIG mode of a GPU."""
        return self._notes.mode(address)

    def turn_on(self, gpu: Gpu) -> None:
        """Turns MIG mode on, and notes that the driver did it."""
        if gpu.mig and self.mode(gpu.address) is MigMode.OF_OPERATOR:
            return
        self._notes.set_mode(gpu.address, MigMode.OF_CLAIMS)
        if not gpu.mig:
            try:
                self._gpus.set_mig(gpu.uuid, on=True)
            except InUseError:
                raise InUseError(f"MIG mode of {gpu.address} cannot be turned on: a process uses the GPU") from None

    def turn_off(self, gpu: Gpu | None, address: str) -> bool:
        """Turns MIG mode off if the driver turned it on and no instance is left. Idempotent.

        While that is not possible, the mode counts as unused, and each scan tries again: the end of a claim does not
        wait for a monitor that uses the GPU. Returns whether the mode is off.
        """
        before = self.mode(address)
        if before is MigMode.OF_OPERATOR:
            return False
        reason = self._turn_off(gpu)
        self._notes.set_mode(address, MigMode.UNUSED if reason else MigMode.OF_OPERATOR)
        if reason and before is MigMode.OF_CLAIMS:
            self._log.warning("the MIG mode of %s stays on after its last claim: %s", address, reason)
        return not reason

    def _turn_off(self, gpu: Gpu | None) -> str:
        """Returns why MIG mode stays on; empty if it is off."""
        if gpu is None:
            return "NVML does not see the GPU"
        if gpu.mig:
            try:
                if self._gpus.instances(gpu.uuid):
                    return "it has MIG instances, which belong to no claim"
                self._gpus.set_mig(gpu.uuid, on=False)
            except LibraryError as e:
                return str(e)
        return ""

    def turn_off_unused(self, gpu: Gpu) -> bool:
        """Turns MIG mode off if that was not possible after the last claim of a GPU. Returns whether it is off now."""
        return self.mode(gpu.address) is MigMode.UNUSED and self.turn_off(gpu, gpu.address)
