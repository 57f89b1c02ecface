"""Sockets that one process serves, that come back when somebody removes them, and that the dead do not leave for good."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.errors import SocketError
from dra_kubeletplugin.localcluster.kubelet.plugins import dial
from dra_kubeletplugin.plugin.grpc import Registration, UnixServer, remove_hidden, remove_stale
from dra_kubeletplugin.plugin.grpc.path_lock import PathLock
from tests.helpers.crash.harness import ROOT
from tests.helpers.waiting import wait_until

INSTANCE = "1-0123abcd"
OTHER = "1-89abcdef"


class Slow(pb_grpc.RegistrationServicer):
    """GetInfo waits until it may answer, like a prepare under way."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.go_on = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_RegistrationServicer_to_server(self, server)

    async def GetInfo(self, request: Any, context: Any) -> pb.PluginInfo:
        self.called.set()
        await self.go_on.wait()
        return pb.PluginInfo(name="slow")


def registration() -> Registration:
    return Registration("d.example.com", Path("/x"), ("v1.DRAPlugin",), Metrics())


def server(path: Path, token: str = INSTANCE, **options: Any) -> UnixServer:
    return UnixServer(path, token, [registration().add_to], **options)


@contextlib.asynccontextmanager
async def kept(s: UnixServer) -> AsyncIterator[UnixServer]:
    await s.start()
    task = asyncio.create_task(s.keep())
    try:
        yield s
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait({task})
        await s.stop()


async def name_at(path: Path) -> str:
    async with dial(path) as channel:
        info = await pb_grpc.RegistrationStub(channel).GetInfo(pb.InfoRequest(), timeout=30)
        return str(info.name)


def stale_socket(path: Path) -> os.stat_result:
    """What a process leaves that was killed."""
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    return path.lstat()


# --- one process for a path -------------------------------------------------------------------------


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    stale_socket(path)
    first = server(path)
    await first.start()
    with pytest.raises(SocketError, match="is served by another process"):
        await server(path, OTHER).start()
    assert await name_at(path) == "d.example.com"
    await first.stop()
    assert list(tmp_path.iterdir()) == []


async def test_of_processes_that_start_together_on_one_path_exactly_one_does(tmp_path: Path) -> None:
    """Between the look whether a path is free and its taking another process may do the same."""
    for _ in range(20):
        servers = [server(tmp_path / "x.sock", f"1-{i:08x}") for i in range(8)]
        results = await asyncio.gather(*(s.start() for s in servers), return_exceptions=True)
        assert sum(r is None for r in results) == 1
        assert all(r is None or isinstance(r, SocketError) for r in results)
        for s, r in zip(servers, results, strict=True):
            if r is None:
                await s.stop()
        assert list(tmp_path.iterdir()) == []


LOCKING = """
import sys, time
from pathlib import Path
from dra_kubeletplugin.plugin.grpc.path_lock import PathLock
lock = PathLock(Path(sys.argv[1]), sys.argv[2])
while time.time() < float(sys.argv[3]):
    pass
print(int(lock.acquire()), flush=True)
sys.stdin.read()
"""


@pytest.mark.full
def test_of_real_processes_exactly_one_gets_a_lock_and_a_killed_one_s_is_taken_over(tmp_path: Path) -> None:
    import time

    path = tmp_path / "x.lock"
    for _ in range(3):
        at = str(time.time() + 1.5)
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        processes = [
            subprocess.Popen([sys.executable, "-c", LOCKING, str(path), f"1-{i:08x}", at], env=env, stdin=-1, stdout=-1, text=True)
            for i in range(3)
        ]  # fmt: skip
        got = [p.stdout.readline().strip() for p in processes if p.stdout]
        for p in processes:
            p.send_signal(signal.SIGKILL)
            p.communicate()
        assert sorted(got) == ["0", "0", "1"]
        assert [p.name for p in tmp_path.iterdir()] == ["x.lock"], "the killed one's file, which the next takes over"


def test_a_lock_is_given_up_with_its_file_and_never_with_another_s(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    first = PathLock(path, INSTANCE)
    assert first.acquire()
    assert not PathLock(path, OTHER).acquire()
    path.unlink()
    second = PathLock(path, OTHER)
    assert second.acquire()
    first.release()
    assert path.exists()
    second.release()
    assert list(tmp_path.iterdir()) == []


async def test_a_start_that_fails_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    path.write_text("precious")
    with pytest.raises(SocketError, match="is not a socket"):
        await server(path).start()
    assert [p.name for p in tmp_path.iterdir()] == ["x.sock"]
    assert path.read_text() == "precious"


async def test_stopping_leaves_another_instance_s_socket_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    first = server(path)
    await first.start()
    path.unlink()
    (tmp_path / "x.sock.lock").unlink()
    second = server(path, OTHER)
    await second.start()
    await first.stop()
    assert await name_at(path) == "d.example.com"
    await second.stop()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketError, match="nowhere is not a folder"):
        await server(tmp_path / "nowhere" / "x.sock").start()


