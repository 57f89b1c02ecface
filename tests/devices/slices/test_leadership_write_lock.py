"""The write lock lets one instance on a node write slices at a time, across processes, also if the holder is killed or hangs."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from dra_kubeletplugin.devices.slices.leadership import Leadership

HOLD = """
import asyncio, sys
from pathlib import Path
from dra_kubeletplugin.devices.slices.leadership import Leadership

async def main():
    async with Leadership(folder=Path(sys.argv[1])).lock():
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
        async with Leadership(folder=tmp_path).lock():
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

    async def work(leadership: Leadership) -> None:
        nonlocal inside
        for _ in range(5):
            async with leadership.lock():
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(work(Leadership(folder=tmp_path)))


async def test_a_stopped_holder_delays_other_instances_only_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leadership = Leadership(folder=tmp_path, timeout=1)
    async with (
        Leadership(folder=tmp_path).lock(),
        asyncio.timeout(100),
    ):  # The lock waits for its holder once, and not before each of 1000 writes.
        for _ in range(1000):
            async with leadership.lock():
                pass
    assert [r.getMessage() for r in caplog.records] == [
        f"cannot take the slice write lock {tmp_path}: another instance of the plugin has held the lock for more than 1s; continuing without it"
    ]


async def test_work_continues_without_the_lock_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Leadership(folder=tmp_path / "missing").lock():
        pass
    assert "No such file" in caplog.text
    with pytest.raises(ValueError, match="mine"):
        async with Leadership(folder=tmp_path).lock():
            raise ValueError("mine")
    async with asyncio.timeout(30), Leadership(folder=tmp_path).lock():
        pass
