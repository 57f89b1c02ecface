"""``dra controller`` reports a mistake of the user in one sentence with exit code 2, before it starts anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dra_kubeletplugin.cli import main
from tests.helpers.kubeconfigs import config_of, write_config

ROOT = Path(__file__).parents[2]
FABRIC = str(ROOT / "drivers/fabric_example")


def dra(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Returns the exit code, standard output and standard error of the command."""
    try:
        code = main(args)
    except SystemExit as e:
        code = int(e.code or 0)
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.fixture(autouse=True)
def no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [k for k in os.environ if k.startswith(("POD_", "KUBE"))]:
        monkeypatch.delenv(name)


def test_the_help_lists_only_options_of_a_controller(capsys: pytest.CaptureFixture[str]) -> None:
    _, output, _ = dra(capsys, "controller", "--help")
    assert "--lease-duration" in output and "--namespace" in output and "--kubeconfig" in output
    assert "--kubelet-root" not in output and "--node-name" not in output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.py"], "nowhere.py is not a file"),
        ([FABRIC], "is not a namespace's name: use the downward API field metadata.namespace"),
        ([FABRIC, "--namespace", "dra-system", "--kubeconfig", "/nowhere"], "--kubeconfig (KUBECONFIG) /nowhere is not a file"),
        ([FABRIC, "--namespace", "dra-system", "--lease-duration", "soon"], "--lease-duration 'soon' is not a duration"),
        (
            [FABRIC, "--namespace", "x", "--lease-duration", "5s", "--kubeconfig", "{config}"],
            "lease duration 5s must be at least 1s and above the renew deadline 10s",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_in_one_sentence(
    args: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, config_of({}))
    code, _, error = dra(capsys, "controller", *(a.replace("{config}", config) for a in args))
    assert code == 2, error
    assert message in error
    assert "Traceback" not in error
