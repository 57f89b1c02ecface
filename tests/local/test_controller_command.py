"""``dra controller`` as a user meets it: what is wrong is one sentence and exit code 2, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FABRIC = str(ROOT / "drivers/fabric_example")


def dra(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {k: v for k, v in os.environ.items() if not k.startswith(("POD_", "KUBE"))} | env
    return subprocess.run(
        [sys.executable, "-m", "dra_kubeletplugin.cli", *args],
        env=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_only_options_that_mean_something_to_a_controller_are_offered() -> None:
    shown = dra("controller", "--help").stdout
    assert "--lease-duration" in shown and "--namespace" in shown and "--kubeconfig" in shown
    assert "--kubelet-root" not in shown and "--node-name" not in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.py"], "nowhere.py is not a file"),
        ([FABRIC], "no namespace: use the downward API field metadata.namespace"),
        ([FABRIC, "--namespace", "dra-system", "--kubeconfig", "/nowhere"], "--kubeconfig (KUBECONFIG) /nowhere is not a file"),
        ([FABRIC, "--namespace", "dra-system", "--lease-duration", "soon"], "--lease-duration 'soon' is not a duration"),
        (
            [FABRIC, "--namespace", "x", "--lease-duration", "5s", "--kubeconfig", "{config}"],
            "lease duration 5s must be at least 1s and above the renew deadline 10s",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(args: list[str], message: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    cluster = '{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}'
    context = '{"name": "c", "context": {"cluster": "c", "user": ""}}'
    config.write_text(f'{{"clusters": [{cluster}], "contexts": [{context}], "current-context": "c", "users": []}}')
    done = dra("controller", *(a.replace("{config}", str(config)) for a in args))
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
