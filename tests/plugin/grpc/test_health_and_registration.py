"""What the kubelet is told, message by message: health, registration, the claims' services; and the lock on a socket's path."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from dra_kubeletplugin._proto import health_v1_pb2 as v1
from dra_kubeletplugin._proto import health_v1alpha1_pb2 as v1alpha1
from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin.base import flock as locks
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.health_policy import DeviceHealth
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.pool_state import DeviceKey
from dra_kubeletplugin.plugin.grpc import (
    NodeService,
    Registration,
    lock_of,
    remove_dead,
    remove_temporary,
)
from dra_kubeletplugin.plugin.grpc import path_lock as path_lock_module
from dra_kubeletplugin.plugin.grpc.health import HealthService
from dra_kubeletplugin.plugin.grpc.path_lock import PathLock

MIB = 1024 * 1024
INSTANCE, OTHER = "1-0123abcd", "1-89abcdef"


class Server:
    """Remembers the services that are added."""

    def __init__(self) -> None:
        self.services: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self.services += [h.service_name() for h in handlers]

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """The same once more."""


def added(to: Any) -> list[str]:
    server = Server()
    to(cast(grpc.aio.Server, server))
    return server.services


# --- health -------------------------------------------------------------------------------------------------


class Devices:
    """An inventory's health, as the service sees it."""

    def __init__(self, *found: tuple[str, DeviceHealth], timeout: float = 30.0) -> None:
        self.found = found
        self.health_timeout = timeout
        self.health_version = 0
        self.changed = asyncio.Event()
        self.stale: float | None = None

    def expires_in(self) -> float | None:
        return self.stale

    def health(self) -> Iterator[tuple[DeviceKey, DeviceHealth]]:
        return ((DeviceKey("pool", name), health) for name, health in self.found)

    async def health_changed(self, seen: int) -> int:
        while self.health_version == seen:
            await self.changed.wait()
        return self.health_version


def health(devices: Devices, heartbeat: float | None = None) -> HealthService:
    return HealthService(cast(Inventory, devices), heartbeat)


async def told_of(devices: Devices, kind: Any = v1.NodeWatchResourcesResponse) -> list[Any]:
    return [message async for message in health(devices).messages(kind)]


async def test_both_versions_of_the_health_service_are_served() -> None:
    assert added(health(Devices()).add_to) == ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]


async def test_a_heartbeat_is_a_third_of_the_time_after_which_a_report_is_stale() -> None:
    assert health(Devices(timeout=30)).heartbeat == 10
    assert health(Devices(timeout=30), 7).heartbeat == 7
    assert health(Devices(timeout=30), 0.0).heartbeat == 0


@pytest.mark.parametrize("kind", [v1.NodeWatchResourcesResponse, v1alpha1.NodeWatchResourcesResponse])
async def test_a_device_is_reported_with_what_is_known_of_it(kind: Any) -> None:
    found = [(f"d{i}", DeviceHealth(h, f"m{i}", 5.9, 1.5)) for i, h in enumerate((True, False, None))]
    (message,) = await told_of(Devices(*found), kind)
    assert isinstance(message, kind)
    told = [(d.device.pool_name, d.device.device_name, d.message, d.last_updated_time) for d in message.devices]
    assert told == [("pool", f"d{i}", f"m{i}", 5) for i in range(3)]
    assert [d.health for d in message.devices] == [v1.HEALTHY, v1.UNHEALTHY, v1.UNKNOWN]
    assert {d.health_check_timeout_seconds for d in message.devices} == {2}


async def test_no_devices_are_a_message_too() -> None:
    (message,) = await told_of(Devices())
    assert len(message.devices) == 0


@pytest.mark.parametrize(("length", "told"), [(0, 0), (1024, 1024), (1025, 1024), (5000, 1024)])
async def test_1024_bytes_of_a_text_are_reported(length: int, told: int) -> None:
    text = "x" * length
    (message,) = await told_of(Devices(("d", DeviceHealth(True, text))))
    assert message.devices[0].message == (text if length <= told else "x" * (told - 3) + "...")


async def test_messages_are_as_long_as_grpc_lets_them_be_and_no_longer() -> None:
    """4 MiB less 64 KiB, where an entry counts as its texts and 40 bytes: 1,024 in all here."""
    most = (4 * MIB - 64 * 1024) // 1024
    text = "x" * (1024 - 40 - len("pool") - len("dev12345"))
    found = [(f"dev{i:05}", DeviceHealth(None, text)) for i in range(most + 1)]
    messages = await told_of(Devices(*found))
    assert [len(m.devices) for m in messages] == [most, 1]
    assert messages[0].ByteSize() < 4 * MIB
    assert [d.device.device_name for m in messages for d in m.devices] == [name for name, _ in found]


@pytest.mark.parametrize(("devices", "turns"), [(255, 0), (256, 1), (511, 1), (512, 2)])
async def test_others_have_their_turn_after_each_256_devices(devices: int, turns: int) -> None:
    had = -1

    async def other() -> None:
        nonlocal had
        while True:
            had += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    await told_of(Devices(*((f"d{i}", DeviceHealth(True)) for i in range(devices))))
    assert had == turns
    task.cancel()


