"""Loading reports all invalid settings at once, each with its own sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_kubeletplugin.base.settings import ControllerSettings, Settings, WebhookSettings
from dra_kubeletplugin.base.settings.folders import in_container, on_root
from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.plugin.grpc.sockets import MAX_PATH, hidden_name, socket_paths


def valid_settings(tmp_path: Path, **changes: object) -> Settings:
    for folder in ("plugins_registry", "plugins"):
        (tmp_path / folder).mkdir(exist_ok=True)
    values: dict[str, object] = {
        "driver_name": "d.example.com",
        "node_name": "n",
        "kubelet_root": tmp_path,
        "cdi_root": tmp_path / "cdi",
        "local_cluster": True,  # In a container, the plugin would otherwise require mounts of the host's folders.
    }
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


def test_valid_settings_have_no_faults(tmp_path: Path) -> None:
    assert valid_settings(tmp_path).faults() == []


def test_all_faults_are_reported_at_once_each_naming_flag_and_variable(tmp_path: Path) -> None:
    bad = valid_settings(
        tmp_path, driver_name="Bad_Name", node_name="", kubelet_root=tmp_path / "nowhere", cdi_root=Path("/proc/cdi")
    )
    with pytest.raises(SettingsError) as e:
        bad.check()
    text = "\n".join(e.value.faults)
    for words in ("--driver-name (DRIVER_NAME) 'Bad_Name' is not a DNS subdomain", "--node-name (NODE_NAME)", "has no folder plugins_registry", "--cdi-root (CDI_ROOT): /proc/cdi cannot be written"):  # fmt: skip
        assert words in text


def test_all_unknown_values_are_reported_together() -> None:
    with pytest.raises(SettingsError) as e:
        Settings.load(
            {"log_level": "loud"}, {"LOG_FORMAT": "xml", "HTTP_ADDRESS": "8080", "SHUTDOWN_GRACE_PERIOD": "9" * 400}
        )
    assert [f.split()[0] for f in e.value.faults] == [
        "HTTP_ADDRESS",
        "LOG_FORMAT",
        "--log-level",
        "SHUTDOWN_GRACE_PERIOD",
    ]


def test_faults_list_the_choices_and_a_switch_accepts_only_on_or_off() -> None:
    with pytest.raises(SettingsError) as e:
        Settings.load({"unhealthy_effect": "Evict"}, {"LOCAL_CLUSTER": "si", "LIST_ATTRIBUTES": "off"})
    assert e.value.faults == (
        "LOCAL_CLUSTER 'si' is neither 1 nor 0",
        "--unhealthy-effect 'Evict' is not one of None, NoSchedule, NoExecute",
    )
    assert (
        Settings.load({}, {"LOCAL_CLUSTER": "On"}).local_cluster
        and not Settings.load({}, {"LOCAL_CLUSTER": "0"}).local_cluster
    )


def test_settings_report_a_missing_dev(tmp_path: Path) -> None:
    (fault,) = valid_settings(tmp_path, dev_root=tmp_path / "no-dev").faults()
    assert fault == f"--dev-root (DEV_ROOT) {tmp_path}/no-dev is not a folder: mount the host's /dev there"


def test_undecodable_bytes_and_invalid_ports_are_rejected_with_the_option_name() -> None:
    bad = dict.fromkeys(("NODE_NAME", "KUBELET_ROOT", "CDI_ROOT", "POD_UID", "KUBECONFIG"), "x\udcff")
    with pytest.raises(SettingsError) as e:
        Settings.load({"http_address": ":65536"}, bad)
    assert {f.split()[0] for f in e.value.faults} == {*bad, "--http-address"}


@pytest.mark.parametrize("wrong", [{"node_name": "node/../x"}, {"node_name": "Node_1"}, {"pod_uid": "../../x"}, {"pod_uid": "a b"}])  # fmt: skip
def test_an_invalid_node_name_or_pod_uid_is_rejected(tmp_path: Path, wrong: dict[str, str]) -> None:
    assert [next(iter(wrong)).upper() in f for f in valid_settings(tmp_path, **wrong).faults()] == [True]


def test_a_flag_overrides_the_environment() -> None:
    assert Settings.load({"node_name": "flag"}, {"NODE_NAME": "env", "CALL_TIMEOUT": "500ms"}).node_name == "flag"
    assert Settings.load({}, {"CALL_TIMEOUT": "500ms"}).call_timeout == 0.5


DURATIONS = ["call_timeout", "api_timeout", "start_timeout", "discovery_timeout", "lock_timeout", "rescan_interval", "health_interval", "reconcile_interval"]  # fmt: skip


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [0.0, 0.05, -1.0, float("nan"), float("inf"), 1e9, "30", None])
def test_a_duration_out_of_range_or_without_a_number_is_rejected(tmp_path: Path, name: str, value: object) -> None:
    faults = valid_settings(tmp_path, **{name: value}).faults()
    assert any(f"--{name.replace('_', '-')} ({name.upper()})" in f for f in faults)


@pytest.mark.parametrize("missing", [["plugins"], ["plugins_registry"], ["plugins", "plugins_registry"]])
def test_a_missing_folder_is_reported_and_not_created(tmp_path: Path, missing: list[str]) -> None:
    settings = valid_settings(tmp_path)
    for name in missing:
        (tmp_path / name).rmdir()
    (fault,) = settings.faults()
    assert all(f"no folder {name}" in fault for name in missing)
    assert not any((tmp_path / name).exists() for name in missing)


def test_parents_of_the_cdi_root_are_not_created(tmp_path: Path) -> None:
    (fault,) = valid_settings(tmp_path, cdi_root=tmp_path / "nowhere" / "cdi").faults()
    assert fault.startswith("--cdi-root (CDI_ROOT): ")
    assert not (tmp_path / "nowhere").exists()


def test_a_driver_name_that_is_a_path_creates_no_folder(tmp_path: Path) -> None:
    assert valid_settings(tmp_path, driver_name="../../escaped").faults()
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


def test_a_missing_path_is_on_the_file_system_of_its_nearest_parent(tmp_path: Path) -> None:
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


def test_in_a_container_unmounted_folders_are_reported_with_the_host_path_and_not_created(tmp_path: Path) -> None:
    valid_settings(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CONTAINER, str(tmp_path)], capture_output=True, text=True, check=True
    )
    plugins, cdi = done.stdout.splitlines()
    assert plugins.startswith("--kubelet-root (KUBELET_ROOT): ")
    assert plugins.endswith(f"mount the host's folder with hostPath {tmp_path / 'plugins'}")
    assert cdi.endswith(f"mount the host's folder with hostPath {tmp_path / 'cdi'}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plugins", "plugins_registry"]


# --- socket names -----------------------------------------------------------------------------------

UID = "12345678-1234-4123-8123-123456789abc"


def test_socket_names_are_the_same_as_for_go_drivers() -> None:
    paths = socket_paths(Path("/k/plugins_registry"), Path("/k/plugins/d.example.com"), "d.example.com")
    assert paths.registration == Path("/k/plugins_registry/d.example.com-reg.sock")
    assert paths.dra == Path("/k/plugins/d.example.com/dra.sock")
    rolling = socket_paths(Path("/k/plugins_registry"), Path("/k/plugins/d.example.com"), "d.example.com", UID)
    assert rolling.registration.name == f"d.example.com-{UID}-reg.sock"
    assert rolling.dra.name == f"dra-{UID}.sock"


@pytest.mark.parametrize("length", range(1, 64))
def test_socket_paths_of_every_driver_name_fit_below_the_default_root(length: int) -> None:
    name = "d" * length
    root = Path("/var/lib/kubelet")
    for uid in ("", UID):
        paths = socket_paths(root / "plugins_registry", root / "plugins" / name, name, uid)
        assert len(os.fsencode(paths.registration)) <= MAX_PATH
        assert len(os.fsencode(paths.dra)) <= MAX_PATH
        # The plugin first binds a socket to a hidden name. That path fits too, with Linux's largest process id.
        for path in (paths.registration, paths.dra):
            assert len(os.fsencode(path.with_name(hidden_name("4194304-01234567", 0)))) <= MAX_PATH


def test_a_misspelled_environment_variable_is_reported_and_others_are_not() -> None:
    from dra_kubeletplugin.cli.serving import misspelt

    variables = [
        "HEALTH_INTERVALL",
        "HEALTH_INTERVAL",
        "POD_IP",
        "PATH",
        "LOG_LEVLE",
        "KUBERNETES_SERVICE_HOST",
        "NODE_NAME",
        "",
    ]
    assert misspelt(Settings(), variables) == [
        "the environment variable HEALTH_INTERVALL matches no option, did you mean 'HEALTH_INTERVAL'?",
        "the environment variable LOG_LEVLE matches no option, did you mean 'LOG_LEVEL'?",
    ]
    assert misspelt(Settings(), ["SHELFES", "HEALTH_INTERVALS"], ["SHELVES", "HEALTH_INTERVALS"]) == [
        "the environment variable SHELFES matches no option, did you mean 'SHELVES'?"
    ]


@pytest.mark.parametrize("kind", [Settings, ControllerSettings, WebhookSettings])
def test_a_process_reads_its_own_options_and_ignores_options_of_other_roles(kind: type[Settings]) -> None:
    """All pods of a driver receive the same set of options."""
    own = {f.metadata["env"] for f in kind.options()}
    others = {
        f.metadata["env"] for role in (Settings, ControllerSettings, WebhookSettings) for f in role.options()
    } - own
    assert others and "DRIVER_NAME" in own
    assert kind.load({}, dict.fromkeys(others, "\udcff")) == kind()
    with pytest.raises(SettingsError) as e:
        kind.load({}, dict.fromkeys(own, "\udcff"))
    assert len(e.value.faults) == len(own)
