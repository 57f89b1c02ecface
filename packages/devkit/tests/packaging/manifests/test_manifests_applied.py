"""Applies rendered manifests to the local cluster: with strict validation, twice without a change, and deletes all objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.packaging.manifests.values import merged
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.packaging.manifests.cluster_commands import TIMEOUT, run
from packages.devkit.tests.packaging.manifests.rendering import (
    ALL,
    DRIVERS,
    ROOT,
    SOURCE,
    Renderings,
    kustomized,
    plain,
    values_of,
    with_features,
)

CERT_MANAGER = Path(__file__).parent / "cert_manager.yaml"
Kubectl = Callable[..., Awaitable[str]]
NAMESPACED = "serviceaccount,configmap,daemonset,deployment,role,rolebinding,service,poddisruptionbudget"
CLUSTER_WIDE = (
    "clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,deviceclass,namespace,"
    "validatingwebhookconfiguration"
)


OLDER = {f"resource.k8s.io/{v}": True for v in ("v1beta1", "v1beta2")}  # the versions of releases before 1.34


@pytest.fixture
async def kubectl() -> AsyncIterator[Kubectl]:
    async with LocalCluster(("node-1",), features=Features.of(runtime_config=OLDER)) as cluster:

        async def kubectl(*args: str, stdin: str = "") -> str:
            return await run(cluster, "kubectl", *args, stdin=stdin)

        await kubectl("apply", "-f", str(CERT_MANAGER))
        await kubectl("wait", "--for=condition=Established", TIMEOUT, "-f", str(CERT_MANAGER))
        yield kubectl


def text(manifests: list[JSON]) -> str:
    return yaml.safe_dump_all(manifests)


EVERYTHING = with_features(*ALL)
ON_NODE = with_features("probes", "hostNetwork", "namespace")


@pytest.mark.full
@pytest.mark.kubectl
async def test_every_form_can_be_applied_with_strict_validation(kubectl: Kubectl) -> None:
    forms = [EVERYTHING, ON_NODE, with_features("namespace")]
    forms += [merged(EVERYTHING, d.values) for d in SOURCE.distributions.values()]
    for form in forms:
        manifests = plain(form)
        documents = text(manifests)
        output = await kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=documents)
        assert output.count("serverside-applied") == len(manifests), output
        await kubectl("delete", "--ignore-not-found", "-f", "-", stdin=documents)


@pytest.mark.cases(1)
@pytest.mark.kubectl
@pytest.mark.parametrize("name", DRIVERS)
async def test_the_folder_of_a_driver_can_be_applied_updated_and_deleted_completely(
    name: str, kubectl: Kubectl, tmp_path: Path
) -> None:
    folder = f"{ROOT}/drivers/{name}/deploy"
    before = (await kubectl("get", CLUSTER_WIDE, "-o", "name")).split()
    await kubectl("apply", "--validate=strict", "-k", folder)
    again = await kubectl("apply", "--validate=strict", "-k", folder)
    assert "created" not in again
    # The selector of a PodDisruptionBudget has the patch strategy `replace`, so the patch of kubectl is never empty.
    assert not [line for line in again.splitlines() if line.endswith("configured") and "poddisruption" not in line]
    changed = merged(values_of(name), {"options": {"MORE": "1"}, "logLevel": "debug", "httpPort": 9000})
    kustomized(changed, tmp_path / "changed")
    updated = await kubectl("apply", "--validate=strict", "-k", str(tmp_path / "changed"))
    assert f"daemonset.apps/{values_of(name)['name']} configured" in updated
    await kubectl("delete", "-k", folder, "--ignore-not-found", TIMEOUT)
    assert (await kubectl("get", CLUSTER_WIDE, "-o", "name")).split() == before
    remaining = await kubectl("get", NAMESPACED, "-n", values_of(name)["namespace"], "-o", "name")
    assert remaining == ""


@pytest.mark.full
@pytest.mark.kubectl
@pytest.mark.parametrize("features", [["rollingUpdate"], []], ids=["two-at-once", "one-after-the-other"])
async def test_an_update_of_the_image_completes(features: list[str], tmp_path: Path) -> None:
    """The manifests have no probes, because the local cluster does not run probes and never reports such pods as ready."""
    async with LocalCluster(("node-1",)) as cluster:
        folders = {"kubeletRoot": str(cluster.node.kubelet_root), "cdiRoot": str(cluster.node.cdi_root)}
        driver_values = with_features("namespace", "controller", *features, **folders)
        for i, image in enumerate(("npu:1", "npu:2")):
            kustomized(merged(driver_values, {"image": image}), tmp_path / str(i))
            await run(cluster, "kubectl", "apply", "-k", str(tmp_path / str(i)))
            for workload in ("daemonset/npu", "deployment/npu-controller"):
                await run(cluster, "kubectl", "rollout", "status", workload, "-n", "npu-system", TIMEOUT)
        images = await run(cluster, "kubectl", "get", "pods", "-n", "npu-system", "-o", "jsonpath={..image}")
        assert "npu:2" in images


@pytest.mark.kubectl
@pytest.mark.helm
async def test_the_output_of_helm_can_be_applied_with_strict_validation(
    kubectl: Kubectl, renderings: Renderings
) -> None:
    await kubectl("create", "namespace", EVERYTHING["namespace"])
    manifests = renderings.helmed(EVERYTHING)
    output = await kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=text(manifests))
    assert output.count("serverside-applied") == len(manifests), output


@pytest.mark.full
@pytest.mark.helm
@pytest.mark.kubectl
async def test_helm_installs_upgrades_and_uninstalls() -> None:
    values = ["-f", str(ROOT / "drivers/fabric_example/deploy/values.yaml")]
    chart = str(ROOT / "deploy/helm/dra-driver")
    async with LocalCluster(("node-1",)) as cluster:

        async def helm(*args: str) -> str:
            return await run(cluster, "helm", *args, "--namespace", "apart")

        async def names() -> list[str]:
            found = await run(cluster, "kubectl", "get", f"{NAMESPACED},{CLUSTER_WIDE}", "-n", "apart", "-o", "name")
            return [n for n in found.split() if "fabric" in n]

        await helm("install", "fabric-example", chart, *values, "--create-namespace")
        installed = await names()
        assert "daemonset.apps/fabric-example" in installed
        assert "deviceclass.resource.k8s.io/tpu.fabric.dra-kubeletplugin.dev" in installed
        await helm("upgrade", "fabric-example", chart, *values, "--set", "features.controller=false,options.MORE=yes")
        assert {n for n in installed if "controller" not in n} == set(await names())
        await helm("uninstall", "fabric-example", TIMEOUT)
        assert await names() == []
