"""The findings of ``dra doctor`` for test folders, drivers and objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.resourceapi.unhealthy_reason import ATTRIBUTE
from dra_tools.doctor import Level, kubelet, machine, published, specs
from dra_tools.doctor.processes import Process, running


def findings_text(findings: Any) -> str:
    return "\n".join(f"{f.level}: {f.text} -> {f.todo}" for f in findings)


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


def test_doctor_finds_a_kubelet_with_another_root_by_its_process(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/comm").write_text("kubelet\n")
    (tmp_path / "proc/7/cmdline").write_bytes(b"/usr/bin/kubelet\0--root-dir\0/data/kubelet\0")
    processes = list(running(tmp_path))
    assert processes == [Process(7, "kubelet", ("/usr/bin/kubelet", "--root-dir", "/data/kubelet"))]
    text = findings_text(kubelet.look(tmp_path, tmp_path / "var/lib/kubelet", processes))
    assert "use --kubelet-root /data/kubelet" in text
    assert "has no folder plugins and no folder plugins_registry" in text
    for name in ("plugins", "plugins_registry"):
        (tmp_path / name).mkdir()
    (found,) = kubelet.look(tmp_path, tmp_path, processes)
    assert found.level is Level.FAILURE and "runs with --root-dir /data/kubelet" in found.text


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


def test_a_driver_whose_devices_method_fails_ends_neither_its_own_checks_nor_the_examination(
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
    findings = json.loads(capsys.readouterr().out)["findings"]
    found = [f for f in findings if f["topic"] == "driver"]
    assert [(f["level"], f["text"], f["todo"]) for f in found[:3]] == [
        ("ok", "checked.example.com: library", ""),
        ("warning", "checked.example.com: count: NVML says 0, PCI says 2", "mount /dev"),
        ("failure", "checked.example.com: root: no libgpu.so", ""),
    ]
    assert found[3]["text"].startswith("checked.example.com: the driver's devices raised OSError: the bus is gone")
    assert [f["level"] for f in findings if f["topic"] == "API server"] == ["unknown"]  # the examination went on
    file.write_text(
        file.read_text().replace("return [Check('library')", "raise OSError('odd')\n        return [Check('library')")
    )
    main(["doctor", "--no-host", "--driver", str(file), "-o", "json"])
    assert "checked.example.com: checks: the driver's checks raised OSError: odd" in capsys.readouterr().out