async def test_a_socket_is_its_owner_s_alone(tmp_path: Path) -> None:
    s = server(tmp_path / "x.sock", lock_folder=tmp_path)
    await s.start()
    info = (tmp_path / "x.sock").stat()
    assert (info.st_mode & 0o777, s.inode) == (0o600, (info.st_dev, info.st_ino))
    await s.stop()
    assert s.inode is None


# --- removed while it serves ------------------------------------------------------------------------


async def test_a_removed_socket_is_reported_and_comes_back_while_a_call_goes_on(tmp_path: Path) -> None:
    path, slow, told = tmp_path / "x.sock", Slow(), []
    s = UnixServer(path, INSTANCE, [slow.add_to], lost=lambda: told.append(path.exists()))
    async with kept(s), dial(path) as channel:
        call = asyncio.ensure_future(pb_grpc.RegistrationStub(channel).GetInfo(pb.InfoRequest(), timeout=30))
        await slow.called.wait()
        before = s.inode
        path.unlink()
        await wait_until(path.exists)
        assert told == [False]
        await wait_until(lambda: s.inode != before and not s.fault)
        slow.go_on.set()
        assert (await call).name == "slow", "the call that was under way"
        assert await name_at(path) == "slow"
    assert list(tmp_path.iterdir()) == []


async def test_a_socket_whose_folder_went_is_a_fault_until_the_folder_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    folder.mkdir()
    async with kept(server(folder / "x.sock", lock_folder=tmp_path)) as s:
        (folder / "x.sock").unlink()
        folder.rmdir()
        await wait_until(lambda: "is not a folder" in s.fault)
        folder.mkdir()
        await wait_until(lambda: not s.fault)
        assert await name_at(folder / "x.sock") == "d.example.com"


async def test_a_socket_that_cannot_be_restored_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.plugin.grpc.server._LOOK", 0.02)
    folder = tmp_path / "registry"
    folder.mkdir()
    async with kept(server(folder / "x.sock", lock_folder=tmp_path)) as s:
        looks = itertools.count()
        bind = s._bind

        async def counted() -> None:
            next(looks)
            await bind()

        monkeypatch.setattr(s, "_bind", counted)
        (folder / "x.sock").unlink()
        folder.rmdir()
        await wait_until(lambda: next(looks) > 20)
    assert len([r for r in caplog.records if "cannot restore a socket" in r.getMessage()]) == 1


async def test_a_start_that_is_cancelled_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    def add(server: grpc.aio.Server) -> None:
        start = server.start

        async def slow() -> None:
            await start()
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(server, "start", slow)

    task = asyncio.create_task(UnixServer(tmp_path / "x.sock", INSTANCE, [add]).start())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(tmp_path.iterdir()) == []


async def test_a_socket_that_another_process_took_is_reported_and_not_fought_over(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    async with kept(server(path)) as s:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            other.listen()
            await wait_until(lambda: "is served by another process" in s.fault)
        await wait_until(lambda: not s.fault)
        assert await name_at(path) == "d.example.com"


@pytest.mark.full
async def test_a_socket_that_is_removed_again_and_again_comes_back_each_time(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    async with kept(server(path)):
        for _ in range(3):
            path.unlink()
            await wait_until(path.exists)
            assert await name_at(path) == "d.example.com"


async def test_what_was_removed_on_purpose_is_not_restored(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    async with kept(server(path)) as s:
        s.unlink()
        await asyncio.sleep(1.3)
        assert not path.exists()
        assert s.fault == ""


async def test_the_registration_counts_as_lost_with_its_socket() -> None:
    r = registration()
    await r.NotifyRegistrationStatus(pb.RegistrationStatus(plugin_registered=True), None)
    assert r.registered.is_set()
    r.lost()
    assert not r.registered.is_set()
    assert r.error == "the registration socket was removed"


# --- what the dead left -----------------------------------------------------------------------------


def test_a_dead_instance_s_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    info = stale_socket(path)
    assert remove_stale(path, info.st_dev, info.st_ino)
    stale_socket(path)
    assert remove_stale(path), "where its inode is not known, that nobody listens is enough"
    assert not remove_stale(path), "there is none any more"


def test_what_is_not_the_dead_instance_s_socket_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    info = stale_socket(path)
    assert not remove_stale(path, info.st_dev, info.st_ino + 1), "somebody else's by now"
    path.unlink()
    path.write_text("precious")
    assert not remove_stale(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        assert not remove_stale(path, path.lstat().st_dev, path.lstat().st_ino)
    assert path.exists()


def test_hidden_sockets_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    for name in (f".{INSTANCE}a", f".{OTHER}b", ".unrelated", "x.sock"):
        stale_socket(tmp_path / name)
    (tmp_path / f".{OTHER}c").write_text("a file")
    assert remove_hidden(tmp_path, lambda token: token == INSTANCE) == [tmp_path / f".{OTHER}b"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f".{INSTANCE}a", ".unrelated", "x.sock", f".{OTHER}c"])
    assert remove_hidden(tmp_path / "nowhere", lambda token: False) == []


def test_a_hidden_socket_that_another_driver_is_about_to_name_stays(tmp_path: Path) -> None:
    path = tmp_path / f".{OTHER}a"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        assert remove_hidden(tmp_path, lambda token: False) == []
    assert remove_hidden(tmp_path, lambda token: False) == [path]