async def test_the_stream_reports_all_again_after_each_report_and_after_each_heartbeat() -> None:
    devices = Devices(("d", DeviceHealth(True)))
    async with asyncio.timeout(30):
        quiet = health(devices, 60).stream(v1.NodeWatchResourcesResponse)
        await anext(quiet)
        again = asyncio.ensure_future(anext(quiet))
        await asyncio.sleep(0.02)
        assert not again.done(), "nothing happened"
        devices.found = (("d", DeviceHealth(False)),)
        devices.health_version += 1
        devices.changed.set()
        assert (await again).devices[0].health == v1.UNHEALTHY
        devices.stale = 0.0
        devices.changed.clear()
        growing_old = health(devices, 60).stream(v1.NodeWatchResourcesResponse)
        for _ in range(2):
            await anext(growing_old)
        beating = health(Devices(), 0.01).stream(v1.NodeWatchResourcesResponse)
        for _ in range(3):
            await anext(beating)


# --- registration and claims --------------------------------------------------------------------------------


def value(metrics: Metrics, sample: str) -> float | None:
    lines = dict(line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if not line.startswith("#"))
    return next((float(v) for k, v in lines.items() if k.endswith(sample)), None)


async def told(registration: Registration, *, registered: bool, error: str = "") -> None:
    await registration.NotifyRegistrationStatus(
        pb.RegistrationStatus(plugin_registered=registered, error=error), cast(Any, None)
    )


async def test_the_kubelet_s_word_is_what_is_shown_and_the_way_to_it_is_measured_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    r = Registration("d.example.com", Path("/x"), ("v1.DRAPlugin",), metrics)
    assert not r.registered.is_set()
    for _ in range(2):
        await told(r, registered=True)
        assert (r.registered.is_set(), r.error, value(metrics, "registered")) == (True, "", 1)
        assert value(metrics, "registration_duration_seconds_count") == 1
    await told(r, registered=False)
    assert (r.registered.is_set(), r.error, value(metrics, "registered")) == (False, "no reason given", 0)
    assert "the kubelet retries" in caplog.messages[-1]
    await told(r, registered=True)
    assert (r.registered.is_set(), r.error, value(metrics, "registered")) == (True, "", 1)
    assert value(metrics, "registration_duration_seconds_count") == 1, "the kubelet came back by itself"
    r.unregistered()
    assert (r.registered.is_set(), r.error, value(metrics, "registered")) == (False, "", 0)
    await told(r, registered=True)
    r.lost()
    assert (r.registered.is_set(), value(metrics, "registered")) == (False, 0)
    await told(r, registered=True)
    assert value(metrics, "registration_duration_seconds_count") == 2


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("no handler registered for plugin type: DRAPlugin", "DynamicResourceAllocation"),
        ("none of services supported by the plugin", "older than 1.32"),
        ("plugin validation failed: x", "the endpoint is refused"),
        ("something else", "the kubelet retries"),
    ],
)
async def test_a_refusal_is_reported_with_what_to_do(error: str, hint: str, caplog: pytest.LogCaptureFixture) -> None:
    r = Registration("d.example.com", Path("/x"), ("v1.DRAPlugin",), Metrics())
    await told(r, registered=False, error=error)
    assert r.error == error
    assert hint in caplog.messages[-1]


async def test_who_we_are_is_what_was_given() -> None:
    r = Registration("d.example.com", Path("/x"), ("v1.DRAPlugin", "v1beta1.DRAPlugin"), Metrics())
    assert added(r.add_to) == ["pluginregistration.Registration"]
    info = await r.GetInfo(pb.InfoRequest(), cast(Any, None))
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "d.example.com", "/x")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]


async def test_both_versions_of_the_claims_service_are_served() -> None:
    assert added(NodeService(cast(Any, None), Metrics()).add_to) == [
        f"k8s.io.kubelet.pkg.apis.dra.{v}.DRAPlugin" for v in ("v1", "v1beta1")
    ]


# --- the lock on a path -------------------------------------------------------------------------------------


def lock(folder: Path, token: str = INSTANCE) -> PathLock:
    return PathLock(folder / "x.lock", token)


@pytest.mark.usefixtures("no_leak")
def test_a_lock_is_taken_once_given_up_and_taken_again(tmp_path: Path) -> None:
    first, second = lock(tmp_path), lock(tmp_path, OTHER)
    first.release()
    for _ in range(2):
        assert first.acquire() is True
        assert [(p.name, p.stat().st_mode & 0o777) for p in tmp_path.iterdir()] == [("x.lock", 0o600)]
        assert second.acquire() is False
        second.release()
        assert [p.name for p in tmp_path.iterdir()] == ["x.lock"]
        first.release()
        first.release()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_leak")
