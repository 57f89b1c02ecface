"""Bad input at start: each with a sentence of its own, all at once."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from dra_kubeletplugin import Driver
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.errors import DriverError, SettingsError, SocketError
from dra_kubeletplugin.kubelet.sockets import MAX_PATH, UnixServer, socket_paths
from dra_kubeletplugin.settings import Settings, load
from tests.drivers import Toy


def good(tmp_path: Path, **changes: object) -> Settings:
    (tmp_path / "plugins_registry").mkdir(exist_ok=True)
    values: dict[str, object] = {
        "driver_name": "d.example.com",
        "node_name": "n",
        "kubelet_root": tmp_path,
        "cdi_root": tmp_path / "cdi",
    }
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


def test_good_settings_have_no_faults(tmp_path: Path) -> None:
    assert good(tmp_path).faults() == []


def test_all_faults_are_told_at_once_each_naming_flag_and_variable(tmp_path: Path) -> None:
    bad = good(
        tmp_path, driver_name="Bad_Name", node_name="", kubelet_root=tmp_path / "nowhere", cdi_root=Path("/proc/cdi")
    )
    with pytest.raises(SettingsError) as e:
        bad.check()
    told = "\n".join(e.value.faults)
    for words in ("--driver-name (DRIVER_NAME) 'Bad_Name' is not a DNS subdomain", "--node-name (NODE_NAME)", "has no folder plugins_registry", "--cdi-root (CDI_ROOT): /proc/cdi cannot be written"):  # fmt: skip
        assert words in told


def test_unknown_values_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as e:
        load({"log_level": "loud"}, {"LOG_FORMAT": "xml", "HTTP_ADDRESS": "8080", "STOP_GRACE": "soon"})
    assert [f.split()[0] for f in e.value.faults] == ["HTTP_ADDRESS", "LOG_FORMAT", "--log-level", "STOP_GRACE"]


def test_a_flag_beats_the_environment() -> None:
    assert load({"node_name": "flag"}, {"NODE_NAME": "env", "CALL_TIMEOUT": "500ms"}).node_name == "flag"
    assert load({}, {"CALL_TIMEOUT": "500ms"}).call_timeout == 0.5


def test_a_driver_with_a_bad_name_cannot_be_defined() -> None:
    with pytest.raises(DriverError, match="not a DNS subdomain"):

        class Bad(Driver):
            name = "Bad Name"


@pytest.mark.parametrize(
    ("target", "says"),
    [("nowhere.py", "is not a file"), ("no_such_module:X", "no module no_such_module"), ("tests.drivers:ToyConfig", "no subclass of Driver"), ("tests.drivers", "name one as")],
)  # fmt: skip
def test_a_driver_that_cannot_be_found_is_told_with_what_was_found(target: str, says: str) -> None:
    with pytest.raises(DriverError, match=says):
        load_driver(target)


def test_a_driver_is_found_by_module_and_class() -> None:
    assert load_driver("tests.drivers:Toy") is Toy


# --- socket names -----------------------------------------------------------------------------------

UID = "12345678-1234-4123-8123-123456789abc"


def test_names_are_those_of_go_drivers() -> None:
    paths = socket_paths(Path("/k/plugins_registry"), Path("/k/plugins/d.example.com"), "d.example.com")
    assert paths.registration == Path("/k/plugins_registry/d.example.com-reg.sock")
    assert paths.dra == Path("/k/plugins/d.example.com/dra.sock")
    rolling = socket_paths(Path("/k/plugins_registry"), Path("/k/plugins/d.example.com"), "d.example.com", UID)
    assert rolling.registration.name == f"d.example.com-{UID}-reg.sock"
    assert rolling.dra.name == f"dra-{UID}.sock"


@pytest.mark.parametrize("length", range(1, 64))
def test_every_driver_name_fits_below_the_usual_root(length: int) -> None:
    name = "d" * length
    root = Path("/var/lib/kubelet")
    for uid in ("", UID):
        paths = socket_paths(root / "plugins_registry", root / "plugins" / name, name, uid)
        assert len(os.fsencode(paths.registration)) <= MAX_PATH
        assert len(os.fsencode(paths.dra)) <= MAX_PATH


def test_a_root_that_is_too_long_is_explained() -> None:
    with pytest.raises(SocketError, match="holds 107 bytes"):
        socket_paths(Path("/" + "r" * 100) / "plugins_registry", Path("/" + "r" * 100), "d.example.com")


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    first = UnixServer(path)
    await first.start()
    with pytest.raises(SocketError, match="is served by another process"):
        await UnixServer(path).start()
    await first.stop()
    assert not path.exists()


async def test_stopping_leaves_another_instance_s_socket_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    first = UnixServer(path)
    await first.start()
    path.unlink()
    second = UnixServer(path)
    await second.start()
    await first.stop()
    _, writer = await asyncio.open_unix_connection(str(path))
    writer.close()
    await writer.wait_closed()
    await second.stop()


async def test_a_file_in_the_way_is_named_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    path.write_text("precious")
    with pytest.raises(SocketError, match="is no socket"):
        await UnixServer(path).start()
    assert path.read_text() == "precious"


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketError, match="nowhere is not a folder"):
        await UnixServer(tmp_path / "nowhere" / "x.sock").start()
