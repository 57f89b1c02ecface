"""Hardware locks work between tasks, threads and processes. The kernel releases them, and errors name the holder."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Device, Driver, Host
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.telemetry.logs import set_log_fields
from dra_kubeletplugin.driver import attach
from dra_kubeletplugin.driver.hardware_lock import HardwareLock
from dra_kubeletplugin.errors import DriverError, HardwareLockedError
from tests.helpers.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def lock(folder: Path, key: str = "card", timeout: float = 60) -> HardwareLock:
    return HardwareLock(folder, key, timeout)


def test_a_driver_s_lock_is_a_file_in_the_driver_s_folder(tmp_path: Path) -> None:
    class Toy(Driver):
        name = "toy.example.com"

        def devices(self) -> list[Device]:
            return []

    driver = Toy()
    attach(driver, Host(tmp_path), Settings(driver_name=Toy.name, node_name="n", kubelet_root=tmp_path))
    with driver.hardware_lock("0000:17:00.0"):
        assert files(tmp_path / "plugins" / Toy.name / "hardware-locks") == ["0000:17:00.0.lock"]
        with pytest.raises(HardwareLockedError):
            _in_thread(lambda: driver.hardware_lock("0000:17:00.0", timeout=0).__enter__())
        with driver.hardware_lock("0000:18:00.0"):  # a lock for other hardware
            pass


def _in_thread(work: Any) -> None:
    """Runs ``work`` in a thread without the context of the caller."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("key", ["..", "a/b", "ä" * 30, "x" * 200, "with space\n"])
def test_any_text_can_be_a_key(folder: Path, key: str) -> None:
    with lock(folder, key):
        (name,) = files(folder)
        assert "/" not in name
    assert files(folder) == []


@pytest.mark.parametrize(
    ("key", "timeout", "text"),
    [
        ("", 1, "is not the name of a piece of hardware"),
        (b"x", 1, "is not the name of a piece of hardware"),
        ("x" * 201, 1, "at most 200 characters"),
        ("\ud800", 1, "not valid Unicode"),
        ("x", -1, "the timeout is -1, it must be in seconds"),
        ("x", True, "the timeout is True"),
        ("x", "5", "the timeout is '5'"),
        ("x", float("nan"), "the timeout is nan"),
    ],
)
def test_an_invalid_argument_is_rejected(folder: Path, key: Any, timeout: Any, text: str) -> None:
    with pytest.raises(DriverError, match=text):
        HardwareLock(folder, key, timeout)


def test_one_thread_at_a_time_holds_the_lock(folder: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with lock(folder):
                inside += 1
                most = max(most, inside)
                os.sched_yield()
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (most, inside) == (1, 0)
    assert files(folder) == []


async def test_one_task_at_a_time_holds_the_lock_and_the_loop_continues(folder: Path) -> None:
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        for _ in range(3):
            async with lock(folder):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

    await asyncio.gather(*(work() for _ in range(5)))
    assert (most, inside) == (1, 0)


async def test_a_sync_with_on_the_event_loop_is_rejected_immediately(folder: Path) -> None:
    with pytest.raises(DriverError, match=r"hardware_lock\('card'\): write `async with` here"), lock(folder):
        pass


def test_a_call_cannot_acquire_its_lock_twice_but_can_acquire_it_again_later(folder: Path) -> None:
    with lock(folder), pytest.raises(DriverError, match="this call already holds the lock"), lock(folder):
        pass
    with lock(folder):
        pass


def test_the_error_names_the_holder(folder: Path) -> None:
    def holder() -> HardwareLockedError:
        set_log_fields(lambda: {"claim": "default/a", "claim_uid": "u"})
        with lock(folder), pytest.raises(HardwareLockedError) as raised:
            _in_thread(lambda: lock(folder, timeout=0).__enter__())
        return raised.value

    error = contextvars.copy_context().run(holder)  # The copy keeps the fields out of the test process.
    assert str(error) == f"hardware 'card' is locked by process {os.getpid()} for claim default/a for more than 0 s"
    assert error.code == "DRA-E131"


def test_a_lock_file_that_cannot_be_created_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HardwareLockedError, match=r"cannot be taken: .*File exists"), lock(tmp_path / "file"):
        pass


