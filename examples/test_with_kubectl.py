from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dra_devkit.testing import Cluster

HERE = Path(__file__).parent
CLASS = HERE.parent / "drivers/gpu_example/deploy/deviceclass.yaml"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl on the PATH")
def test_kubectl_applies_all_examples(local_cluster: Cluster, tmp_path: Path) -> None:
    """Uses strict validation, as on a real cluster."""
    kubectl = ["kubectl", "--cache-dir", tmp_path, "--kubeconfig", local_cluster.kubeconfig]
    apply = [*kubectl, "apply", "--validate=strict", "-f", CLASS, "-R", "-f", HERE]
    done = subprocess.run(apply, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    pods = [line for line in done.stdout.splitlines() if line.startswith("pod/")]
    assert len(pods) == sum(f.read_text().count("kind: Pod\n") for f in HERE.rglob("manifest.yaml"))
