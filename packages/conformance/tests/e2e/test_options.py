"""The tests of a driver on a cluster stop before they change anything if their input is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    module = ["-p", "dra_conformance.e2e.options", "--pyargs", "dra_conformance.e2e.steps", "--driver-dir", str(folder)]
    argv = [sys.executable, "-m", "pytest", "-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", *module]
    env = os.environ | {"KUBECONFIG": str(folder / "kubeconfig")}
    return subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=100)


def test_a_driver_without_e2e_toml_is_refused_with_an_example(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"{tmp_path}/e2e.toml is missing: write in it what a container gets" in done.stderr
    assert "expect = ['env NPU_*={name}']" in done.stderr


@pytest.mark.parametrize(
    "kubeconfig", ["", "server: https://127.0.0.1:1"], ids=["none", "a cluster that does not respond"]
)
def test_without_a_cluster_the_next_step_is_named(tmp_path: Path, kubeconfig: str) -> None:
    (tmp_path / "e2e.toml").write_text("expect = []\n")
    if kubeconfig:
        (tmp_path / "kubeconfig").write_text(
            "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], "
            f"users: [{{name: u, user: {{}}}}], clusters: [{{name: c, cluster: {{{kubeconfig}}}}}]}}"
        )
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "there is no cluster to test on, set KUBECONFIG:" in done.stderr
