"""Tests the chart of one driver (``dra deploy --chart``): it installs without values, and an admin finds all its objects by one label."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.packaging.manifests.values_validation import value_errors
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from packages.devkit.tests.command_runner import Dra
from packages.devkit.tests.packaging.manifests.cluster_commands import TIMEOUT, run
from packages.devkit.tests.packaging.manifests.rendering import (
    ALL,
    DRIVERS,
    LEAST,
    ROOT,
    SOURCE,
    by_id,
    documents,
    helmed,
    kustomized,
    values_of,
    with_features,
)

LABELLED = "all,clusterroles,clusterrolebindings,validatingadmissionpolicies,deviceclasses"
WITH_PCI: JSON = {**with_features("nodeLabel"), "pciDevices": ["1d0f:5000", "10ee"]}


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *args], capture_output=True, text=True, timeout=100, check=False)


def chart_of(values: Path, folder: Path, *more: str) -> Path:
    assert main(["deploy", str(values), "--chart", str(folder), *more]) == 0
    (chart,) = (path for path in folder.iterdir() if path.is_dir())
    return chart


@pytest.mark.helm
@pytest.mark.parametrize("name", DRIVERS)
def test_a_drivers_chart_installs_without_values(name: str, tmp_path: Path) -> None:
    chart = chart_of(ROOT / f"drivers/{name}/deploy/values.yaml", tmp_path / "charts")
    linted = helm("lint", "--strict", str(chart))
    assert linted.returncode == 0, linted.stdout
    values = values_of(name)
    rendered = helm("template", "any", str(chart), "--namespace", values["namespace"])
    assert rendered.returncode == 0, rendered.stderr
    assert by_id(documents(rendered.stdout)) == by_id(helmed(values, tmp_path / "shared"))


@pytest.mark.helm
def test_values_of_all_kinds_are_defaults_of_the_chart(tmp_path: Path) -> None:
    pods = {"all": {"nodeSelector": {"pool": "npu"}}, "plugin": {"resources": {"limits": {"memory": "1Gi"}}}}
    values = with_features(*ALL, pods=pods, logLevel="debug", httpPort=9090, pciDevices=["1d0f"])
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    chart = chart_of(tmp_path / "values.yaml", tmp_path / "charts", "--chart-version", "1.2.0-rc.1")
    rendered = helm("template", "any", str(chart), "--namespace", values["namespace"])
    assert by_id(documents(rendered.stdout)) == by_id(helmed(values, tmp_path / "shared"))


def test_the_chart_has_the_drivers_name_and_version(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(LEAST | {"image": "registry.example.com:5000/npu:3.1"}))
    chart = chart_of(tmp_path / "values.yaml", tmp_path / "charts", "--chart-version", "1.2.0-rc.1")
    found = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (chart.name, found["name"], found["version"], found["appVersion"]) == ("npu", "npu", "1.2.0-rc.1", "3.1")
    project = chart_of(ROOT / "drivers/pci/deploy/values.yaml", tmp_path / "pci")  # the version of its pyproject.toml
    assert yaml.safe_load((project / "Chart.yaml").read_text())["version"] == "0.1.0"


@pytest.mark.parametrize(
    "more, text",
    [
        ([], "is in no package with a version: add --chart-version VERSION"),
        (["--chart-version", "1.2"], "'1.2' is not a version of SemVer 2"),
        (["--chart-version", "1.2.0-01"], "'1.2.0-01' is not a version of SemVer 2"),  # helm refuses it too
        (["--chart-version", "1.2.0-a..b"], "'1.2.0-a..b' is not a version of SemVer 2"),
        (["--chart-version", "1.2.0", "--directory", "x"], "--directory is for the kustomization"),
        (["--chart-version", "1.2.0", "--kustomize-base", "x"], "--kustomize-base is for the kustomization"),
    ],
)
def test_what_a_chart_cannot_be_written_with(more: list[str], text: str, tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(LEAST))
    assert text in dra("deploy", tmp_path / "values.yaml", "--chart", tmp_path / "charts", *more, code=2).err
    assert not (tmp_path / "charts").exists()


@pytest.mark.helm
@pytest.mark.kubectl
async def test_an_admin_finds_all_objects_of_an_installed_chart_by_its_name(tmp_path: Path) -> None:
    chart = chart_of(ROOT / "drivers/pci/deploy/values.yaml", tmp_path / "charts")
    async with LocalCluster(("node-1",)) as cluster:
        place = ("--namespace", "dra-pci")
        policy = ("--set", "features.networkPolicy=true")
        notes = await run(cluster, "helm", "install", "pci", str(chart), *place, *policy, "--create-namespace")
        assert "kubectl rollout status daemonset/pci --namespace dra-pci" in notes
        assert "Made by" not in notes
        selector = ("-l", "app.kubernetes.io/name=pci")
        named = (await run(cluster, "kubectl", "get", LABELLED, *place, *selector, "-o", "name")).split()
        manifest = documents(await run(cluster, "helm", "get", "manifest", "pci", *place))
        kinds = {"DaemonSet", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "DeviceClass"}
        installed = {f"{m['kind'].lower()}/{m['metadata']['name']}" for m in manifest if m["kind"] in kinds}
        assert installed and installed <= {
            f"{n.partition('/')[0].partition('.')[0]}/{n.partition('/')[2]}" for n in named
        }
        policies = await run(cluster, "kubectl", "get", "netpol", *place, *selector, "--no-headers")
        assert policies.split()[:2] == ["pci", "app.kubernetes.io/name=pci"]
        await run(cluster, "helm", "uninstall", "pci", *place, TIMEOUT)
        assert await run(cluster, "kubectl", "get", "netpol", *place, "-o", "name") == ""


# --- node feature discovery ---------------------------------------------------------------------------


@pytest.mark.helm
@pytest.mark.kubectl
def test_the_rule_of_node_feature_discovery_is_the_same_with_helm_and_kustomize(tmp_path: Path) -> None:
    found = {
        form: [m for m in render(WITH_PCI, tmp_path / form) if m["kind"] == "NodeFeatureRule"]
        for form, render in {"helm": helmed, "kustomize": kustomized}.items()
    }
    assert found["helm"] == found["kustomize"]
    (rule,) = found["helm"][0]["spec"]["rules"]
    assert rule["labels"] == {"example.com/npu": "true"}
    ids = [alternative["matchFeatures"][0]["matchExpressions"] for alternative in rule["matchAny"]]
    assert ids == [
        {"vendor": {"op": "In", "value": ["1d0f"]}, "device": {"op": "In", "value": ["5000"]}},
        {"vendor": {"op": "In", "value": ["10ee"]}},
    ]


@pytest.mark.helm
@pytest.mark.parametrize(
    "change, text",
    [
        ({"pciDevices": "1d0f"}, "pciDevices: '1d0f', not a list of PCI ids"),
        ({"pciDevices": ["1D0F"]}, "pciDevices[0]: '1D0F' is not a PCI id"),
        ({"pciDevices": ["1d0f", 5000]}, "pciDevices[1]: 5000 is not a PCI id"),
        ({"features": {"nodeLabel": False}}, "switch the feature nodeLabel on"),
        ({"nodeLabel": "npu"}, "nodeLabel: 'npu' has no prefix"),
    ],
)
def test_wrong_pci_devices_are_refused(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    values = {**WITH_PCI, **change}
    assert [fault for fault in value_errors(SOURCE, values) if text in str(fault)]
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    refused = helm("template", "any", str(ROOT / "deploy/helm/dra-driver"), "-f", str(tmp_path / "values.yaml"))
    assert refused.returncode != 0


def test_no_pci_devices_need_no_label() -> None:
    assert list(value_errors(SOURCE, LEAST | {"pciDevices": []})) == []
