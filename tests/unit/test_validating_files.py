"""``dra validate`` and ``dra schema``: files judged with no cluster at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_kubeletplugin.cli import main

ROOT = Path(__file__).parents[2]
GPU = str(ROOT / "drivers/gpu_example")
BAD = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: Bad_Name}
spec:
  devices:
    requests: [{name: r, exactly: {deviceClassName: g, cnt: 2, selectors: [{cel: {expression: "device.foo == 1"}}]}}]
    config:
    - opaque:
        driver: gpu.example.com
        parameters: {apiVersion: gpu.resource.example.com/v1alpha1, kind: GpuConfig, sharin: 1}
    - opaque: {driver: gpu.exmple.com, parameters: {}}
---
apiVersion: foo.example.com/v1
kind: Thing
metadata: {name: t}
"""


def test_every_example_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(map(str, ROOT.glob("examples/*/manifest.yaml")))
    assert main(["validate", "--driver", GPU, *files]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) >= len(files)
    assert all(line.startswith("ok ") for line in said)


def test_all_that_is_wrong_is_told_at_once_by_server_cel_and_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    assert main(["validate", str(tmp_path / "bad.yaml"), "--driver", GPU, "-o", "json"]) == 1
    claim, thing = json.loads(capsys.readouterr().out)["objects"]
    told = "\n".join(claim["faults"])
    for part in (
        'unknown field "spec.devices.requests[0].exactly.cnt"',
        "metadata.name: Invalid value",
        "undefined field 'foo'",
        "spec.devices.config[0].opaque: parameters: unknown field 'sharin', did you mean 'sharing'?",
    ):
        assert part in told
    assert "did you mean 'gpu.example.com'?" in claim["warnings"][0]
    assert (thing["faults"], len(thing["warnings"])) == ([], 1)


def test_parameters_that_nobody_judged_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = str(ROOT / "examples/07-opaque-configuration/manifest.yaml")
    assert main(["validate", manifest]) == 0
    said = capsys.readouterr().out
    assert "parameters of 'gpu.example.com' are not judged: give that driver too, with --driver" in said


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "kind: Pod"])
def test_a_file_without_objects_is_told_in_one_sentence(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    assert main(["validate", str(tmp_path / "odd.yaml")]) == 2
    assert "odd.yaml" in capsys.readouterr().err


def test_the_schema_of_a_driver_is_printed_and_an_unknown_kind_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", GPU]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["kind"] == {"const": "GpuConfig"}
    assert main(["schema", GPU, "--kind", "Other"]) == 2
    assert "none of GpuConfig" in capsys.readouterr().err
