"""`dra claims forget` completes names of CDI files. Bash expands completion words, so the script must print only UIDs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dra_devkit.commands.completion import script


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_bash_does_not_run_a_command_in_a_file_name(tmp_path: Path) -> None:
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    uid = "0f2c8f0e-6ad5-4d5c-b2a0-3c1f6a5b9d11"
    for name in (uid, "$(touch ran)", "`touch ran`", "${x:=$(touch ran)}"):
        (cdi / f"k8s.gpu.example.com-claim_{name}.json").touch()
    (tmp_path / "script").write_text(script("bash"))
    command = "source ./script; _dra_uids ''"
    env = {"PATH": "/usr/bin:/bin", "CDI_ROOT": str(cdi)}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert uid in done.stdout.split()
    assert not (tmp_path / "ran").exists()
    assert "$" not in done.stdout
