"""The server on a Unix socket, with a fake gRPC server: names, faults, and the order of a stop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar, cast

import grpc.aio
import pytest

from dra_kubeletplugin.errors import SocketError
from dra_kubeletplugin.plugin.grpc import UnixServer, remove_hidden, socket_paths
from dra_kubeletplugin.plugin.grpc import server as module
from dra_kubeletplugin.plugin.grpc import sockets as sockets_module
from dra_kubeletplugin.plugin.grpc.sockets import hidden_name, is_live
from tests.helpers.waiting import wait_until

INSTANCE = "1-0123abcd"


class FakeGrpcServer:
    """A fake gRPC server; ``on_start`` runs during its start."""

    instances: ClassVar[list[FakeGrpcServer]] = []
    on_start: ClassVar[Callable[[FakeGrpcServer], None] | None] = None

    def __init__(self, options: Any) -> None:
        self.options = dict(options)
        self.stopped: list[float | None] = []
        self.socket = socket.socket(socket.AF_UNIX)
        FakeGrpcServer.instances.append(self)

    def add_insecure_port(self, target: str) -> None:
        self.name = Path(target.removeprefix("unix:"))
        self.socket.bind(str(self.name))
        self.socket.listen()

    async def start(self) -> None:
        if FakeGrpcServer.on_start:
            FakeGrpcServer.on_start(self)

    async def stop(self, grace: float | None) -> None:
        self.stopped.append(grace)
        self.socket.close()


@pytest.fixture(autouse=True)
def fake_grpc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(FakeGrpcServer, "instances", [])
    monkeypatch.setattr(FakeGrpcServer, "on_start", None)
    monkeypatch.setattr(grpc.aio, "server", FakeGrpcServer)
    monkeypatch.setattr(module, "_LOOK", 0.001)
    yield
    for grpc_server in FakeGrpcServer.instances:
        grpc_server.socket.close()


@contextlib.asynccontextmanager
async def running_server(path: Path, **options: Any) -> AsyncIterator[UnixServer]:
    server = UnixServer(path, INSTANCE, [], **options)
    await server.start()
    task = asyncio.create_task(server.keep())
    try:
        yield server
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait({task})
        await server.stop()


async def test_the_grpc_server_shares_no_port_and_accepts_all_keepalive_pings(tmp_path: Path) -> None:
    async with running_server(tmp_path / "x.sock"):
        assert FakeGrpcServer.instances[0].options == {
            "grpc.so_reuseport": 0,
            "grpc.http2.min_ping_interval_without_data_ms": 1000,
            "grpc.http2.max_ping_strikes": 0,
        }


async def test_only_the_owner_may_use_the_socket(tmp_path: Path) -> None:
    old_umask = os.umask(0)
    try:
        async with running_server(tmp_path / "x.sock"):
            assert stat.S_IMODE((tmp_path / "x.sock").stat().st_mode) == 0o600
    finally:
        os.umask(old_umask)


async def test_a_removed_socket_is_served_by_a_new_server_and_the_oldest_of_17_servers_is_stopped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.sock"
    servers_at_loss: list[int] = []
    async with running_server(path, lost=lambda: servers_at_loss.append(len(FakeGrpcServer.instances))) as server:
        for number in range(2, 19):
            path.unlink()
            await wait_until(
                lambda number=number: len(FakeGrpcServer.instances) == number and path.exists() and not server.fault
            )
            info = path.stat()
            assert server.inode == (info.st_dev, info.st_ino)
            stopped_servers = [grpc_server for grpc_server in FakeGrpcServer.instances if grpc_server.stopped]
            assert stopped_servers == FakeGrpcServer.instances[: max(0, number - 16)]
            assert all(grpc_server.stopped == [None] for grpc_server in stopped_servers)
        assert servers_at_loss == list(range(1, 18)), "each loss is reported before the socket is restored"
        assert [grpc_server.name.name for grpc_server in FakeGrpcServer.instances] == [
            f".{INSTANCE}{chr(ord('a') + i)}" for i in range(18)
        ]
    assert [grpc_server.stopped for grpc_server in FakeGrpcServer.instances[2:]] == [[None]] * 16
    assert list(tmp_path.iterdir()) == []


def test_hidden_names_begin_again_after_26_names() -> None:
    assert [hidden_name("t", n) for n in (0, 1, 25, 26, 27)] == [".ta", ".tb", ".tz", ".ta", ".tb"]


async def test_a_stop_uses_the_grace_period_of_the_first_call_and_stops_once(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    server = UnixServer(path, INSTANCE, [])
    await server.start()
    await server.stop(0.5)
    await server.stop(0.7)
    assert FakeGrpcServer.instances[0].stopped == [0.5]
    other_server = UnixServer(path, "1-89abcdef", [])
    await other_server.start()
    await other_server.stop()
    assert list(tmp_path.iterdir()) == []


async def test_a_server_that_is_stopped_during_its_start_leaves_no_socket(tmp_path: Path) -> None:
    server = UnixServer(tmp_path / "x.sock", INSTANCE, [])
    FakeGrpcServer.on_start = lambda grpc_server: server.unlink()
    await server.start()
    assert [p.name for p in tmp_path.iterdir()] == ["x.sock.lock"]
    assert server.inode is None
    await server.stop()


async def test_a_socket_that_was_closed_intentionally_is_not_restored_and_is_no_fault(tmp_path: Path) -> None:
    servers_at_loss: list[int] = []
    async with running_server(tmp_path / "x.sock", lost=lambda: servers_at_loss.append(1)) as server:
        server.unlink()
        for _ in range(5):
            await asyncio.sleep(0.002)
        assert (servers_at_loss, server.fault, len(FakeGrpcServer.instances)) == ([], "", 1)


@pytest.mark.parametrize("extra", [0, 1])
async def test_a_hidden_name_may_be_107_bytes_long_with_its_folder(extra: int, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * (107 - len(bytes(tmp_path)) - len(f"//.{INSTANCE}a") + extra))
    folder.mkdir()
    server = UnixServer(folder / "x.sock", INSTANCE, [])
    if extra:
        with pytest.raises(SocketError, match="no space for a temporary name"):
            await server.start()
    else:
        await server.start()
        await server.stop()
    assert list(folder.iterdir()) == []


# --- faults -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [RuntimeError("odd"), OSError(5, "Input/output error")])
async def test_a_server_that_cannot_start_leaves_no_files_and_reports_the_reason(
    tmp_path: Path, fault: Exception
) -> None:
    def fail(grpc_server: FakeGrpcServer) -> None:
        raise fault

    FakeGrpcServer.on_start = fail
    with pytest.raises(SocketError, match=r"x\.sock cannot be served: .*(odd|Input/output)"):
        await UnixServer(tmp_path / "x.sock", INSTANCE, []).start()
    assert list(tmp_path.iterdir()) == []
    assert FakeGrpcServer.instances[0].stopped == [None]


async def test_a_hidden_socket_that_another_driver_removed_as_stale_is_created_again(tmp_path: Path) -> None:
    """The other driver checked the socket after its bind and before its first listen."""

    def remove_socket(grpc_server: FakeGrpcServer) -> None:
        if len(FakeGrpcServer.instances) < 3:
            grpc_server.name.unlink()

    FakeGrpcServer.on_start = remove_socket
    server = UnixServer(tmp_path / "x.sock", INSTANCE, [])
    await server.start()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.sock", "x.sock.lock"]
    assert [grpc_server.stopped for grpc_server in FakeGrpcServer.instances] == [[None], [None], []]
    await server.stop()
    FakeGrpcServer.on_start = lambda grpc_server: grpc_server.name.unlink()
    with pytest.raises(SocketError, match="No such file"):
        await UnixServer(tmp_path / "y.sock", INSTANCE, []).start()


async def test_a_folder_without_write_permission_is_the_reported_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(grpc_server: FakeGrpcServer) -> None:
        raise OSError(13, "Permission denied")

    FakeGrpcServer.on_start = fail
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(SocketError, match="cannot be written by uid"):
        await UnixServer(tmp_path / "x.sock", INSTANCE, []).start()


async def test_a_path_that_cannot_be_read_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SocketError, match="cannot be inspected: Not a directory"):
        await UnixServer(tmp_path / "file" / "x.sock", INSTANCE, [], tmp_path).start()
    assert FakeGrpcServer.instances == []
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (RuntimeError("odd"), "socket {0} was removed by another process, and cannot be restored: {0} cannot be served: RuntimeError: odd"),
        (ValueError("odd"), "socket {0} was removed by another process, and cannot be restored: ValueError: odd"),
    ],
)  # fmt: skip
async def test_the_reason_of_a_failed_restoration_is_reported_until_the_socket_is_restored(
    tmp_path: Path, fault: Exception, message: str
) -> None:
    def fail(grpc_server: FakeGrpcServer) -> None:
        raise fault

    path = tmp_path / "x.sock"
    servers_at_loss: list[int] = []
    async with running_server(path, lost=lambda: servers_at_loss.append(1)) as server:
        FakeGrpcServer.on_start = fail
        path.unlink()
        await wait_until(lambda: len(FakeGrpcServer.instances) > 3)
        await wait_until(lambda: "restored" in server.fault)
        assert server.fault.replace("RuntimeError('odd')", "RuntimeError: odd") == message.format(path)
        FakeGrpcServer.on_start = None
        await wait_until(lambda: not server.fault)
        assert path.exists()
        assert servers_at_loss == [1]


async def test_a_server_that_cannot_be_bound_reports_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: FakeGrpcServer, target: str) -> None:
        raise RuntimeError("no address")

    monkeypatch.setattr(FakeGrpcServer, "add_insecure_port", fail)
    with pytest.raises(SocketError, match="no address"):
        await UnixServer(tmp_path / "x.sock", INSTANCE, []).start()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_never_served_removes_no_file(tmp_path: Path) -> None:
    (tmp_path / "x.sock").touch()
    UnixServer(tmp_path / "x.sock", INSTANCE, []).unlink()
    assert (tmp_path / "x.sock").exists()


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


# --- live sockets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "is_live_socket"),
    [
        (None, True),
        (ConnectionRefusedError(), False),
        (FileNotFoundError(), False),
        (TimeoutError(), True),
        (PermissionError(), True),
    ],
)
def test_a_socket_without_a_response_is_live_and_the_check_takes_at_most_a_second(
    fault: OSError | None, is_live_socket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[float] = []

    class FakeSocket(socket.socket):
        def settimeout(self, value: float | None) -> None:
            timeouts.append(cast(float, value))

        def connect(self, address: Any) -> None:
            if fault:
                raise fault

    monkeypatch.setattr(socket, "socket", FakeSocket)
    assert is_live(Path("/x")) is is_live_socket
    assert timeouts == [1]


def test_a_hidden_socket_that_disappears_during_the_check_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f".{INSTANCE}a"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))

    def remove_and_report_dead(checked_path: Path) -> bool:
        checked_path.unlink()
        return False

    monkeypatch.setattr(sockets_module, "is_live", remove_and_report_dead)
    assert remove_hidden(tmp_path, lambda token: False) == [path]
