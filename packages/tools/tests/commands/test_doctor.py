"""``dra doctor`` and ``dra gather`` with a running cluster: a healthy node, deliberate faults and the archive."""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin.cli import main
from dra_tools.doctor import Examination, Finding, Level, examine, kubelet
from dra_tools.doctor.cluster import PLUGIN, clock_finding
from tests.helpers.dev_process import GPU, run_dev
from tests.helpers.drivers import Toy, make_toy_class
from tests.helpers.objects import slice_of


def examination_of(node: DriverNode[Toy]) -> Examination:
    settings = node.settings
    return Examination(
        api=node.cluster.config,
        permissions=PLUGIN,
        kubelet_root=settings.kubelet_root,
        cdi_root=settings.cdi_root,
        sysfs_root=settings.sysfs_root,
        node=settings.node_name,
        devices={Toy.name: frozenset(f"toy-{i}" for i in range(4))},
    )


async def messages_of(node: DriverNode[Toy], level: Level) -> str:
    findings: Sequence[Finding] = [f async for f in examine(examination_of(node))]
    return "\n".join(f"{f.topic}: {f.text}" for f in findings if f.level is level)


@pytest.mark.parametrize("changed", [{"host": False}, {"node": ""}], ids=["no host", "no node"])
async def test_doctor_does_not_compare_devices_of_a_laptop_with_the_slices_of_nodes(
    changed: dict[str, object],
) -> None:
    async with node_with(make_toy_class()) as node:
        arguments = {**vars(examination_of(node)), "devices": {Toy.name: frozenset({"mine"})}, **changed}
        findings = [f async for f in examine(Examination(**arguments)) if f.topic == "slices"]
        assert [f.todo for f in findings if f.level is not Level.OK] == ["on a node, add --node-name NODE"]
        assert f"the devices that {Toy.name} finds here are not compared" in findings[0].text


async def test_a_healthy_node_has_no_failure_and_doctor_names_each_part() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        assert await messages_of(node, Level.FAILURE) == ""
        ok_messages = await messages_of(node, Level.OK)
        for part in (
            "toy.example.com (DRAPlugin, v1.DRAPlugin",
            "records: toy.example.com: 1 claim,",
            "slices: 4 devices",
            "API versions: ",
            "clock: agrees",
            "feature gates: ",
        ):
            assert part in ok_messages


async def test_doctor_reports_a_missing_cdi_file_an_orphaned_cdi_file_and_an_unpublished_device() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        (path,) = node.settings.cdi_root.glob("*.json")
        path.unlink()
        (node.settings.cdi_root / "k8s.toy.example.com-claim_orphan.json").write_text("{}")
        examination = examination_of(node)
        missing = {Toy.name: frozenset(["toy-0", "toy-9"])}
        findings = [f async for f in examine(Examination(**{**vars(examination), "devices": missing}))]
        failed = "\n".join(f.text for f in findings if f.level is Level.FAILURE)
        warned = "\n".join(f.text for f in findings if f.level is Level.WARNING)
        assert f"is prepared and {path} is missing" in failed
        assert "finds toy-9 here, but has not published them" in failed
        assert "claim_orphan.json belongs to no record" in warned


async def test_doctor_examines_the_node_without_the_api_server() -> None:
    async with node_with(make_toy_class()) as node:
        node.cluster.api.injected_faults.down = True
        examination = Examination(**{**vars(examination_of(node)), "timeout": 0.3})
        findings = [f async for f in examine(examination)]
        assert any(f.topic == "API server" and f.level is Level.FAILURE for f in findings)
        assert any(f.topic == "sockets" and f.level is Level.OK for f in findings)
        assert not any("this check failed" in f.text for f in findings)


async def test_doctor_and_gather_return_exit_codes_json_and_an_archive_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        secret = {"name": "PASSWORD", "value": "hunter2"}
        container = {"name": "c", "image": "busybox", "env": [secret], "resources": {"claims": [{"name": "r"}]}}
        claims = [{"name": "r", "resourceClaimTemplateName": "none"}]
        spec = {"containers": [container], "resourceClaims": claims}
        await node.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "secretive"}, "spec": spec})
        monkeypatch.setenv("KUBECONFIG", str(node.cluster.kubeconfig))
        settings = node.settings
        places = [
            "--kubelet-root",
            str(settings.kubelet_root),
            "--cdi-root",
            str(settings.cdi_root),
            "--node-name",
            settings.node_name,
        ]
        code = await asyncio.to_thread(main, ["doctor", *places, "-o", "json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        assert code == (3 if any(f["level"] == "unknown" for f in findings) else 0), (
            "a check of this machine may be undecided"
        )
        assert {"kernel", "sockets", "records", "slices"} <= {f["topic"] for f in findings}
        path = tmp_path / "out.tar.gz"
        assert await asyncio.to_thread(main, ["gather", *places, str(path)]) == 0
        assert path.stat().st_mode & 0o777 == 0o600
        with tarfile.open(path) as tar:
            texts = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]
        assert {"out/findings.json", "out/cluster/resourceslices.json", "out/records/toy.example.com.json"} <= set(
            texts
        )
        assert b"hunter2" not in b"".join(texts.values())
        pods = json.loads(texts["out/cluster/pods.json"])
        (secretive,) = [p for p in pods if p["metadata"]["name"] == "secretive"]
        assert secretive["spec"]["containers"][0]["env"] == [{"name": "PASSWORD", "value": "<removed>"}]
        assert await asyncio.to_thread(main, ["gather", *places, str(path)]) == 2  # the archive already exists


