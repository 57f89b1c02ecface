"""Measures what it costs to leave the event loop: CPU time of this process for one operation, inline and through each kind of thread.

``python -m bench.hops`` prints the table. The work is a read of a claim's record, as a repeated prepare does.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.base.threads import LoopExecutor
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import RecordStore
from dra_kubeletplugin.claims.instance_lock import InstanceLock
from dra_kubeletplugin.claims.store.folder import ClaimFolder
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.driver.calls import Calls

TRIES = 5
OPERATIONS = 2_000  # in one try
_RECORD = msgspec.json.encode({"uid": "x" * 36, "devices": [{"pool": "node-1", "device": "d-1"}] * 4})


@dataclass(frozen=True)
class Hop:
    """Microseconds of CPU time for one operation, user and system, all threads: the lowest of several tries."""

    what: str
    cpu: float


def _read() -> object:
    return msgspec.json.decode(_RECORD)


async def _inline() -> None:
    _read()


async def _task() -> None:
    await asyncio.create_task(_inline())


async def _default_executor() -> None:
    await asyncio.get_running_loop().run_in_executor(None, _read)


async def _cost(operation: Callable[[], Awaitable[object]], at_once: int) -> float:
    tries = []
    for _ in range(TRIES):
        start = time.process_time()
        for _ in range(OPERATIONS // at_once):
            if at_once == 1:
                await operation()
            else:
                await asyncio.gather(*(operation() for _ in range(at_once)))
        tries.append((time.process_time() - start) / OPERATIONS * 1e6)
    return min(tries)


async def rows() -> list[Hop]:
    """Measures each way in turn."""
    asyncio.get_running_loop().set_default_executor(LoopExecutor())
    calls = Calls()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        process = InstanceLock(path / "processes")
        process.acquire()
        specs = ClaimSpecs(path / "cdi", "d.example.com")
        records = RecordStore(ClaimFolder(path / "claims", specs, process, "", 0, Metrics()))
        found = await _measured(records, calls)
        await records.close(1)
        process.release()
    return found


async def _measured(records: RecordStore, calls: Calls) -> list[Hop]:
    async def in_record_thread() -> None:
        await records.do(lambda _: _read(), Mode.READ)

    ways: list[tuple[str, Callable[[], Awaitable[object]], int]] = [
        ("on the loop, inline", _inline, 1),
        ("on the loop, in a task", _task, 1),
        ("record thread", in_record_thread, 1),
        ("record thread, 32 in a batch", in_record_thread, 32),
        ("driver's thread", lambda: calls(_read), 1),
        ("loop's executor", _default_executor, 1),
    ]
    return [Hop(what, await _cost(operation, at_once)) for what, operation, at_once in ways]


async def main() -> None:
    print("| one operation | CPU |\n|---|---|")
    for row in await rows():
        print(f"| {row.what} | {row.cpu:.0f} us |")


if __name__ == "__main__":
    asyncio.run(main())
