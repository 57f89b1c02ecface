"""An instance lives as long as it can touch hardware, is never taken for dead before, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_kubeletplugin import Claim, Device, Driver, PreparedDevice
from dra_kubeletplugin.claims.instances import InstanceLock, OwnedSocket
from dra_kubeletplugin.plugin.instances import is_newest
from dra_kubeletplugin.testing import node_with
from tests.helpers.crash.harness import DRIVER, ROOT, node_harness
from tests.helpers.waiting import wait_until
from tests.plugin.test_node import allocate, prepare_call, ref

STARTS = 400
STARTER = """
import sys
from pathlib import Path
from dra_kubeletplugin.claims.instances import InstanceLock

for _ in range(int(sys.argv[2])):
    lock = InstanceLock(Path(sys.argv[1]))
    lock.acquire()
    lock.reap_dead()
    print(lock.id, flush=True)
    sys.stdin.readline()  # it lives until it has been looked at
    lock.release()
"""


@pytest.mark.full
@pytest.mark.crash
def test_of_400_starts_beside_a_cleaner_none_is_taken_for_dead(tmp_path: Path) -> None:
    cleaner, stop = InstanceLock(tmp_path), threading.Event()
    cleaner.acquire()

    def clean() -> None:
        while not stop.is_set():
            cleaner.reap_dead()

    threads = [threading.Thread(target=clean) for _ in range(2)]
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, str(tmp_path), str(STARTS // 2)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, bufsize=1, env={"PYTHONPATH": str(ROOT / "src")},
        )
        for _ in range(2)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    try:
        dead = []
        for _ in range(STARTS // 2):
            for starter in starters:
                assert starter.stdin
                assert starter.stdout
                id = starter.stdout.readline().strip()
                if not cleaner.alive(id):
                    dead.append(id)
                starter.stdin.write("\n")
                starter.stdin.flush()
        assert dead == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for starter in starters:
            starter.communicate(timeout=60)
        cleaner.release()
    assert list(tmp_path.iterdir()) == []


class Holding(Driver):
    """A vendor's library that blocks in prepare, in a thread that nobody can stop."""

    name = "holding.example.com"
    inside = threading.Event()
    go = threading.Event()

    def devices(self) -> list[Device]:
        return [Device("h-0")]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        self.inside.set()
        self.go.wait(110)  # longer than its test may take
        return [d.prepared() for d in claim.devices]


async def test_the_mark_of_life_lasts_until_the_last_thread_has_left_the_hardware() -> None:
    async with node_with(Holding, shutdown_grace_period=0.1) as node:
        found = await allocate(node, "c", [{"pool": "node-1", "device": "h-0"}])
        call = asyncio.create_task(prepare_call(node, ref(found)))
        assert await asyncio.to_thread(Holding.inside.wait, 60)
        id, folder = node.plugin.process.id, node.plugin.process.folder
        await node.stop()
        await asyncio.gather(call, return_exceptions=True)
        other = InstanceLock(folder)
        assert other.alive(id)
        assert other.reap_dead() == []
        assert other.alive(id)
        Holding.go.set()
        await wait_until(lambda: not other.alive(id))
        assert list(folder.iterdir()) == []
        await node.start()
        # What was left half done is undone, and the claim can be prepared.
        answer = await prepare_call(node, ref(found))
        assert answer.claims[found["metadata"]["uid"]].error == ""


def is_ending(pid: int) -> bool:
    """Whether the kernel has begun to end a process: its threads do nothing more, and its locks go before we are told of it."""
    try:
        flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(flags) & 0x4)  # PF_EXITING


@pytest.mark.crash
async def test_dra_run_keeps_its_mark_while_a_thread_is_in_the_hardware_and_leaves_none_at_its_end(
    tmp_path: Path,
) -> None:
    async with node_harness(tmp_path) as b:
        process = await b.start(SHUTDOWN_GRACE_PERIOD="1s")
        held = b.hold_prepare()
        await b.apply_pod("pod")
        await b.until("the hardware half taken", lambda: b.taken() == ["c-0.a"])
        folder = b.node.kubelet_root / "plugins" / DRIVER / "processes"
        other = InstanceLock(folder)
        (mark,) = folder.iterdir()
        id = mark.name.removesuffix(".lock")
        process.send_signal(signal.SIGTERM)
        while process.returncode is None:
            assert other.alive(id) or is_ending(process.pid)
            await asyncio.sleep(0.01)
        assert not other.alive(id)
        held.unlink()
        b.plugins.clear()
        await b.start()
        assert not mark.exists()
        await b.cluster.wait_running("pod")
        b.check_quiet()


