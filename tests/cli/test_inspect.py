"""``dra inspect``, and what all commands have in common."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_kubeletplugin import cli

HEAD = "import time\nfrom dra_kubeletplugin import CounterSet, Device, Driver, Nodes, Pool\n"
BODY = "    def prepare(self, claim): return []\n"


def written(tmp_path: Path, answers: str) -> str:
    (tmp_path / "driver.py").write_text(
        f"{HEAD}\nclass D(Driver):\n    name = 'x.example.com'\n    def pools(self): return {answers}\n{BODY}"
    )
    return str(tmp_path / "driver.py")


def inspected(capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    assert cli.main(["inspect", *args, "--host", "virtual-machine"]) == 0
    return capsys.readouterr().out.splitlines()


def test_what_is_left_out_is_not_shown_as_if_it_were_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = """[
        Pool('node-1', [Device('a', consumes_counters={'s': {'m': 1}}), Device('b', consumes_counters={'s': {'n': 1}})],
             [CounterSet('s', {'n': 2})]),
        Pool('node-1/Nics', [Device('c')]),
        Pool('rack', [Device('d')], nodes=Nodes.all())]"""
    assert inspected(capsys, written(tmp_path, pools), "--node-name", "node-1")[:4] == [
        "pool node-1 on node-1",
        '  counters s {"n": {"value": "2"}}',
        '  b {"consumesCounters": [{"counterSet": "s", "counters": {"n": {"value": "1"}}}]}',
        "not published: a: counter set 's' has no counter 'm'",
    ]


def test_a_function_has_all_its_devices_beside_it_partitions_and_those_of_other_pools_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = """[
        Pool('node', [Device('half-0', {ID: '0000:00:01.0'}), Device('half-1', {ID: '0000:00:01.0'}, consumes_counters={'s': {'m': 1}})]),
        Pool('node/ports', [Device('port', data=self.host.function('0000:00:01.0')), Device('other', {ID: '0000:00:02.0'})])]"""
    driver = Path(written(tmp_path, pools))
    driver.write_text("ID = 'resource.kubernetes.io/pciBusID'\n" + driver.read_text())
    lines = "\n".join(inspected(capsys, str(driver)))
    assert "published as half-0, node/ports/port; not published: it consumes counters of counter set 's'" in lines
    assert "published as node/ports/other" in lines
    functions = json.loads("\n".join(inspected(capsys, str(driver), "-o", "json")))["functions"]
    first = next(f for f in functions if f["address"] == "0000:00:01.0")
    assert (first["published"], len(first["faults"])) == (["half-0", "node/ports/port"], 1)


def test_the_controller_s_pools_can_be_looked_at_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = written(tmp_path, "[Pool('node-1', [Device('a')]), Pool('rack', [Device('d')], nodes=Nodes.all())]")
    assert inspected(capsys, driver, "--controller")[:2] == ['pool rack on {"allNodes": true}', "  d"]


def test_a_driver_that_hangs_ends_the_command_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = written(tmp_path, "time.sleep(30)")
    assert cli.main(["inspect", driver, "--host", "virtual-machine", "--discovery-timeout", "100ms"]) == 2
    assert "pools() of D has not returned within 0.1s" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "dra_kubeletplugin.cli", "inspect", "--host", "virtual-machine"]
    with os.fdopen(writing, "w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dra 0.")
