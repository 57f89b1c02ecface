"""``dra deploy`` prints the written files and the next command. The contents of the files are tested in packages/devkit/tests/packaging/manifests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dra_devkit.packaging.scaffold.names import Names
from dra_devkit.packaging.scaffold.writer import write_package
from packages.devkit.tests.command_runner import Dra


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_package(Names("chardev", "acme-npu", "npu.example.com"), tmp_path / "my drivers")


def counted_files(line: str) -> int:
    found = re.match(r"wrote (\d+) files into ", line)
    assert found, line
    return int(found[1])


def test_deploy_prints_the_files_and_the_command_that_deploys_them(package: Path, dra: Dra) -> None:
    deploy = package / "deploy"
    written_line, command = dra("deploy", deploy).out.splitlines()
    assert (
        counted_files(written_line) == sum(p.is_file() for p in deploy.rglob("*")) - 1
    )  # values.yaml belongs to the author
    below = sum(p.is_file() for p in (deploy / "kustomize").rglob("*"))
    assert written_line.endswith(f" into {deploy}: kustomization.yaml, deviceclass.yaml, kustomize/ ({below})")
    assert (
        command == f"to deploy the driver, run: kubectl apply -k '{deploy}'"
    )  # a shell needs the quotes: the folder has a space


def test_deploy_prints_the_chart_and_the_command_that_installs_it(tmp_path: Path, dra: Dra) -> None:
    build = tmp_path / "build"
    written_line, command = dra("deploy", "--shared-dir", build).out.splitlines()
    assert counted_files(written_line) == sum(p.is_file() for p in build.rglob("*"))
    assert all(f"{name}/ (" in written_line for name in ("kustomize", "helm", "monitoring"))
    assert f" helm install NAME {build}/helm/dra-driver " in command


def test_deploy_reports_no_written_files_if_a_value_is_invalid(package: Path, dra: Dra) -> None:
    with (package / "deploy/values.yaml").open("a") as values:
        values.write("colour: red\n")
    assert dra("deploy", package / "deploy", code=2).out == ""


def test_check_names_the_files_that_differ_from_the_values_and_writes_nothing(package: Path, dra: Dra) -> None:
    deploy = package / "deploy"
    assert dra("deploy", deploy, "--check").out == f"{deploy} is up to date\n"
    values = (deploy / "values.yaml").read_text()
    (deploy / "values.yaml").write_text(values.replace("  npu.example.com:", "  big.npu.example.com:"))
    (deploy / "kustomize/base/objects.yaml").unlink()
    classes = (deploy / "deviceclass.yaml").read_text()
    out = dra("deploy", deploy, "--check", code=1).out.splitlines()
    assert out[:-1] == [f"stale {deploy}/deviceclass.yaml", f"stale {deploy}/kustomize/base/objects.yaml"]
    assert "`make deploy`" in out[-1]
    assert (deploy / "deviceclass.yaml").read_text() == classes
    dra("deploy", deploy)
    dra("deploy", deploy, "--check")


def test_check_names_rendered_files_that_the_values_no_longer_need(package: Path, dra: Dra) -> None:
    obsolete = package / "deploy/kustomize/base/obsolete.yaml"
    obsolete.write_text("# Made by `dra deploy`\n")
    assert json.loads(dra("deploy", package / "deploy", "--check", "-o", "json", code=1).out)["stale"] == [
        "kustomize/base/obsolete.yaml"
    ]
    assert obsolete.exists()
