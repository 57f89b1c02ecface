"""Bad input at start: each with a sentence of its own, all at once."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Driver
from dra_kubeletplugin.base.mounts import in_container, on_root
from dra_kubeletplugin.base.settings import ControllerSettings, Settings, WebhookSettings, load
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.errors import DriverError, SettingsError, SocketError
from dra_kubeletplugin.plugin.grpc.sockets import MAX_PATH, hidden_name, socket_paths
from tests.helpers.drivers import Toy


def good(tmp_path: Path, **changes: object) -> Settings:
    for folder in ("plugins_registry", "plugins"):
        (tmp_path / folder).mkdir(exist_ok=True)
    values: dict[str, object] = {
        "driver_name": "d.example.com",
        "node_name": "n",
        "kubelet_root": tmp_path,
        "cdi_root": tmp_path / "cdi",
        "local_cluster": True,  # so that a test in a container is not told to mount the host's folders
    }
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


def test_good_settings_have_no_faults(tmp_path: Path) -> None:
    assert good(tmp_path).faults() == []


def test_folders_are_tried_without_a_name_that_a_kill_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(path: Path, data: bytes) -> int:
        raise AssertionError(path)

    settings = good(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", named)
        assert settings.faults() == []
        patch.setattr(os, "open", _without_unnamed_files(errno.EOPNOTSUPP))
        with pytest.raises(AssertionError):
            settings.faults()
    monkeypatch.setattr(os, "open", _without_unnamed_files(errno.EOPNOTSUPP))
    assert settings.faults() == []
    assert list((tmp_path / "cdi").iterdir()) == []
    monkeypatch.setattr(os, "open", _without_unnamed_files(errno.EROFS))
    assert [f.partition(": ")[0] for f in settings.faults()] == [
        "--kubelet-root (KUBELET_ROOT)",
        "--cdi-root (CDI_ROOT)",
    ]


def _without_unnamed_files(fault: int) -> Any:
    real = os.open

    def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(fault, os.strerror(fault))
        return real(path, flags, *more, **options)

    return opened


def test_all_faults_are_reported_at_once_each_naming_flag_and_variable(tmp_path: Path) -> None:
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
        load({"log_level": "loud"}, {"LOG_FORMAT": "xml", "HTTP_ADDRESS": "8080", "SHUTDOWN_GRACE_PERIOD": "soon"})
    assert [f.split()[0] for f in e.value.faults] == [
        "HTTP_ADDRESS",
        "LOG_FORMAT",
        "--log-level",
        "SHUTDOWN_GRACE_PERIOD",
    ]


def test_choices_are_reported_and_a_switch_is_on_or_off() -> None:
    with pytest.raises(SettingsError) as e:
        load({"unhealthy_effect": "Evict"}, {"LOCAL_CLUSTER": "si", "LIST_ATTRIBUTES": "off"})
    assert e.value.faults == (
        "LOCAL_CLUSTER 'si' is neither 1 nor 0",
        "--unhealthy-effect 'Evict' is not one of None, NoSchedule, NoExecute",
    )
    assert load({}, {"LOCAL_CLUSTER": "On"}).local_cluster and not load({}, {"LOCAL_CLUSTER": "0"}).local_cluster


def test_a_missing_dev_and_a_duration_in_words_are_faults_of_settings_made_in_python(tmp_path: Path) -> None:
    (fault,) = good(tmp_path, dev_root=tmp_path / "no-dev").faults()
    assert fault == f"--dev-root (DEV_ROOT) {tmp_path}/no-dev is not a folder: mount the host's /dev there"
    with pytest.raises(SettingsError) as e:
        good(tmp_path, health_interval="1s", call_timeout=None)
    assert e.value.faults == (
        "call_timeout is None, not a number of seconds",
        "health_interval is '1s', not a number of seconds",
    )


def test_bytes_that_are_no_text_and_ports_that_are_none_are_refused_with_their_names() -> None:
    bad = dict.fromkeys(("NODE_NAME", "KUBELET_ROOT", "CDI_ROOT", "POD_UID", "KUBECONFIG"), "x\udcff")
    with pytest.raises(SettingsError) as e:
        load({"http_address": ":65536"}, bad)
    assert {f.split()[0] for f in e.value.faults} == {*bad, "--http-address"}


@pytest.mark.parametrize("wrong", [{"node_name": "node/../x"}, {"node_name": "Node_1"}, {"pod_uid": "../../x"}, {"pod_uid": "a b"}])  # fmt: skip
def test_a_name_that_no_node_or_pod_has_is_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    assert [next(iter(wrong)).upper() in f for f in good(tmp_path, **wrong).faults()] == [True]


def test_a_flag_beats_the_environment() -> None:
    assert load({"node_name": "flag"}, {"NODE_NAME": "env", "CALL_TIMEOUT": "500ms"}).node_name == "flag"
    assert load({}, {"CALL_TIMEOUT": "500ms"}).call_timeout == 0.5


DURATIONS = ["call_timeout", "api_timeout", "start_timeout", "discovery_timeout", "lock_timeout", "rescan_interval", "health_interval", "reconcile_interval"]  # fmt: skip


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [0.0, 0.05, -1.0, float("nan"), float("inf"), 1e9])
def test_a_duration_that_makes_no_sense_is_refused(tmp_path: Path, name: str, value: float) -> None:
    faults = good(tmp_path, **{name: value}).faults()
    assert any(f"--{name.replace('_', '-')} ({name.upper()})" in f for f in faults)


def test_an_interval_of_zero_is_refused_however_it_is_given(tmp_path: Path) -> None:
    told = load({"rescan_interval": "0"}, {"HEALTH_INTERVAL": "0s", "RECONCILE_INTERVAL": "99ms"}).faults()
    for flag in ("--rescan-interval", "--health-interval", "--reconcile-interval"):
        assert any(f.startswith(f"{flag} (") and "must be at least 0.1s" in f for f in told)
    with pytest.raises(SettingsError, match="not a duration"):
        load({"rescan_interval": "9" * 400}, {})


@pytest.mark.parametrize("missing", [["plugins"], ["plugins_registry"], ["plugins", "plugins_registry"]])
def test_a_folder_that_is_missing_is_a_mount_that_is_missing_and_is_not_made(
    tmp_path: Path, missing: list[str]
) -> None:
    settings = good(tmp_path)
    for name in missing:
        (tmp_path / name).rmdir()
    (fault,) = settings.faults()
    assert all(f"no folder {name}" in fault for name in missing)
    assert not any((tmp_path / name).exists() for name in missing)


def test_folders_above_the_cdi_root_are_not_made(tmp_path: Path) -> None:
    (fault,) = good(tmp_path, cdi_root=tmp_path / "nowhere" / "cdi").faults()
    assert fault.startswith("--cdi-root (CDI_ROOT): ")
    assert not (tmp_path / "nowhere").exists()


def test_a_driver_name_that_is_a_path_makes_no_folder(tmp_path: Path) -> None:
    assert good(tmp_path, driver_name="../../escaped").faults()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cdi", "plugins", "plugins_registry"]


OVERLAY = "1 0 0:30 / / rw - overlay overlay rw,lowerdir=/a:/b\n2 1 0:31 / /proc rw - proc proc rw\n"
HOST = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:30 / /var/lib/x/merged rw - overlay overlay rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "inside"),
    [(OVERLAY, True), (HOST, False), (HOST + OVERLAY, True), ("", False), ("nonsense\n- -\n1 0 0 / /\n", False)],
)
def test_a_container_is_identified_by_its_root_file_system(tmp_path: Path, mountinfo: str, *, inside: bool) -> None:
    (tmp_path / "mountinfo").write_text(mountinfo)
    assert in_container(tmp_path / "mountinfo") == inside
    assert not in_container(tmp_path / "nowhere")


def test_a_path_is_on_the_root_file_system_where_its_nearest_folder_is(tmp_path: Path) -> None:
    assert on_root(tmp_path / "not" / "yet" / "made", root=tmp_path)
    assert not on_root(Path("/proc/self"), root=tmp_path)


IN_A_CONTAINER = """
import sys
from pathlib import Path
from dra_kubeletplugin.base import settings
from dra_kubeletplugin.base.settings import folders
folders.in_container = lambda: True
folders.on_root = lambda path: "cdi" in str(path) or path.name == "plugins"
root = Path(sys.argv[1])
s = settings.Settings(driver_name="d.example.com", node_name="n", kubelet_root=root, cdi_root=root / "cdi")
print("\\n".join(s.faults()))
"""


def test_in_a_container_what_is_not_mounted_is_reported_with_the_host_path_and_nothing_is_made(tmp_path: Path) -> None:
    good(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CONTAINER, str(tmp_path)], capture_output=True, text=True, check=True
    )
    plugins, cdi = done.stdout.splitlines()
    assert plugins.startswith("--kubelet-root (KUBELET_ROOT): ")
    assert plugins.endswith(f"mount the host's folder with hostPath {tmp_path / 'plugins'}")
    assert cdi.endswith(f"mount the host's folder with hostPath {tmp_path / 'cdi'}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plugins", "plugins_registry"]


def test_a_driver_with_a_bad_name_cannot_be_defined() -> None:
    with pytest.raises(DriverError, match="not a DNS subdomain"):

        class Bad(Driver):
            name = "Bad Name"


@pytest.mark.parametrize(
    ("target", "says"),
    [("nowhere.py", "is not a file"), ("no_such_module:X", "no module no_such_module"), ("tests.helpers.drivers:ToyConfig", "not a subclass of Driver"), ("tests.helpers.drivers", "select one with tests.helpers.drivers:Toy or ")],
)  # fmt: skip
def test_a_driver_that_cannot_be_found_is_reported_with_what_was_found(target: str, says: str) -> None:
    with pytest.raises(DriverError, match=says):
        load_driver(target)


def test_a_driver_is_found_by_module_and_class() -> None:
    assert load_driver("tests.helpers.drivers:Toy") is Toy


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
        # So does the name beside it under which a socket is bound, with the largest process id that Linux gives.
        for path in (paths.registration, paths.dra):
            assert len(os.fsencode(path.with_name(hidden_name("4194304-01234567", 0)))) <= MAX_PATH


def test_a_root_that_is_too_long_is_explained() -> None:
    with pytest.raises(SocketError, match="has at most 107 bytes"):
        socket_paths(Path("/" + "r" * 100) / "plugins_registry", Path("/" + "r" * 100), "d.example.com")


def test_an_environment_variable_that_is_nearly_an_option_is_reported_and_others_are_not() -> None:
    from dra_kubeletplugin.cli.serving import misspelt

    given = [
        "HEALTH_INTERVALL",
        "HEALTH_INTERVAL",
        "POD_IP",
        "PATH",
        "LOG_LEVLE",
        "KUBERNETES_SERVICE_HOST",
        "NODE_NAME",
        "",
    ]
    assert misspelt(Settings(), given) == [
        "the environment variable HEALTH_INTERVALL matches no option, did you mean 'HEALTH_INTERVAL'?",
        "the environment variable LOG_LEVLE matches no option, did you mean 'LOG_LEVEL'?",
    ]
    assert misspelt(Settings(), ["SHELFES", "HEALTH_INTERVALS"], ["SHELVES", "HEALTH_INTERVALS"]) == [
        "the environment variable SHELFES matches no option, did you mean 'SHELVES'?"
    ]


@pytest.mark.parametrize("kind", [Settings, ControllerSettings, WebhookSettings])
def test_a_process_reads_its_own_options_and_leaves_those_of_others_alone(kind: type[Settings]) -> None:
    """One set of options goes to all pods of a driver."""
    own = {f.metadata["env"] for f in kind.options()}
    others = {
        f.metadata["env"] for role in (Settings, ControllerSettings, WebhookSettings) for f in role.options()
    } - own
    assert others and "DRIVER_NAME" in own
    assert load({}, dict.fromkeys(others, "\udcff"), kind) == kind()
    with pytest.raises(SettingsError) as e:
        load({}, dict.fromkeys(own, "\udcff"), kind)
    assert len(e.value.faults) == len(own)