def test_a_lock_without_its_process_is_taken_over_and_removed_with_us(tmp_path: Path) -> None:
    (tmp_path / "x.lock").touch()
    taken = lock(tmp_path)
    assert taken.acquire() is True
    assert lock(tmp_path, OTHER).acquire() is False
    taken.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_leak")
def test_a_file_that_is_gone_before_it_is_given_up_is_no_fault(tmp_path: Path) -> None:
    taken = lock(tmp_path)
    assert taken.acquire()
    (tmp_path / "x.lock").unlink()
    taken.release()


@pytest.mark.usefixtures("no_leak")
def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PathLock(tmp_path / "nowhere" / "x.lock", INSTANCE).acquire()


class Linking:
    """``os`` for the lock, where others do something just before our file gets its name."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.links = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def link(self, source: Path, target: Path) -> None:
        self.links += 1
        self.before(target)
        os.link(source, target)


@pytest.mark.usefixtures("no_leak")
@pytest.mark.parametrize("rounds", [1, 19, 20])
def test_20_rounds_of_others_that_come_and_go_are_waited_out(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time there is a file when ours is to get its name, and none when it is looked at."""
    os_ = Linking(lambda target: None)

    def come(target: Path) -> None:
        if os_.links <= rounds:
            raise FileExistsError(errno.EEXIST, "it was there a moment ago")

    os_.before = come
    monkeypatch.setattr(path_lock_module, "os", os_)
    mine = lock(tmp_path)
    assert mine.acquire() is (rounds < 20)
    assert os_.links == min(rounds + 1, 20)
    mine.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_leak")
def test_a_fault_while_a_lock_gets_its_name_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(target: Path) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(path_lock_module, "os", Linking(fail))
    with pytest.raises(OSError, match="full"):
        lock(tmp_path).acquire()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_leak")
@pytest.mark.parametrize("instead", [True, False], ids=["another one's file", "no file"])
def test_a_dead_one_s_file_that_goes_while_it_is_taken_over_is_not_the_lock(
    instead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    times = 0

    def flock(fd: int, how: int) -> None:
        nonlocal times
        times += 1
        fcntl.flock(fd, how)
        if times == 1:
            path.unlink()
            if instead:
                path.touch()

    fake = type("Fcntl", (), {"flock": staticmethod(flock), "LOCK_EX": fcntl.LOCK_EX, "LOCK_NB": fcntl.LOCK_NB})
    monkeypatch.setattr(locks, "fcntl", fake)
    mine = lock(tmp_path)
    assert mine.acquire() is True
    monkeypatch.undo()
    assert lock(tmp_path, OTHER).acquire() is False, "the file that has the name is the one that is locked"
    mine.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_leak")
def test_a_dead_one_s_file_that_another_instance_is_taking_away_keeps_nobody_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lock"
    with path.open("w") as clearing:
        fcntl.flock(clearing, fcntl.LOCK_EX)

        def goes(seconds: float) -> None:
            path.unlink(missing_ok=True)
            fcntl.flock(clearing, fcntl.LOCK_UN)

        monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=goes))
        mine = lock(tmp_path)
        assert mine.acquire() is True
        assert lock(tmp_path, OTHER).acquire() is False
        mine.release()


@pytest.mark.usefixtures("no_leak")
def test_a_dead_one_s_lock_is_removed_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    path = lock_of(tmp_path / "x.sock", tmp_path)
    assert path == tmp_path / "x.sock.lock"
    assert remove_dead(path) is False
    path.touch()
    assert remove_dead(path) is True
    assert not path.exists()
    alive = PathLock(path, INSTANCE)
    assert alive.acquire()
    assert remove_dead(path) is False
    assert path.exists()
    alive.release()


@pytest.mark.usefixtures("no_leak")
def test_a_lock_that_is_replaced_while_it_is_looked_at_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.lock"
    path.touch()

    def flock(fd: int, how: int) -> None:
        (tmp_path / "new").touch()
        (tmp_path / "new").rename(path)

    fake = type("Fcntl", (), {"flock": staticmethod(flock), "LOCK_EX": fcntl.LOCK_EX, "LOCK_NB": fcntl.LOCK_NB})
    monkeypatch.setattr(locks, "fcntl", fake)
    assert remove_dead(path) is False
    assert path.exists()


def test_files_without_a_name_of_the_dead_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = [f".x.sock.lock.{INSTANCE}", f"x.lock.{OTHER}", ".x.lock", f".x.lock.{OTHER}x", ".x.lock.1-ABCDEF01"]
    for name in (*kept, f".x.sock.lock.{OTHER}", f".y.lock.{OTHER}", f".taint-times.json.{OTHER}"):
        (tmp_path / name).touch()
    asked: list[str] = []

    def alive(token: str) -> bool:
        asked.append(token)
        (tmp_path / f".y.lock.{OTHER}").unlink(missing_ok=True)  # by another instance, meanwhile
        return token == INSTANCE

    remove_temporary(tmp_path, alive)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)
    assert set(asked) == {INSTANCE, OTHER}