def test_doctor_reads_the_machine_below_the_folder_of_the_option_or_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failures(*options: str) -> str:
        assert main(["doctor", "--host", *options, "-o", "json"]) == 1
        findings = json.loads(capsys.readouterr().out)["findings"]
        return "\n".join(f["text"] for f in findings if f["level"] == "failure")

    for name, content in (("variable", "not TOML"), ("option", "\nnot TOML")):
        folder = tmp_path / name / "etc/containerd"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(content)
    fault = "/etc/containerd/config.toml is not valid TOML"
    assert fault not in failures("--kubelet-root", str(tmp_path))
    monkeypatch.setenv("HOST_ROOT", str(tmp_path / "variable"))
    of_variable = failures()
    assert fault in of_variable and "at line 1" in of_variable
    of_option = failures("--host-root", str(tmp_path / "option"))
    assert fault in of_option and "at line 2" in of_option and "at line 1" not in of_option


def test_doctor_beside_dra_dev_checks_its_node_and_not_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine has a kubelet with another root, and a containerd with CDI off. Both have nothing to do with the local cluster."""
    root = tmp_path / "host"
    for pid, command in ((7, "kubelet\0--root-dir\0/foreign\0"), (8, "containerd\0")):
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/comm").write_text(command.partition("\0")[0])
        (root / f"proc/{pid}/cmdline").write_bytes(command.encode())
    (root / "etc/containerd").mkdir(parents=True)
    (root / "etc/containerd/config.toml").write_text(
        'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n'
    )
    with run_dev(tmp_path, GPU) as dev:
        monkeypatch.chdir(dev.state / "node-1")
        places = ["--kubeconfig", dev.kubeconfig, "--host-root", str(root), "--kubelet-root", "kubelet"]
        main(["doctor", "-o", "json", *places, "--cdi-root", "cdi", "--node-name", "node-1"])
        found = json.loads(capsys.readouterr().out)["findings"]
        assert [f for f in found if f["level"] == "failure"] == []
        (kubelet_finding,) = [f for f in found if f["topic"] == "kubelet"]
        assert "`dra dev` runs it" in kubelet_finding["text"]
        assert [f for f in found if f["topic"] == "runtime"] == []
        (root / "var/lib/kubelet").mkdir(parents=True)
        main(["doctor", "-o", "json", "--kubeconfig", dev.kubeconfig, "--kubelet-root", str(root / "var/lib/kubelet")])
        topics = {f["topic"] for f in json.loads(capsys.readouterr().out)["findings"]}
        assert "kubelet" not in topics and "slices" in topics


@pytest.mark.skipif(Path("/var/lib/kubelet/plugins").exists(), reason="this machine has a kubelet")
def test_commands_without_options_name_a_running_dra_dev_and_the_options_for_it(tmp_path: Path) -> None:
    unset = ("KUBECONFIG", "KUBELET_ROOT", "CDI_ROOT", "KUBERNETES_SERVICE_HOST")
    env = {k: v for k, v in os.environ.items() if k not in unset} | {"HOME": str(tmp_path)}

    def dra(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "dra_kubeletplugin", *words]
        return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60, check=False)

    with run_dev(tmp_path, GPU) as dev:
        found = dra("claims")
        assert found.returncode == 2
        (hint,) = [line for line in found.stderr.splitlines() if f"`dra dev` runs in {dev.state}: add " in line]
        options = hint.partition(": add ")[2].split()[:4]
        assert dra("claims", *options).stdout.startswith("DRIVER")
        assert f"`dra dev` runs in {dev.state}: set KUBECONFIG={dev.kubeconfig}" in dra("doctor").stdout
        other = dra("doctor", "--no-host").stdout
        assert "`dra dev` runs" not in other, "the question is about a cluster and not about this machine"


def test_a_relative_kubelet_root_in_a_deep_folder_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets' paths are longer than 107 bytes."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    (deep / "kubelet/plugins_registry").mkdir(parents=True)
    monkeypatch.chdir(deep / "kubelet/plugins_registry")
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as silent:
        dead.bind("dead-reg.sock")
        silent.bind("silent-reg.sock")
        silent.listen()
        found = list(kubelet.drivers(Path("/"), deep / "kubelet"))
    text = "\n".join(f.text for f in found)
    path = f"{deep}/kubelet/plugins_registry/dead-reg.sock"
    assert "too long" not in text
    (dead_finding,) = (f for f in found if f.text == f"no process listens at {path}")
    assert dead_finding.todo == f"its driver was killed or uninstalled: rm {path}"
    assert "silent-reg.sock, of process" in text and "does not respond to GetInfo" in text


async def test_doctor_names_published_devices_of_a_driver_without_a_plugin_on_the_node() -> None:
    async with node_with(make_toy_class()) as node:
        other = slice_of(node.settings.node_name, ["gpu-0"], driver="gone.example.com")
        await node.cluster.apply(other)
        failures = await messages_of(node, Level.FAILURE)
        assert (
            f"slices: gone.example.com has devices on node {node.settings.node_name}, but no plugin of it registers"
            in failures
        )
        assert "toy.example.com has devices on node" not in failures


@pytest.mark.parametrize(
    ("sent", "received", "level", "expected"),
    [
        (1000.0, 1000.1, Level.OK, "agrees"),
        (980.0, 1030.0, Level.OK, "agrees"),  # a slow response is no clock drift
        (1010.0, 1011.0, Level.WARNING, "10 s ahead of"),
        (900.0, 905.0, Level.FAILURE, "95 s behind"),
    ],
)
def test_a_clock_is_wrong_if_the_servers_time_is_not_between_request_and_response(
    sent: float, received: float, level: Level, expected: str
) -> None:
    finding = clock_finding(email.utils.formatdate(1000.0, usegmt=True), sent, received)
    assert (finding.level, expected in finding.text) == (level, True), finding
