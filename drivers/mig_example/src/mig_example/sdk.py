"""Simulates the vendor's library, here NVML. Replace it with the real one."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from pathlib import Path

from dra_kubeletplugin import AllocatedDevice, Claim, PreparedDevice, RecoveredClaim, RetryableError, SharedStep


class Gpus:
    """The partitions that exist and the GPUs that are in MIG mode, each as a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @staticmethod
    def uuid(name: str) -> str:
        """Returns an id that is always the same for the same hardware, like a serial number."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))

    def path(self, instance: str) -> Path:
        return self._folder / f"{instance}.json"

    def mode_path(self, gpu: str) -> Path:
        return self._folder / f"{gpu}.mig"

    def set_mig(self, gpu: str, *, on: bool) -> None:
        if on:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.mode_path(gpu).touch()
        else:
            self.mode_path(gpu).unlink(missing_ok=True)

    def create(self, instance: str, gpu: str, claim: Claim, device: AllocatedDevice) -> None:
        if not self.mode_path(gpu).exists():
            raise RetryableError(f"{gpu} is not in MIG mode")
        owner = {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}
        place = {"request": device.request, "pool": device.pool, "device": device.name, "gpu": gpu}
        unfinished = self._folder / f".{instance}"
        unfinished.write_text(json.dumps(owner | place))
        unfinished.rename(self.path(instance))

    def destroy(self, instance: str) -> None:
        self.path(instance).unlink(missing_ok=True)

    def used(self, setup: Callable[..., None], destroy: Callable[..., None]) -> list[RecoveredClaim]:
        """Returns the claims that have partitions, with the driver's methods for their shared and undo steps."""
        claims: dict[str, dict[str, dict[str, str]]] = {}  # the content of each file, by claim and partition
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):
                found = json.loads(path.read_text())
                claims.setdefault(found["uid"], {})[path.stem] = found
        out = []
        for uid, parts in claims.items():
            first = next(iter(parts.values()))
            out.append(
                RecoveredClaim(
                    uid=uid,
                    namespace=first["namespace"],
                    name=first["name"],
                    devices=[
                        PreparedDevice(request=p["request"], pool=p["pool"], name=p["device"]) for p in parts.values()
                    ],
                    shared_steps=[SharedStep(setup, gpu) for gpu in sorted({p["gpu"] for p in parts.values()})],
                    undo_steps=[(destroy, {"gpu": p["gpu"], "instance": name}) for name, p in parts.items()],
                )
            )
        return out
