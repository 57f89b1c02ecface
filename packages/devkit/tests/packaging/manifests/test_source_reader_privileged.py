"""A driver class with ``privileged = True`` gets a privileged container from `dra deploy` and from its own Helm chart."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kubeletplugin.cli import main
from packages.devkit.tests.packaging.manifests.rendering import LEAST, built, documents

DRIVER = """
from dra_kubeletplugin import Driver


class Npu(Driver):
    name = "npu.example.com"
    {}

    def devices(self):
        return []

    def prepare(self, claim):
        return []
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "driver.py").write_text(DRIVER.format("privileged = True"))
    write_values(tmp_path, {})
    return tmp_path


def write_values(package: Path, features: dict[str, bool]) -> None:
    values = {**LEAST, "features": features, "options": {}}
    (package / "deploy").mkdir(exist_ok=True)
    (package / "deploy/values.yaml").write_text(yaml.safe_dump(values))


def deploy(package: Path) -> None:
    assert main(["deploy", str(package / "deploy")]) == 0


def test_a_driver_with_processes_gets_a_supervisor(package: Path) -> None:
    (package / "driver.py").write_text(DRIVER.format("processes = True"))
    deploy(package)
    text = (package / "deploy/kustomization.yaml").read_text()
    assert "components/supervisor" in text and not listed(package)


def security(objects: Sequence[dict[str, Any]]) -> dict[str, object]:
    (daemonset,) = [o for o in objects if o["kind"] == "DaemonSet"]
    found: dict[str, object] = daemonset["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    return found


def listed(package: Path) -> bool:
    return "components/privileged" in (package / "deploy/kustomization.yaml").read_text()


def test_its_kustomization_has_the_component(package: Path) -> None:
    deploy(package)
    assert listed(package)
    (package / "driver.py").write_text(DRIVER.format(""))
    deploy(package)
    assert not listed(package)


@pytest.mark.kubectl
def test_kubectl_applies_a_privileged_container(package: Path) -> None:
    deploy(package)
    assert security(built(package / "deploy"))["privileged"] is True


@pytest.mark.helm
def test_helm_installs_a_privileged_container_with_the_chart_of_the_driver(package: Path) -> None:
    assert main(["deploy", "--shared-dir", str(package / "own"), "--driver", str(package)]) == 0
    rendered = subprocess.run(
        ["helm", "template", "npu", str(package / "own/helm/dra-driver"), "-f", str(package / "deploy/values.yaml")],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert security(documents(rendered))["privileged"] is True


def test_values_can_disable_the_privileged_container_with_a_warning(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_values(package, {"privileged": False})
    deploy(package)
    assert not listed(package)
    assert (
        "values.yaml:" in (printed := capsys.readouterr().err)
        and "features.privileged: false, but Npu sets privileged = True: its writes to sysfs will fail" in printed
    )


def test_its_own_chart_is_privileged_by_default_and_the_chart_of_all_drivers_is_not(package: Path) -> None:
    own, of_all = package / "own", package / "all"
    assert main(["deploy", "--shared-dir", str(own), "--driver", str(package)]) == 0
    assert main(["deploy", "--shared-dir", str(of_all)]) == 0
    on = [
        yaml.safe_load((folder / "helm/dra-driver/values.yaml").read_text())["features"]["privileged"]
        for folder in (own, of_all)
    ]
    assert on == [True, False]
