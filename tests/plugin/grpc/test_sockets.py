"""Sockets that only one process serves, that are restored when a person removes them, and that dead processes do not
leave behind.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dra_devkit.localcluster.kubelet.plugins import dial
from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.errors import SocketError
from dra_kubeletplugin.plugin.grpc.registration import Registration
from dra_kubeletplugin.plugin.grpc.server import UnixServer
from dra_kubeletplugin.plugin.grpc.sockets import is_live, remove_hidden, remove_stale, socket_paths
from tests.helpers.waiting import wait_until

INSTANCE = "1-0123abcd"
OTHER = "1-89abcdef"


class SlowRegistration(pb_grpc.RegistrationServicer):
    """GetInfo waits for an event, like a prepare in progress."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.resume = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_RegistrationServicer_to_server(self, server)

    async def GetInfo(self, request: Any, context: Any) -> pb.PluginInfo:
        self.called.set()
        await self.resume.wait()
        return pb.PluginInfo(name="slow")


def registration() -> Registration:
    return Registration("d.example.com", Path("/x"), ("v1.DRAPlugin",), Metrics())


def server(path: Path, token: str = INSTANCE, **options: Any) -> UnixServer:
    return UnixServer(path, token, [registration().add_to], **options)


@contextlib.asynccontextmanager
async def running_server(s: UnixServer) -> AsyncIterator[UnixServer]:
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
    """Creates a socket as a killed process leaves it."""
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


async def test_exactly_one_of_several_processes_that_start_on_one_path_serves(tmp_path: Path) -> None:
    """Another process may check the path between the check and the bind of this process."""
    for _ in range(20):
        servers = [server(tmp_path / "x.sock", f"1-{i:08x}") for i in range(8)]
        results = await asyncio.gather(*(s.start() for s in servers), return_exceptions=True)
        assert sum(r is None for r in results) == 1
        assert all(r is None or isinstance(r, SocketError) for r in results)
        for s, r in zip(servers, results, strict=True):
            if r is None:
                await s.stop()
        assert list(tmp_path.iterdir()) == []


async def test_a_failed_start_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    path.write_text("precious")
    with pytest.raises(SocketError, match="is not a socket"):
        await server(path).start()
    assert [p.name for p in tmp_path.iterdir()] == ["x.sock"]
    assert path.read_text() == "precious"


async def test_a_stop_keeps_the_socket_of_another_instance(tmp_path: Path) -> None:
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


async def test_only_the_owner_may_use_the_socket(tmp_path: Path) -> None:
    s = server(tmp_path / "x.sock", lock_folder=tmp_path)
    await s.start()
    info = (tmp_path / "x.sock").stat()
    assert (info.st_mode & 0o777, s.inode) == (0o600, (info.st_dev, info.st_ino))
    await s.stop()
    assert s.inode is None


# --- removed while it serves ------------------------------------------------------------------------


async def test_a_removed_socket_is_reported_and_restored_while_a_call_continues(tmp_path: Path) -> None:
    path, start_and_wait, existed_at_loss = tmp_path / "x.sock", SlowRegistration(), []
    s = UnixServer(path, INSTANCE, [start_and_wait.add_to], lost=lambda: existed_at_loss.append(path.exists()))
    async with running_server(s), dial(path) as channel:
        call = asyncio.ensure_future(pb_grpc.RegistrationStub(channel).GetInfo(pb.InfoRequest(), timeout=30))
        await start_and_wait.called.wait()
        old_inode = s.inode
        path.unlink()
        await wait_until(path.exists)
        assert existed_at_loss == [False]
        await wait_until(lambda: s.inode != old_inode and not s.fault)
        start_and_wait.resume.set()
        assert (await call).name == "slow", "the call that was in progress"
        assert await name_at(path) == "slow"
    assert list(tmp_path.iterdir()) == []