# --- odd files beside the marks ---------------------------------------------------------------------


def write(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None  # type: ignore[func-returns-value]


def deep(path: Path) -> None:
    path.write_bytes(b'{"sockets":' + b"[" * 50_000)


ODD: dict[str, Callable[[Path], None]] = {
    "empty": write(b""),
    "not JSON": write(b"\xff\xfe{"),
    "a list": write(b"[]"),
    "wrong types": write(b'{"since": "x", "records": 5, "sockets": 7}'),
    "a socket without a path": write(b'{"sockets": [{}]}'),
    "a path with a NUL": write(b'{"sockets": [{"path": "a\\u0000b"}]}'),
    "a path that is too long": write(b'{"sockets": [{"path": "/' + b"x" * 300 + b'"}]}'),
    "somebody's file": write(b'{"sockets": [{"path": "/etc/hostname"}, {"path": "/etc"}]}'),
    "nested without end": deep,
    "a directory": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("/nonexistent/x"),
}


@pytest.mark.parametrize("name", ["1-deadbeef.lock", "x.lock", ".1-deadbeef.new", "notes.txt"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_malformed_files_beside_the_marks_end_no_start_and_are_nobody_s_life(
    odd: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    odd(tmp_path / name)
    lock = InstanceLock(tmp_path)
    lock.acquire()
    from dra_kubeletplugin.plugin.grpc.sockets import remove_stale

    for left in lock.reap_dead():
        assert not remove_stale(Path(left.path), left.device or None, left.inode or None)
    assert lock.others() == []
    assert is_newest(lock)
    assert not lock.alive(name.removesuffix(".lock"))
    assert Path("/etc/hostname").exists()
    lock.release()


def test_what_a_reader_finds_is_whole_however_often_it_is_written(tmp_path: Path) -> None:
    lock, other = InstanceLock(tmp_path), InstanceLock(tmp_path)
    lock.acquire()
    lock.note_records(1)
    stop = threading.Event()

    def rewrite(size: int) -> None:
        while not stop.is_set():
            lock.claim_sockets([OwnedSocket("/" + "x" * size)] * (size // 10))

    threads = [threading.Thread(target=rewrite, args=(size,)) for size in (10, 90)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(500):
            (seen,) = other.others()
            assert seen.generation == 1
            assert seen.since > 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        lock.release()


def test_a_note_that_is_written_while_the_mark_goes_is_written_into_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, other = InstanceLock(tmp_path), tmp_path / "records.journal"
    lock.acquire()
    opened: list[int] = []

    def go() -> None:
        lock.release()
        opened.append(os.open(other, os.O_RDWR | os.O_CREAT))  # the lowest number that is free: that of the mark

    going, crc32 = threading.Thread(target=go), zlib.crc32

    def meanwhile(data: bytes) -> int:
        monkeypatch.undo()
        going.start()
        going.join(0.2)  # it waits, or is done
        return crc32(data)

    monkeypatch.setattr(zlib, "crc32", meanwhile)
    lock.note_records(1)
    going.join()
    os.close(opened[0])
    assert other.read_bytes() == b""
    lock.claim_sockets([])  # and nothing after it
    assert list(tmp_path.iterdir()) == [other]


async def test_hidden_sockets_and_sockets_of_the_killed_go_and_those_of_the_living_stay() -> None:
    async with node_with(Holding) as node:
        living = node.plugin.process.id
        await node.stop()
        folder, registry = node.settings.plugin_dir, node.settings.registry_dir
        dead = InstanceLock(folder / "processes")
        dead.acquire()
        alive = InstanceLock(folder / "processes")
        alive.acquire()
        names = [folder / f".{dead.id}a", registry / f".{dead.id}b", folder / f".{living}a", folder / "left.sock"]
        kept = [folder / f".{alive.id}a", registry / f".{alive.id}b", folder / "theirs.sock"]
        for path in names + kept:
            with socket.socket(socket.AF_UNIX) as s:
                s.bind(os.fsencode(path))
        info = (folder / "left.sock").stat()
        dead.claim_sockets(
            [
                OwnedSocket(str(folder / "left.sock"), info.st_dev, info.st_ino),
                OwnedSocket(str(folder / "theirs.sock"), 1, 1),
            ]
        )
        os.close(dead._fd)  # as the kernel does for a killed process
        await node.start()
        assert [p.name for p in names if p.exists()] == []
        assert [p.name for p in kept if not p.exists()] == []
        for path in kept:
            path.unlink()
        alive.release()
