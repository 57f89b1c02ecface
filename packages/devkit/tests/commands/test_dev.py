"""Tests ``dra dev`` with real processes, described hosts, and verbs from another process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_devkit.commands.dev_args import VERBS
from dra_devkit.hosts import described
from dra_devkit.localcluster.dev import control
from packages.devkit.tests.command_runner import Dra
from packages.devkit.tests.commands.fpga import DRIVER, HOST, NEW
from tests.helpers.dev_process import GPU, ROOT, DevProcess, run_dev, run_dev_command
from tests.helpers.waiting import block_until


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProcess]:
    """Runs a driver on two nodes, each with a described host."""
    folder = tmp_path_factory.mktemp("dev")
    (folder / "driver.py").write_text(DRIVER)
    (folder / "host.yaml").write_text(HOST)
    args = (
        str(folder / "driver.py"),
        "--host",
        str(folder / "host.yaml"),
        "--nodes",
        "2",
    )
    with run_dev(folder, *args) as found:
        yield found
    assert not found.state.exists()


pytestmark = pytest.mark.kubectl


def test_the_output_at_the_start_has_the_paths_of_each_node(dev: DevProcess) -> None:
    for node in ("node-1", "node-2"):
        assert f"{node}: kubelet root {dev.state}/{node}/kubelet" in dev.output
        assert f"is at {dev.state}/{node}/host; `dra dev write-sysfs PATH TEXT` changes its files" in dev.output
        assert (dev.state / node / "host/dev/fpga0").read_text() == "c 240:0\n"
        assert len(dev.devices(node)) == 2
    status = dev.verb("status")
    assert [n["registered"] for n in status["nodes"]] == [{"fpga.example.com": 1}] * 2
    assert dev.kubectl("get", "nodes", "-o", "name").split() == ["node/node-1", "node/node-2"]


def test_only_the_user_can_access_the_control_socket(dev: DevProcess) -> None:
    path = dev.state / control.NAME
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o077) == (0o600, 0)


def test_a_function_is_unplugged_and_plugged_in_again(dev: DevProcess) -> None:
    assert dev.verb("unplug-function", "--node", "node-1", "0000:17:00.0")["address"] == "0000:17:00.0"
    block_until(lambda: list(dev.devices()) == ["pci-0000-18-00-0"])
    assert len(dev.devices("node-2")) == 2
    assert "no PCI function '0000:17:00.0' on this host, only 0000:18:00.0" in dev.verb(
        "unplug-function", "--node", "node-1", "0000:17:00.0"
    )
    dev.verb("plug-function", "--node", "node-1", "0000:17:00.0")
    block_until(lambda: len(dev.devices()) == 2)
    assert (dev.state / "node-1/host/dev/fpga0").exists()


def test_a_deeply_nested_function_file_is_refused_and_the_cluster_continues(dev: DevProcess, tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text("? " * 100_000)
    assert "nested too deeply" in dev.verb("plug-function", "--node", "node-1", str(tmp_path / "deep.yaml"))
    assert dev.verb("status")["nodes"]


def test_a_new_function_is_plugged_in_from_a_file(dev: DevProcess, tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(json.dumps(NEW))
    dev.verb("plug-function", "--node", "node-2", str(tmp_path / "new.yaml"))
    block_until(lambda: "pci-0000-19-00-0" in dev.devices("node-2"))
    assert "0000:19:00.0" in dev.verb(
        "plug-function", "--node", "node-2", str(tmp_path / "new.yaml")
    )  # it already exists
    assert "neither a function that was unplugged" in dev.verb("plug-function", "--node", "node-2", "0000:99:00.0")
    assert "0000:19:00.0 is already present" in dev.verb("plug-function", "--node", "node-2", "0000:19:00.0")
    dev.verb("unplug-function", "--node", "node-2", "0000:19:00.0")
    block_until(lambda: len(dev.devices("node-2")) == 2)


def test_a_verb_for_hardware_acts_on_all_nodes(dev: DevProcess) -> None:
    file = "bus/pci/devices/0000:17:00.0/driver_override"
    assert dev.verb("write-sysfs", "--node", "all", file, "fpga") == {"nodes": ["node-1", "node-2"], "path": file}
    for node in ("node-1", "node-2"):
        assert (dev.state / node / "host" / file).read_text().strip() == "fpga"


def test_set_health_applies_until_it_is_set_to_reported(dev: DevProcess) -> None:
    where = ("--node", "node-1", "pci-0000-17-00-0")
    dev.verb("set-health", *where, "unhealthy", "--effect", "NoExecute", "--message", "too hot")
    block_until(lambda: [t["effect"] for t in dev.devices()["pci-0000-17-00-0"].get("taints", [])] == ["NoExecute"])
    assert "taints" not in dev.devices("node-2")["pci-0000-17-00-0"]
    assert dev.driver()["health"] == {
        "pci-0000-17-00-0": {"healthy": False, "message": "too hot", "effect": "NoExecute"}
    }
    status = run_dev_command("status", "--state-dir", str(dev.state)).stdout
    assert "  set-health    pci-0000-17-00-0 unhealthy: too hot" in status
    dev.verb("set-health", *where, "reported")
    block_until(lambda: "taints" not in dev.devices()["pci-0000-17-00-0"])


def test_a_killed_driver_is_restarted_and_its_slices_stay(dev: DevProcess) -> None:
    before = dev.driver()
    assert (
        "killed"
        in run_dev_command("kill-driver", "--state-dir", str(dev.state), "--node", "node-1", "--down-for", "0").stdout
    )
    after = block_until(lambda: (d := dev.driver())["phase"] == "ready" and d["pid"] != before["pid"] and d)
    assert after["restarts"] == before["restarts"] + 1
    assert len(dev.devices()) == 2


def test_a_driver_that_ends_unexpectedly_is_restarted(dev: DevProcess) -> None:
    before = dev.driver("node-2")
    os.kill(before["pid"], signal.SIGKILL)
    # The process has no pid between its end and the moment when `dra dev` notices it.
    block_until(lambda: (d := dev.driver("node-2"))["phase"] == "ready" and d["pid"] not in {None, before["pid"]})
    assert "ended with signal SIGKILL" in dev.log()


def test_an_upgrade_replaces_the_process_but_not_the_slices(dev: DevProcess) -> None:
    pids = {p: dev.driver(p)["pid"] for p in ("node-1", "node-2")}
    names = dev.kubectl("get", "resourceslices", "-o", "name")
    dev.verb("upgrade-driver", "--node", "all")
    assert all(dev.driver(place)["pid"] != pid for place, pid in pids.items())
    assert dev.kubectl("get", "resourceslices", "-o", "name") == names


@pytest.mark.full
def test_a_changed_driver_file_is_reloaded_and_a_broken_file_is_reported(dev: DevProcess) -> None:

    def write(text: str) -> None:
        """Replaces the file in one step, because a partly written file would count as another change."""
        (dev.folder / "next").write_text(text)
        (dev.folder / "next").replace(dev.folder / "driver.py")

    def published(version: str) -> None:
        expected = {"string": version}
        for node in ("node-1", "node-2"):
            block_until(lambda node=node: dev.devices(node)["pci-0000-17-00-0"]["attributes"]["version"] == expected)
            block_until(lambda node=node: dev.driver(node)["phase"] == "ready")

    write(DRIVER.replace('"one"', '"two"'))
    published("two")
    pid = dev.driver()["pid"]
    write("this is no Python")
    block_until(lambda: dev.log().count("SyntaxError") >= 2)
    block_until(lambda: dev.driver()["phase"] == "ready")
    assert dev.driver()["pid"] == pid, "the previous process continues"
    write(DRIVER)
    published("one")


def test_a_reboot_changes_the_boot_id_and_restarts_the_driver(dev: DevProcess) -> None:
    from dra_kubeletplugin.host import Host

    sysfs = dev.state / "node-1/host"
    boot, other, pid = Host(sysfs).boot_id(), Host(dev.state / "node-2/host").boot_id(), dev.driver()["pid"]
    dev.verb("reboot-node", "--node", "node-1")
    assert Host(sysfs).boot_id() != boot
    assert Host(dev.state / "node-2/host").boot_id() == other
    assert (dev.driver()["phase"], dev.driver()["pid"] != pid) == ("ready", True)
    block_until(lambda: len(dev.devices()) == 2)


def test_a_restarted_kubelet_registers_its_plugins_again(dev: DevProcess) -> None:
    dev.verb("restart-kubelet", "--node", "all", "--down-for", "0.05")
    block_until(lambda: [n["registered"] for n in dev.verb("status")["nodes"]] == [{"fpga.example.com": 1}] * 2)
    block_until(lambda: len(dev.devices()) == 2)


def test_injected_faults_of_the_api_server_are_in_the_status(dev: DevProcess) -> None:
    dev.verb("cut-connections")
    dev.verb("drop-fields", "taints")
    dev.verb("api-conflicts", "1000")
    dev.verb("api-delay", "0.01")
    faults = dev.verb("status")["faults"]
    assert 0 < faults.pop("conflicts") <= 1000, (
        "other writers, such as a kubelet with its lease, can use up some conflicts"
    )
    assert faults == {"droppedFields": ["taints"], "delay": 0.01}
    dev.verb("drop-fields")
    dev.verb("api-conflicts", "0")
    dev.verb("api-delay", "0")
    dev.verb("serve-versions", "v1beta1")
    assert "resource.k8s.io/v1beta1" in dev.kubectl("api-versions")
    assert "resource.k8s.io/v1\n" not in dev.kubectl("api-versions")
    dev.verb("serve-versions")
    dev.verb("api-outage", "0.1")
    assert dev.verb("status")["faults"] == {}
    block_until(lambda: len(dev.devices()) == 2)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["restart-kubelet"], "which node? Give --node with one of node-1, node-2, or all"),
        (["kill-driver", "--node", "node-3"], "no node 'node-3', did you mean 'node-"),
        (["kill-driver", "--driver", "fpga.example.org", "--node", "all"], "did you mean 'fpga.example.com'?"),
        (["drop-fields", "taint"], "'taint' is not a field of slices"),
        (["set-health", "--node", "node-1", "pci-0000-17-00-1", "unhealthy"], "did you mean 'pci-0000-17-00-0'?"),
        (
            ["set-health", "--node", "node-1", "pci-0000-17-00-0", "healthy", "--effect", "NoExecute"],
            "--effect sets the taint",
        ),
        (["plug-function", "--node", "node-1", "nowhere.yaml"], "nowhere.yaml is not a file"),
        (["unplug-function", "--node", "node-1", "../../etc"], "no PCI function '../../etc'"),
        (["write-sysfs", "--node", "node-1", "../../../etc/passwd", "x"], "is not below"),
        (["write-sysfs", "--node", "node-1", "bus/nothing", "x"], "No such file"),
        (["api-delay", "--", "-1"], "must be from 0 to"),
        (["api-outage", "1e9"], "must be from 0 to"),
        (["api-throttling", "--", "-1"], "must be from 0 to"),
        (["exit-container", "missing"], 'pods "missing" not found'),
    ],
)
def test_a_verb_that_fails_reports_the_reason(dev: DevProcess, args: list[str], expected: str) -> None:
    assert expected in dev.verb(*args)


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\n",
        b"{}\n",
        b'{"verb":"dance"}\n',
        b'{"verb":"kill-driver","down_for":"x"}\n',
        b'{"verb":"stop","x":1}\n',
        b"\xff" * 2_000_000,
    ],
)
def test_malformed_requests_do_not_stop_the_control_socket(dev: DevProcess, request_: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(dev.state / control.NAME))
        with contextlib.suppress(OSError):
            connection.sendall(request_)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            assert b'"error":"' in connection.recv(65536)
    assert dev.verb("status")["faults"] == {}


def test_status_finds_the_cluster_by_its_kubeconfig(dev: DevProcess) -> None:
    assert f"state       {dev.state}" in run_dev_command("status", KUBECONFIG=dev.kubeconfig).stdout
    done = run_dev_command("status", "--state-dir", "/nowhere")
    assert (done.returncode, "no `dra dev` responds at /nowhere/control.sock" in done.stderr) == (2, True)


def test_every_verb_is_in_the_help_and_on_the_page() -> None:
    shown = "".join(run_dev_command("--help").stdout.split())
    assert all(verb in shown for verb in VERBS)
    assert "--effect" in run_dev_command("set-health", "--help").stdout
    page = (ROOT / "docs/dev.md").read_text()
    assert all(f"`{verb}" in page for verb in VERBS)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([GPU, "--api-address", "nonsense"], "--api-address 'nonsense' is not HOST:PORT"),
        ([GPU, "--api-address", "127.0.0.1:99999"], "is not HOST:PORT"),
        (["--api-address", "192.0.2.1:0"], "--api-address 192.0.2.1:0 cannot be used"),
        (["--nodes", "0"], "--nodes 0 is not a number from 1 to 100"),
        (
            ["--nodes", "2", "--host", "virtual-machine", "--host", "a", "--host", "b"],
            "once for all nodes, or once for each",
        ),
        (["--nodes", "2", "--node-name", "x"], "--node-name is for one node"),
        ([GPU, "drivers/../" + GPU], "two drivers are named gpu.example.com"),
        (["--image", "busybox=/tmp"], "add --containers"),
        (["--containers", "--image", "busybox"], "is not NAME=FOLDER"),
        (["--apply", "nowhere.yaml"], "--apply nowhere.yaml: No such file"),
        (["--apply", "{broken}"], "broken:2:19: not valid YAML"),
        (["--apply", "{unserved}"], "unserved:3: Thing x: example.com/v1 Thing is not served"),
        (["--apply", "{nameless}"], "nameless:2: metadata.name: missing"),
        (["--apply", "{text}"], "text:1: text in place of an object"),
        (["--apply", "{refused}"], "refused:4: Pod x: spec.containers: Required value"),
        (["--api-cert-file", "/dev/null", "--api-private-key-file", "/dev/null"], "--api-cert-file /dev/null"),
        (["--host", "virtual-machin"], "did you mean 'virtual-machine'"),
        (["--state-dir", "{deep/}" + "x" * 60], "the paths of the sockets in it"),
        (["nowhere.py"], "nowhere.py is not a file"),
        (["unplugg"], "'unplugg' is neither a driver nor a verb, did you mean 'unplug-function'?"),
        (
            ["--nodes", "2", GPU, "--http-address", ":0"],
            "--http-address :0: 2 plugins, each driver on each node, cannot share one address",
        ),
        ([GPU, "--health-interval", "soon"], "'soon' is not a duration"),
    ],
)
def test_invalid_arguments_are_reported_without_a_traceback(
    tmp_path: Path, dra: Dra, args: list[str], expected: str
) -> None:
    files = {
        "broken": "kind: Pod\nmetadata: {name: [}\n",
        "unserved": "---\n---\napiVersion: example.com/v1\nkind: Thing\nmetadata: {name: x}\n",
        "nameless": "apiVersion: v1\nmetadata: {}\n",
        "text": "hello\n",
        "refused": "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: []}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    arguments = [a.replace("{", f"{tmp_path}/").replace("}", "") for a in args]
    assert expected in dra("dev", *arguments, code=2).err


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--kubernetes", "1.33"], "Kubernetes '1.33' is not supported: use one of 1.34, 1.35, 1.36, 1.37"),
        (["--feature-gates", "DRADeviceTaint=true"], "did you mean DRADeviceTaints?"),
        (["--feature-gates", "DRADeviceTaints"], "is not NAME=true or NAME=false"),
        (
            ["--kubernetes", "1.35", "--feature-gates", "GenericWorkload=true"],
            "cannot be switched on in the local cluster",
        ),
        (["--runtime-config", "resource.k8s.io/v2=true"], "runtime config 'resource.k8s.io/v2' is not supported"),
        (
            ["--runtime-config", "scheduling.k8s.io/v1alpha2=false"],
            "runtime config 'scheduling.k8s.io/v1alpha2' is not supported",
        ),
    ],
)
def test_an_unsupported_release_or_gate_is_reported_without_a_traceback(
    args: list[str], expected: str, dra: Dra
) -> None:
    assert expected in dra("dev", *args, code=2).err


@pytest.mark.full
def test_the_api_server_behaves_as_the_requested_release(tmp_path: Path) -> None:
    gates = ("--feature-gates", "DRADeviceTaints=true", "--feature-gates", "DRAExtendedResource=true")
    with run_dev(tmp_path, "--kubernetes", "1.34", *gates, "--runtime-config", "resource.k8s.io/v1beta1=true") as dev:
        assert "as Kubernetes v1.34." in dev.output
        assert json.loads(dev.kubectl("version", "-o", "json"))["serverVersion"]["minor"] == "34"
        versions = dev.kubectl("api-versions").split()
        assert [v for v in versions if v.startswith("resource.k8s.io/")] == [
            "resource.k8s.io/v1",
            "resource.k8s.io/v1beta1",
        ]


@pytest.mark.full
def test_a_driver_that_fails_to_start_is_reported_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER + "\n    def start(self):\n        raise RuntimeError('no licence')\n")
    done = run_dev_command(str(tmp_path / "driver.py"))
    assert done.returncode == 2
    last = "dra: fpga.example.com on node-1: the driver's start raised RuntimeError: no licence"
    assert done.stderr.splitlines()[-1].startswith(last)


def test_a_removed_function_can_be_added_again_unchanged(tmp_path: Path) -> None:
    described.build(tmp_path, {"functions": [NEW]})
    function = described.function(tmp_path, "0000:19:00.0")
    assert function is not None
    described.remove_function(tmp_path, "0000:19:00.0")
    described.add_function(tmp_path, function)
    assert described.function(tmp_path, "0000:19:00.0") == function


FAULTY = """
import asyncio, sys
from dra_kubeletplugin import cli
from dra_devkit.localcluster.scheduler.loop import Scheduler

run = Scheduler.run

async def fails(self):
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(self))
        await self.wait_ready()
        raise RuntimeError("an injected fault")

Scheduler.run = fails
sys.exit(cli.main(["dev"]))
"""


@pytest.mark.full
def test_a_failed_component_ends_the_command_with_an_error_that_names_it() -> None:
    argv = [sys.executable, "-c", FAULTY]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1
    assert "ComponentEnded: scheduler failed: " in done.stderr.splitlines()[-1]
    assert "an injected fault" in done.stderr
