"""Commands under test use no file of a node's container runtime, kubelet or kubeconfig on the machine that runs the tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import machine
from tests.helpers.dev_process import GPU, ROOT

COMMANDS = [
    ["doctor", "--host"],
    ["gather", "--host", "{folder}/found.tar.gz"],
    ["claims"],
    ["cleanup", "--driver-name", "gpu.example.com", "--node-name", "node-1"],
    ["inspect", GPU],
    ["run", GPU, "--node-name", "node-1"],
    ["explain"],
    ["top", "--once"],
    ["conformance", "run", "--attach", "--kubelet-root", "{folder}"],
]


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_no_command_uses_files_of_the_machine(command: list[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    words = [sys.executable, "-m", "dra_kubeletplugin", *(word.format(folder=tmp_path) for word in command)]
    done = subprocess.run(
        ["strace", "-f", "-qq", "-s", "999", "-e", "trace=%file,connect", "-o", str(trace), *words],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "usage:" not in done.stderr
    paths = set(re.findall(r'"(/[^"]*)"', trace.read_text(errors="replace")))
    assert any(path.startswith(str(ROOT / "src")) for path in paths), "the trace has the files of the command"
    assert sorted(path for path in paths if path.startswith(machine.FOLDERS)) == []
