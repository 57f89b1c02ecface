"""A driver whose hardware is a folder, and which can kill its own process between any two effects.

A device is taken in two steps, one file each, made exclusively: a second holder is a violation, written down where the test
finds it. KILL_AT names a point; the process kills itself there with SIGKILL, once (the first time it gets there after
KILL_SKIP times).
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_kubeletplugin import (
    Claim,
    ContainerEdits,
    Device,
    Driver,
    PreparedClaim,
    PreparedDevice,
    RecoveredClaim,
    RetryableError,
)
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Store
from dra_kubeletplugin.claims import engine as engine_module
from dra_kubeletplugin.kubelet import NodeService

HARDWARE = Path(os.environ["CRASH_HARDWARE"])
KILL_AT = os.environ.get("KILL_AT", "")
DELAY = float(os.environ.get("CRASH_DELAY", "0"))
_skip = int(os.environ.get("KILL_SKIP", "0"))

PREPARE_POINTS = (
    "prepare: before record",
    "prepare: after record",
    "prepare: before hardware",
    "prepare: between two steps of hardware",
    "prepare: after hardware",
    "prepare: before CDI file",
    "prepare: half a CDI file",
    "prepare: after CDI file",
    "prepare: before commit",
    "prepare: after commit",
    "prepare: before reply",
)
UNPREPARE_POINTS = (
    "unprepare: before record",
    "unprepare: after record",
    "unprepare: before CDI file",
    "unprepare: after CDI file",
    "unprepare: before hardware",
    "unprepare: between two steps of hardware",
    "unprepare: after hardware",
    "unprepare: before commit",
    "unprepare: after commit",
    "unprepare: before reply",
)


def reach(point: str) -> None:
    global _skip
    if point != KILL_AT:
        return
    if _skip:
        _skip -= 1
        return
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # a thread may run on for a moment; it must do nothing more


class Crash(Driver):
    name = "crash.example.com"

    def devices(self) -> list[Device]:
        return [Device(f"c-{i}", {"index": i}) for i in range(4)]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        reach("prepare: before hardware")
        for d in claim.devices:
            claim.on_undo("release", device=d.name)
            take(d.name, "a", claim.uid)
            if DELAY:
                time.sleep(DELAY)
            reach("prepare: between two steps of hardware")
            take(d.name, "b", claim.uid)
        reach("prepare: after hardware")
        return [d.prepared(ContainerEdits(env={f"CRASH_{d.name[2:]}": claim.uid})) for d in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        reach("unprepare: before hardware")

    def undo_release(self, claim: PreparedClaim, device: str) -> None:
        give(device, "b", claim.uid)
        reach("unprepare: between two steps of hardware")
        if DELAY:
            time.sleep(DELAY)
        give(device, "a", claim.uid)
        reach("unprepare: after hardware")

    def recover(self) -> list[RecoveredClaim]:
        by_uid: dict[str, list[str]] = {}
        for path in sorted(HARDWARE.glob("*.a")):
            by_uid.setdefault(path.read_text(), []).append(path.stem)
        return [
            RecoveredClaim(
                uid=uid, devices=[PreparedDevice(request="", pool=self.settings.node_name, name=n) for n in names]
            )
            for uid, names in by_uid.items()
        ]


def take(device: str, step: str, uid: str) -> None:
    path = HARDWARE / f"{device}.{step}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        holder = path.read_text()
        (HARDWARE / f"VIOLATION-{device}-{uid}").write_text(f"{uid} took {device}.{step}, which {holder} holds")
        raise RetryableError(f"{device} is held by {holder}") from None
    os.write(fd, uid.encode())
    os.close(fd)


def give(device: str, step: str, uid: str) -> None:
    path = HARDWARE / f"{device}.{step}"
    if path.exists() and path.read_text() in {uid, ""}:
        path.unlink()


# --- points outside the driver: around the framework's own effects ------------------------------------


def around(owner: Any, name: str, before: Callable[..., None], after: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        result = original(*args, **kwargs)
        after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def instrument() -> None:
    """Which operation a transaction holds is told by the function that it is given."""

    def points(items: Any) -> set[str]:
        out = set()
        for operation, _ in items:
            name = operation.__qualname__
            if "_begin.<locals>.begin" in name:
                out.add("prepare: {} record")
            elif "unprepare_one.<locals>.mark" in name:
                out.add("unprepare: {} record")
            elif "Store.save" in name:
                out.add("prepare: {} commit")
            elif "Store.delete" in name:
                out.add("unprepare: {} commit")
        return out

    around(
        Store,
        "_work",
        lambda self, items: [reach(p.format("before")) for p in points(items)],
        lambda self, items: [reach(p.format("after")) for p in points(items)],
    )
    around(
        ClaimSpecs, "write", lambda *a: reach("prepare: before CDI file"), lambda *a: reach("prepare: after CDI file")
    )
    around(
        ClaimSpecs,
        "remove",
        lambda *a: reach("unprepare: before CDI file"),
        lambda *a: reach("unprepare: after CDI file"),
    )
    rename = Path.rename

    def half(self: Path, target: Any) -> Any:
        if ".tmp-" in self.name:
            reach("prepare: half a CDI file")
        return rename(self, target)

    Path.rename = half  # type: ignore[method-assign]
    for method in ("prepare", "unprepare"):
        original = getattr(NodeService, method)

        async def replying(self: Any, request: Any, pb: Any, original: Any = original, method: str = method) -> Any:
            answer = await original(self, request, pb)
            if request.claims:
                reach(f"{method}: before reply")
            return answer

        setattr(NodeService, method, replying)
    assert engine_module.Engine


instrument()
