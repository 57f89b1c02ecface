"""``dra inspect``, and behavior that all commands share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from packages.devkit.tests.command_runner import Dra

HEAD = "import time\nfrom dra_kubeletplugin import CounterSet, Device, Driver, Nodes, Pool\n"
BODY = "    def prepare(self, claim): return []\n"


def write_driver(tmp_path: Path, answers: str) -> str:
    (tmp_path / "driver.py").write_text(
        f"{HEAD}\nclass D(Driver):\n    name = 'x.example.com'\n    def pools(self): return {answers}\n{BODY}"
    )
    return str(tmp_path / "driver.py")


def inspect_lines(dra: Dra, *args: str) -> list[str]:
    return dra("inspect", *args, "--host", "virtual-machine").out.splitlines()


def test_inspect_shows_an_unpublished_device_as_not_published(tmp_path: Path, dra: Dra) -> None:
    pools = """[
        Pool('node-1', [Device('a', consumes_counters={'s': {'m': 1}}), Device('b', consumes_counters={'s': {'n': 1}})],
             [CounterSet('s', {'n': 2})]),
        Pool('node-1/Nics', [Device('c')]),
        Pool('rack', [Device('d')], nodes=Nodes.all())]"""
    assert inspect_lines(dra, write_driver(tmp_path, pools), "--node-name", "node-1")[:5] == [
        "pool node-1 on node-1: 1 device, 1 counter set, health is not reported",
        "  counter set s: n=2",
        "  b",
        "      consumes from s: n=1",
        f"not published: a: counter set 's' has no counter 'm' ({tmp_path.name}/driver.py:6)",
    ]


CARD = """
import time
from dra_kubeletplugin import Capacity, CounterSet, Device, Driver, Health, Pool, RequestPolicy, Taint

SLOTS = {f"slot-{i}": 1 for i in range(4)}
STANDARD = {"resource.kubernetes.io/numaNode": 1, "resource.kubernetes.io/pcieRoot": "pci0000:17"}

class D(Driver):
    name = "x.example.com"

    def pools(self):
        own = {f"name{i}": "value" * 6 for i in range(12)}
        memory = Capacity("64Gi", RequestPolicy(default="1Gi", min="1Gi", max="64Gi", step="1Gi"))
        card = Device("card", attributes={**STANDARD, "fast": True, **own}, capacity={"memory": memory},
                      allow_multiple_allocations=True, taints=[Taint(key="old"), Taint(key="a.b/c", value="d")])
        half = Device("half", consumes_counters={"card": {"memory": "32Gi", "slot-2": 1, "slot-3": 1}})
        return [Pool("node", [card, half, Device("lost")], [CounterSet("card", {"memory": "64Gi", **SLOTS})])]

    def health(self):
        return {"card": Health(True), "half": Health(False, "its fan stopped"), "lost": Health(None, "no sensor")}

    def prepare(self, claim):
        return []
"""


def test_text_and_json_show_each_device_with_its_health(
    tmp_path: Path, dra: Dra, caplog: pytest.LogCaptureFixture
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(CARD)
    lines = inspect_lines(dra, str(driver))
    shown = "\n".join(lines)
    assert lines[:3] == [
        "pool node on node: 3 devices, 1 counter set",
        "  counter set card: memory=64Gi, slot-0..3=1 each",
        "  card  healthy",
    ]
    assert "      attributes: fast=true, name0=" in shown  # the driver's own attributes are first
    assert "resource.kubernetes.io/pcieRoot=pci0000:17" in shown
    assert "      capacity: memory=64Gi (default 1Gi; min 1Gi, max 64Gi, step 1Gi)" in lines
    assert "      taints: old:NoSchedule, a.b/c=d:NoSchedule" in lines
    assert "      allowMultipleAllocations: true" in lines
    assert "  half  unhealthy: its fan stopped" in lines
    assert "      consumes from card: memory=32Gi, slot-2..3=1 each" in lines
    assert "  lost  health unknown: no sensor" in lines
    assert max(map(len, lines)) <= 118
    assert "{" not in shown  # the text contains no JSON
    assert not caplog.records, "a log line repeats a fault that is shown at its device"
    found = json.loads("\n".join(inspect_lines(dra, str(driver), "-o", "json")))
    health = found["pools"][0]["health"]
    assert health["half"] == {"healthy": False, "message": "its fan stopped"}
    assert (health["card"]["healthy"], health["lost"]["healthy"]) == (True, None)


def test_inspect_shows_unknown_health_if_the_health_method_fails(tmp_path: Path, dra: Dra) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(CARD.replace("        return {", "        raise RuntimeError('no bus')\n        return {"))
    shown = "\n".join(inspect_lines(dra, str(driver)))
    assert "  card  health unknown: health() failed, see the error below" in shown
    assert "no bus" in shown


def test_inspect_shows_all_devices_of_a_function_in_all_pools(tmp_path: Path, dra: Dra) -> None:
    pools = """[
        Pool('node', [Device('half-0', attributes={ID: '0000:00:01.0'}), Device('half-1', attributes={ID: '0000:00:01.0'}, consumes_counters={'s': {'m': 1}})]),
        Pool('node/ports', [Device('port', data=self.host.function('0000:00:01.0')), Device('other', attributes={ID: '0000:00:02.0'})])]"""
    driver = Path(write_driver(tmp_path, pools))
    driver.write_text("ID = 'resource.kubernetes.io/pciBusID'\n" + driver.read_text())
    lines = "\n".join(inspect_lines(dra, str(driver)))
    assert "published as half-0, node/ports/port; not published: it consumes counters of counter set 's'" in lines
    assert "published as node/ports/other" in lines
    functions = json.loads("\n".join(inspect_lines(dra, str(driver), "-o", "json")))["functions"]
    first = next(f for f in functions if f["address"] == "0000:00:01.0")
    assert (first["published"], len(first["faults"])) == (["half-0", "node/ports/port"], 1)


def test_inspect_shows_the_pools_of_the_controller(tmp_path: Path, dra: Dra) -> None:
    driver = write_driver(tmp_path, "[Pool('node-1', [Device('a')]), Pool('rack', [Device('d')], nodes=Nodes.all())]")
    assert inspect_lines(dra, driver, "--controller")[:2] == [
        "pool rack on all nodes: 1 device, health is not reported",
        "  d",
    ]


def test_inspect_stops_a_hanging_driver_at_the_discovery_timeout(tmp_path: Path, dra: Dra) -> None:
    driver = write_driver(tmp_path, "time.sleep(30)")
    assert (
        "pools() of D has not returned within 0.1s"
        in dra("inspect", driver, "--host", "virtual-machine", "--discovery-timeout", "100ms", code=2).err
    )


def test_a_closed_pipe_ends_a_command_without_a_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "dra_kubeletplugin.cli", "inspect", "--host", "virtual-machine"]
    with os.fdopen(writing, "w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_version_is_reported(dra: Dra) -> None:
    assert dra("--version").out.startswith("dra 0.")
