"""A driver whose hardware is a folder, and which can kill its own process between two of its effects (kill_points.py).

A device is acquired in two steps. Each step creates a file exclusively. A second holder is a violation, which is written
to a file for the test. All devices are on one card, whose power is a shared step with two more files. Power that is off
while a device is in use is a violation too.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path
from typing import Any

from dra_kubeletplugin import (
    Claim,
    ContainerEdits,
    Device,
    Driver,
    Health,
    PreparedClaim,
    PreparedDevice,
    RecoveredClaim,
    RetryableError,
    SharedStep,
)
from dra_kubeletplugin.cdi import directory
from dra_kubeletplugin.claims.store import folder
from dra_kubeletplugin.plugin.grpc.node_service import NodeService
from tests.helpers.crash.kill_points import kill_at, wrap_method

HARDWARE = Path(os.environ["CRASH_HARDWARE"])
FAULTS = HARDWARE.parent / "faults"
POWER = (HARDWARE / "card.on", HARDWARE / "card.ready")
RECOVERED = {"from": "hardware"}
SURROGATE = "a vendor's text \udcff"  # cannot be encoded
DELAY = float(os.environ.get("CRASH_DELAY", "0"))
DEVICES = int(os.environ.get("CRASH_DEVICES", "4"))


class Crash(Driver):
    name = "crash.example.com"
    metadata = True  # metadata files must also be created and removed

    def devices(self) -> list[Device]:
        if consume_fault("devices-hangs"):
            time.sleep(2)
        if consume_fault("devices-raises"):
            raise OSError("the bus does not answer")
        if consume_fault("devices-returns-anything"):
            return [None, "c-0", Device("C 0")]  # type: ignore[list-item]
        missing_device = "c-3" if is_fault_active("device-gone") else ""
        return [Device(f"c-{i}", attributes={"index": i}) for i in range(DEVICES) if f"c-{i}" != missing_device]

    def health(self) -> dict[str, Health]:
        if consume_fault("health-raises"):
            raise ValueError(SURROGATE)
        if consume_fault("health-returns-anything"):
            return {7: "fine"}  # type: ignore[dict-item]
        return {"c-2": Health(healthy=False, message="it smokes")} if is_fault_active("device-unhealthy") else {}

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        if consume_fault("prepare-hangs"):
            time.sleep(2)
        if consume_fault("prepare-raises"):
            raise RuntimeError(SURROGATE)
        if consume_fault("prepare-stops-iteration"):
            next(iter(()))
        if consume_fault("prepare-exits"):
            raise SystemExit(7)
        if consume_fault("prepare-cancels"):
            raise asyncio.CancelledError
        if consume_fault("prepare-answers-nothing"):
            return None  # type: ignore[return-value]
        claim.shared_step(self.setup_power, "card")
        for d in claim.devices:
            claim.on_undo(self.release, device=d.name)
            acquire(d.name, "a", claim.uid)
            if DELAY:
                time.sleep(DELAY)
            while is_fault_active("prepare-held"):
                time.sleep(0.01)
            kill_at("prepare: between two steps of hardware")
            acquire(d.name, "b", claim.uid)
        kill_at("prepare: after hardware")
        if consume_fault("prepare-returns-anything"):  # after all steps, so that the rollback has to undo all of them
            return [d.name for d in claim.devices]  # type: ignore[misc]
        return [d.prepared(ContainerEdits(env={f"CRASH_{d.name[2:]}": claim.uid})) for d in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        if consume_fault("unprepare-hangs"):
            time.sleep(2)
        if consume_fault("unprepare-raises"):
            raise OSError(SURROGATE)
        for d in claim.devices:
            if d.data == RECOVERED:  # its undo steps were lost with its record
                release(d.name, "b", claim.uid)
                release(d.name, "a", claim.uid)

    def release(self, claim: PreparedClaim, device: str) -> None:
        if consume_fault("undo-raises"):
            raise StopAsyncIteration
        release(device, "b", claim.uid)
        if DELAY:
            time.sleep(DELAY)
        release(device, "a", claim.uid)

    def setup_power(self, card: str) -> None:
        kill_at("prepare: before set-up")
        if consume_fault("setup-raises"):
            raise OSError("the card does not respond")
        for path in POWER:
            if not path.exists():
                check_unused(card)
            path.touch()

    def teardown_power(self, card: str) -> None:
        if consume_fault("teardown-raises"):
            raise OSError("the card does not respond")
        check_unused(card)
        for path in reversed(POWER):
            path.unlink(missing_ok=True)

    def recover(self) -> list[RecoveredClaim]:
        if consume_fault("recover-raises") or is_fault_active("recover-fails"):
            raise OSError("the bus does not answer")
        by_uid: dict[str, list[str]] = {}
        for path in sorted(HARDWARE.glob("*.a")):
            by_uid.setdefault(path.read_text(), []).append(path.stem)
        return [
            RecoveredClaim(
                uid=uid,
                devices=[
                    PreparedDevice(request="", pool=self.settings.node_name, name=n, data=RECOVERED) for n in names
                ],
                shared_steps=[SharedStep(self.setup_power, "card")],
            )
            for uid, names in by_uid.items()
        ]


def check_unused(card: str) -> None:
    """Writes a violation if a device is in use while the power of the card changes."""
    for path in HARDWARE.glob("*.[ab]"):
        (HARDWARE / f"VIOLATION-{card}-{path.name}").write_text(f"the power changes while {path.name} is in use")


def acquire(device: str, step: str, uid: str) -> None:
    """Creates a device file atomically with its content, like a write to a hardware register."""
    path = HARDWARE / f"{device}.{step}"
    if not all(p.exists() for p in POWER):
        (HARDWARE / f"VIOLATION-{device}-{uid}").write_text(f"{uid} took {device}.{step} without power")
    temporary_file = HARDWARE.parent / f"{uid}.{device}.{step}"
    temporary_file.write_text(uid)
    try:
        os.link(temporary_file, path)
    except FileExistsError:
        holder = path.read_text()
        (HARDWARE / f"VIOLATION-{device}-{uid}").write_text(f"{uid} took {device}.{step}, which {holder} holds")
        raise RetryableError(f"{device} is held by {holder}") from None
    finally:
        temporary_file.unlink()


def release(device: str, step: str, uid: str) -> None:
    path = HARDWARE / f"{device}.{step}"
    if path.exists() and path.read_text() == uid:
        path.unlink()


# --- outside the driver -------------------------------------------------------------------------------


def add_point_before_reply() -> None:
    original = NodeService.prepare

    async def reply_and_kill(self: Any, request: Any, kind: Any) -> Any:
        response = await original(self, request, kind)
        if request.claims:
            kill_at("prepare: before reply")
        return response

    NodeService.prepare = reply_and_kill  # type: ignore[method-assign]


def inject_faults() -> None:
    """Adds disk faults. A test activates a fault in the running process with a file of its name in the folder of faults."""
    write = directory.write_all

    def commit_or_fail(*_: Any, **__: Any) -> None:
        if consume_fault("eio") or consume_fault("eio-again"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write_or_fail(fd: int, data: bytes) -> None:
        if is_fault_active("cdi-full"):
            write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(fd, data)

    wrap_method(folder.ClaimFolder, "commit", commit_or_fail)
    directory.write_all = write_or_fail


def consume_fault(name: str) -> bool:
    """Returns whether the test has requested a fault, and withdraws the request, so that the fault happens once."""
    try:
        (FAULTS / name).unlink()
    except FileNotFoundError:
        return False
    return True


def is_fault_active(name: str) -> bool:
    """Returns whether a lasting fault is active."""
    return (FAULTS / name).exists()


add_point_before_reply()
inject_faults()
