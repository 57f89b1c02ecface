"""The write lock lets one instance on a node write slices at a time, across processes, also if the holder is killed or hangs."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from dra_kubeletplugin.devices.slices.leadership import WriteLock

HOLD = """
import asyncio, sys
from pathlib import Path
from dra_kubeletplugin.devices.slices.leadership import WriteLock

async def main():
    async with WriteLock(Path(sys.argv[1])).held():
        print("has it", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


async def test_a_process_holds_the_lock_until_it_ends(tmp_path: Path) -> None:
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLD, str(tmp_path), **pipes)
    assert holder.stdout
    assert await holder.stdout.readline() == b"has it\n"

    async def acquire() -> float:
        async with WriteLock(tmp_path).held():
            return time.monotonic()

    waiting = asyncio.create_task(acquire())
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    killed = time.monotonic()
    holder.kill()
    assert await asyncio.wait_for(waiting, 30) > killed
    await holder.wait()


async def test_one_of_many_instances_holds_the_lock(tmp_path: Path) -> None:
    inside = 0

    async def work(lock: WriteLock) -> None:
        nonlocal inside
        for _ in range(5):
            async with lock.held():
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(work(WriteLock(tmp_path)))


async def test_a_stopped_holder_delays_other_instances_only_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = WriteLock(tmp_path, timeout=1)
    async with (
        WriteLock(tmp_path).held(),
        asyncio.timeout(100),
    ):  # The lock waits for its holder once, and not before each of 1000 writes.
        for _ in range(1000):
            async with lock.held():
                pass
    assert [r.getMessage() for r in caplog.records] == [
        f"cannot take the slice write lock {tmp_path}: another instance of the plugin has held the lock for more than 1s; continuing without it"
    ]


async def test_work_continues_without_the_lock_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with WriteLock(tmp_path / "missing").held():
        pass
    assert "No such file" in caplog.text
    with pytest.raises(ValueError, match="mine"):
        async with WriteLock(tmp_path).held():
            raise ValueError("mine")
    async with asyncio.timeout(30), WriteLock(tmp_path).held():
        pass
