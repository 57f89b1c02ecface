"""The server on a Unix socket around one of gRPC's that a test holds: names, faults, and what is stopped when."""

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


class Grpc:
    """One of gRPC's servers; ``on_start`` is what happens while it starts."""

    made: ClassVar[list[Grpc]] = []
    on_start: ClassVar[Callable[[Grpc], None] | None] = None

    def __init__(self, options: Any) -> None:
        self.options = dict(options)
        self.stopped: list[float | None] = []
        self.socket = socket.socket(socket.AF_UNIX)
        Grpc.made.append(self)

    def add_insecure_port(self, target: str) -> None:
        self.name = Path(target.removeprefix("unix:"))
        self.socket.bind(str(self.name))
        self.socket.listen()

    async def start(self) -> None:
        if Grpc.on_start:
            Grpc.on_start(self)

    async def stop(self, grace: float | None) -> None:
        self.stopped.append(grace)
        self.socket.close()


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Grpc, "made", [])
    monkeypatch.setattr(Grpc, "on_start", None)
    monkeypatch.setattr(grpc.aio, "server", Grpc)
    monkeypatch.setattr(module, "_LOOK", 0.001)
    yield
    for made in Grpc.made:
        made.socket.close()


@contextlib.asynccontextmanager
async def kept(path: Path, **options: Any) -> AsyncIterator[UnixServer]:
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


async def test_grpc_shares_no_port_and_hangs_up_on_no_keep_alive(tmp_path: Path) -> None:
    async with kept(tmp_path / "x.sock"):
        assert Grpc.made[0].options == {
            "grpc.so_reuseport": 0,
            "grpc.http2.min_ping_interval_without_data_ms": 1000,
            "grpc.http2.max_ping_strikes": 0,
        }


async def test_a_socket_is_its_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with kept(tmp_path / "x.sock"):
            assert stat.S_IMODE((tmp_path / "x.sock").stat().st_mode) == 0o600
    finally:
        os.umask(before)


async def test_a_socket_that_is_removed_is_served_by_a_new_server_and_17_are_one_too_many(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    lost: list[int] = []
    async with kept(path, lost=lambda: lost.append(len(Grpc.made))) as server:
        for number in range(2, 19):
            path.unlink()
            await wait_until(lambda number=number: len(Grpc.made) == number and path.exists() and not server.fault)
            found = path.stat()
            assert server.inode == (found.st_dev, found.st_ino)
            ended = [made for made in Grpc.made if made.stopped]
            assert ended == Grpc.made[: max(0, number - 16)]
            assert all(made.stopped == [None] for made in ended)
        assert lost == list(range(1, 18)), "told each time, before it is restored"
        assert [made.name.name for made in Grpc.made] == [f".{INSTANCE}{chr(ord('a') + i)}" for i in range(18)]
    assert [made.stopped for made in Grpc.made[2:]] == [[None]] * 16
    assert list(tmp_path.iterdir()) == []


def test_hidden_names_begin_again_after_26() -> None:
    assert [hidden_name("t", n) for n in (0, 1, 25, 26, 27)] == [".ta", ".tb", ".tz", ".ta", ".tb"]


async def test_a_stop_waits_as_long_as_it_is_reported_and_once(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    server = UnixServer(path, INSTANCE, [])
    await server.start()
    await server.stop(0.5)
    await server.stop(0.7)
    assert Grpc.made[0].stopped == [0.5]
    other = UnixServer(path, "1-89abcdef", [])
    await other.start()
    await other.stop()
    assert list(tmp_path.iterdir()) == []


async def test_a_server_that_is_stopped_while_it_starts_leaves_no_socket(tmp_path: Path) -> None:
    server = UnixServer(tmp_path / "x.sock", INSTANCE, [])
    Grpc.on_start = lambda made: server.unlink()
    await server.start()
    assert [p.name for p in tmp_path.iterdir()] == ["x.sock.lock"]
    assert server.inode is None
    await server.stop()


async def test_what_was_closed_on_purpose_is_left_so_and_no_fault(tmp_path: Path) -> None:
    lost: list[int] = []
    async with kept(tmp_path / "x.sock", lost=lambda: lost.append(1)) as server:
        server.unlink()
        for _ in range(5):
            await asyncio.sleep(0.002)
        assert (lost, server.fault, len(Grpc.made)) == ([], "", 1)


@pytest.mark.parametrize("more", [0, 1])
async def test_a_hidden_name_may_be_107_bytes_long_with_its_folder(more: int, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * (107 - len(bytes(tmp_path)) - len(f"//.{INSTANCE}a") + more))
    folder.mkdir()
    server = UnixServer(folder / "x.sock", INSTANCE, [])
    if more:
        with pytest.raises(SocketError, match="no space for a temporary name"):
            await server.start()
    else:
        await server.start()
        await server.stop()
    assert list(folder.iterdir()) == []


# --- faults -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [RuntimeError("odd"), OSError(5, "Input/output error")])
async def test_a_server_that_cannot_start_leaves_nothing_and_reports_why(tmp_path: Path, fault: Exception) -> None:
    def fail(made: Grpc) -> None:
        raise fault

    Grpc.on_start = fail
    with pytest.raises(SocketError, match=r"x\.sock cannot be served: .*(odd|Input/output)"):
        await UnixServer(tmp_path / "x.sock", INSTANCE, []).start()
    assert list(tmp_path.iterdir()) == []
    assert Grpc.made[0].stopped == [None]


async def test_a_hidden_socket_that_another_driver_takes_for_one_of_the_dead_is_made_again(tmp_path: Path) -> None:
    """It was bound, and nobody listened yet, when that driver looked."""

    def removed(made: Grpc) -> None:
        if len(Grpc.made) < 3:
            made.name.unlink()

    Grpc.on_start = removed
    server = UnixServer(tmp_path / "x.sock", INSTANCE, [])
    await server.start()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.sock", "x.sock.lock"]
    assert [made.stopped for made in Grpc.made] == [[None], [None], []]
    await server.stop()
    Grpc.on_start = lambda made: made.name.unlink()
    with pytest.raises(SocketError, match="No such file"):
        await UnixServer(tmp_path / "y.sock", INSTANCE, []).start()


async def test_a_folder_that_is_not_ours_to_write_to_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(made: Grpc) -> None:
        raise OSError(13, "Permission denied")

    Grpc.on_start = fail
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(SocketError, match="cannot be written by uid"):
        await UnixServer(tmp_path / "x.sock", INSTANCE, []).start()


async def test_a_path_that_cannot_be_looked_at_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SocketError, match="cannot be inspected: Not a directory"):
        await UnixServer(tmp_path / "file" / "x.sock", INSTANCE, [], tmp_path).start()
    assert Grpc.made == []
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (RuntimeError("odd"), "socket {0} was removed by another process, and cannot be restored: {0} cannot be served: RuntimeError: odd"),
        (ValueError("odd"), "socket {0} was removed by another process, and cannot be restored: ValueError: odd"),
    ],
)  # fmt: skip
async def test_why_a_socket_cannot_be_restored_is_reported_until_it_is(
    tmp_path: Path, fault: Exception, says: str
) -> None:
    def fail(made: Grpc) -> None:
        raise fault

    path = tmp_path / "x.sock"
    lost: list[int] = []
    async with kept(path, lost=lambda: lost.append(1)) as server:
        Grpc.on_start = fail
        path.unlink()
        await wait_until(lambda: len(Grpc.made) > 3)
        await wait_until(lambda: "restored" in server.fault)
        assert server.fault.replace("RuntimeError('odd')", "RuntimeError: odd") == says.format(path)
        Grpc.on_start = None
        await wait_until(lambda: not server.fault)
        assert path.exists()
        assert lost == [1]