def test_an_exception_releases_the_lock(folder: Path) -> None:
    with pytest.raises(ValueError, match="failed"), lock(folder):
        raise ValueError("failed")
    with lock(folder, timeout=0):
        pass


_HOLD = """
import sys, time
from pathlib import Path
from dra_kubeletplugin.driver.hardware_lock import HardwareLock
with HardwareLock(Path(sys.argv[1]), "card", 60):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_process_waits_for_another_process_and_a_kill_releases_the_lock(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(folder)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(HardwareLockedError, match=f"locked by process {holder.pid} for more than 0.1 s"):
            lock(folder, timeout=0.1).__enter__()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert files(folder) == ["card.lock"]
        with lock(folder):
            pass
        assert files(folder) == []


async def test_a_waiting_task_acquires_the_lock_after_its_file_was_replaced(folder: Path) -> None:
    """The holder deletes the file at its end. The waiting task then locks the new file, and not the deleted one."""
    first, second, third = lock(folder), lock(folder), lock(folder)
    with pytest.raises(HardwareLockedError):
        async with first:
            waiting = asyncio.create_task(second.__aenter__())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            raise HardwareLockedError("x")
    await wait_until(waiting.done, "the second to have the lock")
    with pytest.raises(HardwareLockedError):
        await asyncio.to_thread(lambda: HardwareLock(folder, "card", 0).__enter__())
    second.release()
    second.release()
    async with third:
        assert files(folder) == ["card.lock"]


async def test_a_shared_lock_object_admits_one_thread_or_task_at_a_time(folder: Path) -> None:
    shared = lock(folder)
    inside, most = 0, 0

    def change(by: int) -> None:
        nonlocal inside, most
        inside += by
        most = max(most, inside)

    def work() -> None:
        for _ in range(5):
            with shared:
                change(1)
                os.sched_yield()
                change(-1)

    async def task() -> None:
        for _ in range(3):
            async with shared:
                change(1)
                await asyncio.sleep(0)
                change(-1)

    await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)), task(), task())
    assert (most, inside) == (1, 0)
    assert files(folder) == []
    with pytest.raises(DriverError, match="this call already holds the lock"):
        async with shared, shared:
            pass


async def test_a_shared_lock_object_held_by_another_call_is_not_held_by_this_call(folder: Path) -> None:
    """This call used the object before. The framework's lock for a shared step still waits for the call that holds the lock."""
    shared = lock(folder)
    async with shared:
        pass
    holder = contextvars.Context().run(asyncio.get_running_loop().create_task, shared.__aenter__())
    await holder
    with pytest.raises(HardwareLockedError, match="for more than 0 s"):
        async with HardwareLock(folder, "card", 0, of_step=True):
            pass
    shared.release()


async def test_a_cancelled_or_failed_wait_closes_its_file(folder: Path) -> None:
    def open_files() -> int:
        return sum(p.resolve().name == "card.lock" for p in Path("/proc/self/fd").iterdir())

    async with lock(folder):
        waiting = asyncio.create_task(lock(folder).__aenter__())
        await wait_until(lambda: open_files() == 2, "the task to wait")
        waiting.cancel()
        await asyncio.wait([waiting])
        with pytest.raises(HardwareLockedError):
            _in_thread(lambda: lock(folder, timeout=0).__enter__())
        assert open_files() == 1
    assert open_files() == 0


def test_a_waiting_call_gets_the_lock_also_if_its_folder_is_removed_meanwhile(folder: Path) -> None:
    acquired = threading.Event()

    def wait_for_it() -> None:
        with lock(folder):
            acquired.set()

    with lock(folder):
        waiter = threading.Thread(target=wait_for_it)
        waiter.start()
        (file,) = folder.iterdir()
        file.unlink()
        folder.rmdir()
    assert acquired.wait(60)
    waiter.join()
