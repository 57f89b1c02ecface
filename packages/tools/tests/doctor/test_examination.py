"""The findings of ``dra doctor`` for test folders, configurations and objects, and the redaction of ``dra gather``."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.resourceapi.unhealthy_reason import ATTRIBUTE
from dra_tools.doctor import Finding, Level, kubelet, machine, published, runtimes, specs
from dra_tools.doctor.processes import Process, running
from dra_tools.doctor.redaction import REMOVED, redact_object, redact_text

CDI = Path("/var/run/cdi")


def findings_text(findings: Any) -> str:
    return "\n".join(f"{f.level}: {f.text} -> {f.todo}" for f in findings)


def examine_config(root: Path, text: str, name: str = "etc/containerd/config.toml", cdi: Path = CDI) -> Finding:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = list(runtimes.look(root, cdi, []))
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("config", "level", "expected"),
    [
        ("version = 2", Level.UNKNOWN, "containerd 1.7 has CDI off by default, and containerd 2.0 and later has it on"),
        ('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true', Level.OK, "/etc/cdi, /var/run/cdi"),
        ('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false', Level.FAILURE, "CDI off"),
        ("version = 3", Level.OK, "reads CDI specs"),
        ('version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = false', Level.FAILURE, "CDI off"),
        (
            'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/opt/cdi"]',
            Level.WARNING,
            "drivers write to /var/run/cdi",
        ),
        ("version = ", Level.FAILURE, "is not valid TOML"),
        ("version = 9", Level.UNKNOWN, "version 9"),
    ],
)
def test_the_finding_for_a_runtime_follows_its_configuration(
    tmp_path: Path, config: str, level: Level, expected: str
) -> None:
    found = examine_config(tmp_path, config)
    assert found.level is level
    assert expected in found.text


def test_var_run_and_run_are_the_same_folder_and_crio_enables_cdi_by_default(tmp_path: Path) -> None:
    folders = '[crio.runtime]\ncdi_spec_dirs = ["/run/cdi"]'
    assert examine_config(tmp_path, folders, "etc/crio/crio.conf.d/10.conf").level is Level.OK


def test_doctor_distinguishes_conflicting_specs_from_an_unreadable_spec(tmp_path: Path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    device = {"name": "d", "containerEdits": {"env": ["A=1"]}}
    for folder, names in ((low, "ab"), (high, "c")):
        folder.mkdir()
        for name in names:
            kind = "v.com/twice" if folder is low else "v.com/other"
            (folder / f"{name}.json").write_text(json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": [device]}))
    (low / "c.json").write_text((high / "c.json").read_text())
    (high / "bad.json").write_text("{")
    text = findings_text(specs.look([low, high]))
    assert text.count('conflicting device "v.com/twice=d"') == 2
    assert "bad.json" in text
    assert "warning: v.com/other=d is in" in text


def test_doctor_names_a_socket_without_a_listener_and_a_socket_that_does_not_respond(tmp_path: Path) -> None:
    for name in ("plugins", "plugins_registry"):
        (tmp_path / name).mkdir()
    dead_socket, silent_socket = (
        tmp_path / "plugins_registry/dead-reg.sock",
        tmp_path / "plugins_registry/mute-reg.sock",
    )
    with socket.socket(socket.AF_UNIX) as a, socket.socket(socket.AF_UNIX) as b:
        a.bind(str(dead_socket))
        a.listen()
        a.close()
        b.bind(str(silent_socket))
        b.listen()
        text = findings_text(kubelet.drivers(Path("/"), tmp_path))
    assert (
        f"failure: no process listens at {dead_socket} -> its driver was killed or uninstalled: rm {dead_socket}"
        in text
    )
    assert f"{silent_socket}, of process" in text
    assert "does not respond to GetInfo" in text


def test_doctor_finds_a_kubelet_with_another_root_by_its_process(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/comm").write_text("kubelet\n")
    (tmp_path / "proc/7/cmdline").write_bytes(b"/usr/bin/kubelet\0--root-dir\0/data/kubelet\0")
    processes = list(running(tmp_path))
    assert processes == [Process(7, "kubelet", ("/usr/bin/kubelet", "--root-dir", "/data/kubelet"))]
    text = findings_text(kubelet.look(tmp_path, tmp_path / "var/lib/kubelet", processes))
    assert "use --kubelet-root /data/kubelet" in text
    assert "has no folder plugins and no folder plugins_registry" in text


def test_a_machine_without_pci_or_kernel_is_reported_as_unknown(tmp_path: Path) -> None:
    assert {f.level for f in machine.look(tmp_path, tmp_path, tmp_path)} == {Level.UNKNOWN}


def slice_of(pool: str, *devices: str, generation: int = 1, count: int = 1, node: str = "n") -> JSON:
    return {
        "spec": {
            "driver": "d.example.com",
            "nodeName": node,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": [{"name": d} for d in devices],
        }
    }


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        (
            [slice_of("p", "a", count=2)],
            "pool d.example.com/p: the pool has 1 of 2 slices: no device of the pool is allocated until",
        ),
        ([slice_of("p", "a"), slice_of("p", "b", generation=2)], "1 slice of older generations"),
        ([slice_of("p", "a", count=2), slice_of("p", "a", count=2)], "has a more than once"),
        ([slice_of("p", "a", node="gone")], "nodes that do not exist: gone"),
    ],
)
def test_doctor_names_pools_that_the_scheduler_cannot_use(slices: list[JSON], expected: str) -> None:
    assert expected in findings_text(published.faults(slices, {"n"}))


@pytest.mark.parametrize("exists", [True, False])
async def test_a_slice_without_a_node_completes_the_pool_of_the_examined_node(exists: bool) -> None:
    """A slice for all nodes may contain the counters of a pool. A slice of another pool does not complete the pool."""
    server = ApiServer()
    own = slice_of("p", "a", count=2)
    counters = slice_of("p" if exists else "q", "counters", count=2)
    for name, obj in (("own", own), ("counters", counters)):
        obj["metadata"] = {"name": name, "uid": name}
        obj["spec"]["devices"] = obj["spec"]["devices"] if obj is own else []
    del counters["spec"]["nodeName"]
    counters["spec"] |= {"allNodes": True, "sharedCounters": [{"name": "card", "counters": {"c": {"value": "1"}}}]}
    for obj in (own, counters):
        server.storage.put("resourceslices.resource.k8s.io", obj)
    await server.start()
    try:
        async with KubeClient(server.config) as client:
            found = [f async for f in published.look(client, own["spec"]["nodeName"])]
    finally:
        await server.close()
    expected = "1 device in 1 slice of d.example.com" if exists else "the pool has 1 of 2 slices"
    assert expected in findings_text(found)
    assert [f.level for f in found] == [Level.OK if exists else Level.FAILURE]


def test_a_complete_pool_has_no_faults() -> None:
    assert list(published.faults([slice_of("p", "a", count=2), slice_of("p", "b", count=2)], {"n"})) == []


def test_doctor_names_tainted_devices_with_their_node_and_a_command_that_shows_the_reason() -> None:
    unhealthy = {"key": "d.example.com/ecc", "value": "fatal", "effect": "NoExecute"}
    slices = [slice_of(f"p{i}", "a", "b", node=f"n{i}") for i in range(10)]
    for s in slices:
        s["spec"]["devices"][0]["taints"] = [unhealthy]
        s["spec"]["devices"][1]["taints"] = [
            {"key": "d.example.com/note", "effect": "None"}
        ]  # the effect None does not affect scheduling
    slices[1]["spec"]["devices"][0]["attributes"] = {ATTRIBUTE: {"string": "the fan stands still"}}
    old = slice_of("p0", "c", generation=0, node="n0")
    old["spec"]["devices"][0]["taints"] = [unhealthy]
    first, *others, last = [f for f in published.faults([*slices, old], None) if "taint" in f.text]
    assert first.text == (
        "node n0: 1 device with a taint, so no new pod gets it: a of d.example.com has d.example.com/ecc=fatal:NoExecute"
    )
    assert others[0].text.endswith("a of d.example.com has d.example.com/ecc=fatal:NoExecute (the fan stands still)")
    assert first.todo == "see the driver's events: kubectl describe node n0"
    assert [f.todo.rpartition(" ")[2] for f in others] == [f"n{i}" for i in range(1, 8)]
    assert (last.text, last.todo) == (
        "2 more nodes with tainted devices",
        "list the devices: dra top --once --filter tainted",
    )


def test_doctor_names_the_partitions_of_a_tainted_card_once_with_their_taint() -> None:
    parts = slice_of("p", *(f"card-{i}" for i in range(12)), "other", node="n")
    for i, device in enumerate(parts["spec"]["devices"]):
        device["taints"] = [{"key": "d.example.com/ecc" if i < 12 else "d.example.com/worn", "effect": "NoSchedule"}]
    (found,) = (f for f in published.faults([parts], None) if "taint" in f.text)
    assert found.text == (
        "node n: 13 devices with a taint, so no new pod gets them: card-0, card-1, card-2 and 9 more of d.example.com have "
        "d.example.com/ecc:NoSchedule, other of d.example.com has d.example.com/worn:NoSchedule"
    )


SECRET = "s3cr3t-hunter2"  # noqa: S105 a test value that redaction must remove
_TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"  # noqa: S105 a test value that redaction must remove
_keys = st.sampled_from(["password", "apiKey", "token", "MY_SECRET", "clientSecret", "private_key", "Authorization"])
_objects_with_secret = st.recursive(
    _keys.map(lambda k: {k: SECRET})
    | st.just({"env": [{"name": "X", "value": SECRET}]})
    | st.just({"env": [f"X={SECRET}"]})
    | st.just({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET}}})
    | st.just({"managedFields": [SECRET]})
    | st.just({"args": [f"--password={SECRET}"]}),
    lambda inner: st.lists(inner, min_size=1, max_size=2) | st.fixed_dictionaries({"spec": inner}),
    max_leaves=5,
)


@given(_objects_with_secret)
def test_redaction_removes_a_secret_at_every_place_in_an_object(obj: Any) -> None:
    assert SECRET not in json.dumps(redact_object(obj))


def test_redaction_of_a_log_keeps_its_text_and_removes_tokens_keys_and_passwords() -> None:
    log = (
        f"prepared gpu-1 with Authorization: Bearer {_TOKEN}\nhttps://user:{SECRET}@host/x password={SECRET}\n"
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nend"
    )
    redacted = redact_text(log)
    assert SECRET not in redacted
    assert "eyJ" not in redacted
    assert "abc" not in redacted
    assert redacted.startswith("prepared gpu-1 with ")
    assert redacted.endswith("end")


def test_redaction_keeps_references_to_secrets() -> None:
    obj = {"secretName": "tls", "tokenExpirationSeconds": 3600, "volumes": [{"secret": {"secretName": "x"}}]}
    assert redact_object(obj)["secretName"] == "tls"
    assert redact_object(obj)["volumes"] == obj["volumes"]
    assert REMOVED not in json.dumps(
        redact_object({"imagePullSecrets": [{"name": "x"}], "automountServiceAccountToken": False})
    )


def test_doctor_reports_the_drivers_own_checks_even_if_its_devices_method_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file = tmp_path / "checked.py"
    file.write_text(
        "from dra_kubeletplugin import Check, Driver\n"
        "class Checked(Driver):\n"
        "    name = 'checked.example.com'\n"
        "    def devices(self): raise OSError('the bus is gone')\n"
        "    def prepare(self, claim): return []\n"
        "    async def checks(self):\n"
        "        return [Check('library'), Check('count', 'NVML says 0, PCI says 2', 'mount /dev'),\n"
        "                Check('root', 'no libgpu.so', blocking=True)]\n"
    )
    assert main(["doctor", "--no-host", "--driver", str(file), "-o", "json"]) == 1
    found = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["topic"] == "driver"]
    assert [(f["level"], f["text"], f["todo"]) for f in found[:3]] == [
        ("ok", "checked.example.com: library", ""),
        ("warning", "checked.example.com: count: NVML says 0, PCI says 2", "mount /dev"),
        ("failure", "checked.example.com: root: no libgpu.so", ""),
    ]
    assert "the bus is gone" in found[3]["text"]
    file.write_text(
        file.read_text().replace("return [Check('library')", "raise OSError('odd')\n        return [Check('library')")
    )
    main(["doctor", "--no-host", "--driver", str(file), "-o", "json"])
    assert "checked.example.com: checks: the driver's checks raised OSError: odd" in capsys.readouterr().out


def test_doctor_reports_a_failing_driver_and_continues_with_other_topics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    unhealthy = tmp_path / "sick.py"
    unhealthy.write_text(
        "from dra_kubeletplugin import Driver\n"
        "class Sick(Driver):\n"
        "    name = 'sick.example.com'\n"
        "    def devices(self): raise OSError('the bus is gone')\n"
        "    def prepare(self, claim): return []\n"
    )
    assert main(["doctor", "--no-host", "--driver", str(unhealthy), "-o", "json"]) == 1
    findings = {f["topic"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["driver"]["level"] == "failure"
    assert findings["driver"]["text"].startswith(
        "sick.example.com: the driver's devices raised OSError: the bus is gone"
    )
    assert findings["API server"]["level"] == "unknown"  # the examination continued to the API server
