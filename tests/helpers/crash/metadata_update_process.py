"""A process that updates the metadata of a prepared claim and kills itself at the point that KILL_AT names, one of POINTS.

Arguments: the kubelet's root, and the number that the driver writes into the metadata.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from dra_kubeletplugin import Claim, Device, Driver, PreparedDevice
from dra_kubeletplugin.base import rewrite
from dra_kubeletplugin.claims import metadata_updates
from dra_kubeletplugin.claims.claim_files import ClaimFiles
from dra_kubeletplugin.claims.store.records import Records
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.kill_points import kill_at
from tests.helpers.crash.record_stores import DRIVER

POINTS = (
    "update: before record",
    "update: before note",
    "update: before commit",
    "update: after commit",
    "update: before file",
    "update: room in the file",
    "update: half the file",
    "update: before its end is cut off",
    "update: after file",
)
UID = "uid-1"


class Net(Driver):
    name = DRIVER
    metadata = True

    def devices(self) -> list[Device]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(metadata={"text": "x" * 64}) for d in claim.devices]


def claim(api: FakeApiServer) -> Any:
    """Returns a claim with two requests. One request is an alternative and has two devices."""
    ref = api.allocate("c", UID, "d-0", DRIVER, request="net/fast")
    results = api.claims["c"]["status"]["allocation"]["devices"]["results"]
    results += [{**results[0], "request": "acc", "device": name} for name in ("d-1", "d-2")]
    return ref


def path(r: RunningManager, request: str) -> Path:
    return r.settings.plugin_dir / f"dra-device-metadata/{UID}_{request}.json"


def instrument() -> None:
    updated, note, put = metadata_updates.updated, ClaimFiles.note, ClaimFiles.put_metadata
    pwrite, ftruncate, real = os.pwrite, os.ftruncate, Records.read
    uids_read: list[str] = []

    def on_record(*args: Any) -> Any:
        kill_at("update: before record")
        return updated(*args)

    def note_and_kill(self: Any, record: Any) -> None:
        kill_at("update: before note")
        note(self, record)
        kill_at("update: before commit")

    def put_and_kill(self: Any, record: Any) -> None:
        kill_at("update: before file")
        put(self, record)
        kill_at("update: after file")

    def is_metadata(fd: int) -> bool:
        return Path(f"/proc/self/fd/{fd}").readlink().parent.name == "dra-device-metadata"

    def write_and_kill(fd: int, data: Any, offset: int) -> int:
        if not is_metadata(fd):
            return pwrite(fd, data, offset)
        if offset:
            result = pwrite(fd, data, offset)
            kill_at("update: room in the file")
            return result
        if os.environ.get("KILL_AT") == "update: half the file":
            pwrite(fd, bytes(data)[: len(data) // 2], offset)
        kill_at("update: half the file")
        return pwrite(fd, data, offset)

    def cut_and_kill(fd: int, length: int) -> None:
        if is_metadata(fd):
            kill_at("update: before its end is cut off")
        ftruncate(fd, length)

    metadata_updates.updated, ClaimFiles.note, ClaimFiles.put_metadata = on_record, note_and_kill, put_and_kill  # type: ignore[method-assign]
    rewrite.os.pwrite, rewrite.os.ftruncate = write_and_kill, cut_and_kill  # type: ignore[assignment]

    def read(self: Records, uid: str) -> Any:
        uids_read.append(uid)
        if len(uids_read) == 2:  # the transaction that updates the file from the record
            kill_at("update: after commit")
        return real(self, uid)

    Records.read = read  # type: ignore[method-assign]


async def main(folder: Path, number: int) -> None:
    async with running_manager(folder, Net()) as r:
        instrument()
        await r.driver.update_metadata(UID, "net", attributes={"number": number, "text": "y" * (number % 60)})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
