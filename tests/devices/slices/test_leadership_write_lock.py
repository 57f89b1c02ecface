"""Instances on one node write slices in turn: across processes, whatever becomes of the one that has it."""

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
    async with WriteLock(Path(sys.argv[1])).taken():
        print("has it", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


async def test_a_turn_lasts_until_the_process_ends_that_has_it(tmp_path: Path) -> None:
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLD, str(tmp_path), **pipes)
    assert other.stdout
    assert await other.stdout.readline() == b"has it\n"

    async def take() -> float:
        async with WriteLock(tmp_path).taken():
            return time.monotonic()

    waiting = asyncio.create_task(take())
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    killed = time.monotonic()
    other.kill()
    assert await asyncio.wait_for(waiting, 30) > killed
    await other.wait()


async def test_of_many_one_has_the_turn(tmp_path: Path) -> None:
    inside = 0

    async def work(turn: WriteLock) -> None:
        nonlocal inside
        for _ in range(5):
            async with turn.taken():
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(work(WriteLock(tmp_path)))


async def test_an_instance_that_was_stopped_in_the_middle_silences_nobody_for_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turn = WriteLock(tmp_path, timeout=1)
    async with (
        WriteLock(tmp_path).taken(),
        asyncio.timeout(100),
    ):  # it is waited for once, and not before each of 1000 writes
        for _ in range(1000):
            async with turn.taken():
                pass
    assert [r.getMessage() for r in caplog.records] == [
        f"cannot take the slice write lock {tmp_path}: another instance of the plugin has held the lock for more than 1s; continuing without it"
    ]


async def test_without_the_folder_work_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with WriteLock(tmp_path / "missing").taken():
        pass
    assert "No such file" in caplog.text
    with pytest.raises(ValueError, match="mine"):
        async with WriteLock(tmp_path).taken():
            raise ValueError("mine")
    async with asyncio.timeout(30), WriteLock(tmp_path).taken():
        pass