async def test_a_server_that_cannot_even_be_bound_reports_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Grpc, target: str) -> None:
        raise RuntimeError("no address")

    monkeypatch.setattr(Grpc, "add_insecure_port", fail)
    with pytest.raises(SocketError, match="no address"):
        await UnixServer(tmp_path / "x.sock", INSTANCE, []).start()
    assert list(tmp_path.iterdir()) == []


def test_who_never_served_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.sock").touch()
    UnixServer(tmp_path / "x.sock", INSTANCE, []).unlink()
    assert (tmp_path / "x.sock").exists()


# --- names --------------------------------------------------------------------------------------------------


def short(data: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data.encode()).digest()[:size]).decode().rstrip("=")


@pytest.mark.parametrize("pod", ["", "0123-uid"])
def test_the_first_name_that_fits_is_taken_to_the_byte(pod: str) -> None:
    driver = "driver.example.com"
    if pod:
        both = f"{driver}\0{pod}"
        names = [f"{driver}-{pod}-reg.sock", f"{driver}-{short(pod, 8)}-reg.sock", f"dra-{short(both, 16)}-reg.sock"]  # fmt: skip
        dra = [f"dra-{pod}.sock", f"dra-{short(pod, 8)}.sock", short(pod, 8)]
    else:
        names = [f"{driver}-reg.sock", f"dra-{short(driver, 16)}-reg.sock"]
        dra = ["dra.sock", "d"]
    for candidates, which in ((names, "registration"), (dra, "dra")):
        for room in range(min(map(len, candidates)), max(map(len, candidates)) + 2):
            folder, other = Path("/" + "f" * (107 - room - 2)), Path("/o")
            paths = socket_paths(*((folder, other) if which == "registration" else (other, folder)), driver, pod)
            wanted = next(n for n in candidates if len(n) <= room)
            assert getattr(paths, which) == folder / wanted


def test_by_how_much_even_the_shortest_name_is_too_long_is_reported() -> None:
    last = f"dra-{short('d' * 60, 16)}-reg.sock"
    with pytest.raises(SocketError, match=rf"'{last}' makes it 1 bytes too long"):
        socket_paths(Path("/" + "f" * (107 - len(last) - 1)), Path("/o"), "d" * 60)


# --- who listens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "live"),
    [
        (None, True),
        (ConnectionRefusedError(), False),
        (FileNotFoundError(), False),
        (TimeoutError(), True),
        (PermissionError(), True),
    ],
)
def test_who_cannot_be_asked_is_there_and_is_asked_for_a_second(
    fault: OSError | None, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[float] = []

    class Socket(socket.socket):
        def settimeout(self, value: float | None) -> None:
            timeouts.append(cast(float, value))

        def connect(self, address: Any) -> None:
            if fault:
                raise fault

    monkeypatch.setattr(socket, "socket", Socket)
    assert is_live(Path("/x")) is live
    assert timeouts == [1]


def test_a_hidden_socket_that_goes_while_it_is_looked_at_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f".{INSTANCE}a"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))

    def gone(looked_at: Path) -> bool:
        looked_at.unlink()
        return False

    monkeypatch.setattr(sockets_module, "is_live", gone)
    assert remove_hidden(tmp_path, lambda token: False) == [path]
