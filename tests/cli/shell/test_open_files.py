"""A server command with a low limit of open files exits with one sentence and does not retry in a loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLAIN = """from dra_kubeletplugin import Claim, Device, Driver, PreparedDevice

class Plain(Driver):
    name = "plain.example.com"

    def devices(self) -> list[Device]:
        return []

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]
"""
LIMITED = 'ulimit -S -n "$1" && ulimit -H -n "$2" && shift 2 && exec "$@"'


def run_with_limits(soft: int, hard: int, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", LIMITED, "sh", str(soft), str(hard), sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.cases(2)
@pytest.mark.parametrize("files", [20, 60, 255])
@pytest.mark.parametrize("command", ["dev", "run"])
def test_a_server_command_reports_the_required_limit_of_open_files(command: str, files: int, tmp_path: Path) -> None:
    driver, root = tmp_path / "plain.py", tmp_path / "kubelet"
    driver.write_text(PLAIN)
    for name in ("plugins", "plugins_registry"):
        (root / name).mkdir(parents=True)
    options = ["--kubelet-root", str(root), "--node-name", "node-1"] if command == "run" else []
    done = run_with_limits(files, files, "-m", "dra_kubeletplugin.cli", command, str(driver), *options)
    assert done.returncode == 2
    (error,) = done.stderr.splitlines()
    assert f"a process may have {files} files open here, and 256 are needed: raise the limit (ulimit -n 256)" in error
    assert done.stdout == ""


@pytest.mark.parametrize(("soft", "hard", "expected"), [(64, 512, 512), (64, 4096, 1024), (2048, 4096, 2048)])
def test_need_files_raises_the_soft_limit_up_to_1024(soft: int, hard: int, expected: int) -> None:
    code = "from dra_kubeletplugin.cli.shell.open_files import need_files; import resource; need_files(); "
    done = run_with_limits(soft, hard, "-c", code + "print(resource.getrlimit(resource.RLIMIT_NOFILE))")
    assert (done.stdout, done.stderr) == (f"({expected}, {hard})\n", "")