async def test_a_socket_that_is_removed_again_and_again_leaves_few_servers(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    async with running_server(server(path)) as s:
        for _ in range(5):
            old_inode = s.inode
            path.unlink()
            await wait_until(lambda inode=old_inode: s.inode != inode and not s.fault)
        listening = [line for line in Path("/proc/net/unix").read_text().splitlines() if str(tmp_path) in line]
        assert len(listening) == 4
        assert await name_at(path) == "d.example.com"


async def test_a_socket_whose_folder_was_removed_is_a_fault_until_the_folder_is_restored_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "registry"
    folder.mkdir()
    async with running_server(server(folder / "x.sock", lock_folder=tmp_path)) as s:
        (folder / "x.sock").unlink()
        folder.rmdir()
        await wait_until(lambda: "is not a folder" in s.fault)
        await asyncio.sleep(2.2)  # two more checks
        assert len([r for r in caplog.records if "cannot restore a socket" in r.getMessage()]) == 1
        folder.mkdir()
        await wait_until(lambda: not s.fault)
        assert await name_at(folder / "x.sock") == "d.example.com"


def after_start(action: Callable[[], Awaitable[object]]) -> Callable[[grpc.aio.Server], None]:
    """Returns a service that runs ``action`` between the bind of the hidden socket and its rename."""

    def add(server: grpc.aio.Server) -> None:
        start = server.start

        async def start_and_act() -> None:
            await start()
            await action()

        server.start = start_and_act  # type: ignore[method-assign]

    return add


async def test_a_cancelled_start_leaves_no_socket(tmp_path: Path) -> None:
    has_started = asyncio.Event()

    async def wait_forever() -> None:
        has_started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(UnixServer(tmp_path / "x.sock", INSTANCE, [after_start(wait_forever)]).start())
    await has_started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(tmp_path.iterdir()) == []


async def test_a_server_that_is_stopped_during_its_start_leaves_no_socket(tmp_path: Path) -> None:
    async def stop_other_clients() -> None:
        s.unlink()

    s = UnixServer(tmp_path / "x.sock", INSTANCE, [after_start(stop_other_clients)])
    await s.start()
    assert [p.name for p in tmp_path.iterdir()] == ["x.sock.lock"]
    assert s.inode is None
    await s.stop()


@pytest.mark.parametrize("extra", [0, 1])
async def test_a_hidden_name_may_be_107_bytes_long_with_its_folder(extra: int) -> None:
    with tempfile.TemporaryDirectory() as short:  # pytest's folders may be too long
        folder = Path(short, "x" * (107 - len(f"{short}//.{INSTANCE}a") + extra))
        folder.mkdir()
        s = server(folder / "x.sock")
        if extra:
            with pytest.raises(SocketError, match="no space for a temporary name"):
                await s.start()
        else:
            await s.start()
            await s.stop()
        assert list(folder.iterdir()) == []


async def test_a_socket_of_another_process_on_the_path_is_reported_and_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    async with running_server(server(path)) as s:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other_socket:
            other_socket.bind(str(path))
            other_socket.listen()
            await wait_until(lambda: "is served by another process" in s.fault)
        await wait_until(lambda: not s.fault)
        assert await name_at(path) == "d.example.com"


async def test_a_socket_that_was_removed_intentionally_is_not_restored(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    async with running_server(server(path)) as s:
        s.unlink()
        await asyncio.sleep(1.3)
        assert not path.exists()
        assert s.fault == ""


# --- sockets of dead processes ----------------------------------------------------------------------


def test_the_socket_of_a_dead_instance_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    info = stale_socket(path)
    assert remove_stale(path, info.st_dev, info.st_ino)
    stale_socket(path)
    assert remove_stale(path), "without a known inode, the missing listener is enough"
    assert not remove_stale(path), "the socket is already removed"


def test_a_file_that_is_not_the_socket_of_the_dead_instance_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    info = stale_socket(path)
    assert not remove_stale(path, info.st_dev, info.st_ino + 1), "the path belongs to another process"
    path.unlink()
    path.write_text("precious")
    assert not remove_stale(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as live_socket:
        live_socket.bind(str(path))
        live_socket.listen()
        assert not remove_stale(path, path.lstat().st_dev, path.lstat().st_ino)
    assert path.exists()


def test_hidden_sockets_of_dead_instances_are_removed_and_those_of_running_instances_are_not(tmp_path: Path) -> None:
    for name in (f".{INSTANCE}a", f".{OTHER}b", ".unrelated", "x.sock"):
        stale_socket(tmp_path / name)
    (tmp_path / f".{OTHER}c").write_text("a file")
    assert remove_hidden(tmp_path, lambda token: token == INSTANCE) == [tmp_path / f".{OTHER}b"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f".{INSTANCE}a", ".unrelated", "x.sock", f".{OTHER}c"])
    assert remove_hidden(tmp_path / "nowhere", lambda token: False) == []


def test_a_hidden_socket_before_its_rename_by_another_driver_is_kept(tmp_path: Path) -> None:
    path = tmp_path / f".{OTHER}a"
    with socket.socket(socket.AF_UNIX) as live_socket:
        live_socket.bind(str(path))
        live_socket.listen()
        assert remove_hidden(tmp_path, lambda token: False) == []
    assert remove_hidden(tmp_path, lambda token: False) == [path]


# --- names --------------------------------------------------------------------------------------------------


def short(data: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data.encode()).digest()[:size]).decode().rstrip("=")


@pytest.mark.parametrize("pod", ["", "0123-uid"])
def test_the_longest_name_that_fits_is_used(pod: str) -> None:
    driver = "driver.example.com"
    if pod:
        driver_and_pod = f"{driver}\0{pod}"
        names = [f"{driver}-{pod}-reg.sock", f"{driver}-{short(pod, 8)}-reg.sock", f"dra-{short(driver_and_pod, 16)}-reg.sock"]  # fmt: skip
        dra = [f"dra-{pod}.sock", f"dra-{short(pod, 8)}.sock", short(pod, 8)]
    else:
        names = [f"{driver}-reg.sock", f"dra-{short(driver, 16)}-reg.sock"]
        dra = ["dra.sock", "d"]
    for candidates, name_kind in ((names, "registration"), (dra, "dra")):
        for max_length in range(min(map(len, candidates)), max(map(len, candidates)) + 2):
            long_folder, short_folder = Path("/" + "f" * (107 - max_length - 2)), Path("/o")
            paths = socket_paths(
                *((long_folder, short_folder) if name_kind == "registration" else (short_folder, long_folder)),
                driver,
                pod,
            )
            expected = next(n for n in candidates if len(n) <= max_length)
            assert getattr(paths, name_kind) == long_folder / expected


def test_an_error_reports_by_how_many_bytes_the_shortest_name_is_too_long() -> None:
    last = f"dra-{short('d' * 60, 16)}-reg.sock"
    with pytest.raises(SocketError, match=rf"'{last}' makes it 1 bytes too long"):
        socket_paths(Path("/" + "f" * (107 - len(last) - 1)), Path("/o"), "d" * 60)


def test_a_listener_that_accepts_no_connection_is_live(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with contextlib.ExitStack() as stack:
        busy = stack.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(path))
        busy.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(path))
        assert is_live(path)
    assert not is_live(path)
