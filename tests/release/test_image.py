"""The image of the PCI driver is built from this tree, has the expected contents, and runs as its DaemonSet runs it."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.packaging.manifests.deployed import Deployed
from packages.devkit.tests.packaging.manifests.rendering import kustomized, values_of
from tests.helpers.shared_folders import shared_folder
from tests.release import images
from tests.release.daemon import running
from tests.release.installation import ROOT

pytestmark = [pytest.mark.image, pytest.mark.timeout(1500)]
SBOM = "usr/share/sbom/image.cdx.json"


@pytest.fixture(scope="session")
def image(base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of the PCI driver. podman keeps it until the next run in this tree, because parallel workers share it."""
    tag = f"localhost/dra-test/pci:{zlib.crc32(str(ROOT).encode()):08x}"

    def build(_: Path) -> None:
        images.remove(tag)
        images.build(ROOT, tag, "--build-arg", "DRIVER=drivers/pci")

    shared_folder(tmp_path_factory, "image", build)
    return tag


def test_the_image_adds_at_most_sixty_megabytes(image: str, base: str) -> None:
    assert images.size(image) - images.size(base) < 60e6


def test_the_image_has_no_pip_no_compiler_no_cache_and_no_tests(image: str) -> None:
    with images.mounted(image) as root:
        files = {p.relative_to(root) for p in root.rglob("*") if p.is_file()}
    commands = {p.name for p in files if p.parent.name in {"bin", "sbin"}}
    packages = {p.parts[5] for p in files if p.match("*/lib/python3.13/site-packages/*/*")}
    assert {"dash", "dra"} <= commands
    assert not commands & {"pip", "pip3", "uv", "cyclonedx-py", "debsbom", "gcc", "cc", "ld", "make"}
    assert {"dra_kubeletplugin", "pci", "grpc"} <= packages
    assert not packages & {"pip", "hatchling", "cyclonedx", "debsbom", "kubernetes"}
    assert not [p for p in files if p.is_relative_to("usr/local/lib/python3.13/ensurepip")]
    assert not [
        p for p in files if "site-packages" in p.parts and ({"tests", "test"} & set(p.parts) or p.match("test_*.py"))
    ]
    leftovers = ("root/.cache", "var/cache/apt/archives", "var/lib/apt/lists", "tmp", "src", "wheels", "driver")
    assert not [p for p in files if any(p.is_relative_to(folder) for folder in leftovers)]


def test_the_image_has_libudev_for_the_kernel_s_events(image: str) -> None:
    images.inside(image, "python", "-c", "import pyudev; pyudev.Context()")


def test_the_image_has_at_most_ten_python_packages_of_others_and_a_complete_sbom_with_licences(image: str) -> None:
    script = "import importlib.metadata as m, json; print(json.dumps([[d.name, d.version] for d in m.distributions()]))"
    installed = {tuple(d) for d in json.loads(images.inside(image, "python", "-c", script))}
    dpkg = images.inside(image, "dpkg-query", "-W", "-f", "${Package} ${Version}\n")
    with images.mounted(image) as root:
        text = (root / SBOM).read_text()
    from cyclonedx.schema import SchemaVersion  # The import takes a second, so only this test imports the module.
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(text) is None
    listed: JSON = json.loads(text)
    assert listed["specVersion"] == "1.7"
    components = listed["components"]
    components_found = {(c["name"], c.get("version", "")) for c in components}
    assert {"dra-kubeletplugin", "pci", "grpcio"} < {name for name, _ in installed}
    assert not {"dra-devkit", "dra-tools", "dra-conformance"} & {name for name, _ in installed}
    assert len({name for name, _ in installed} - {"dra-kubeletplugin", "pci"}) <= 10
    assert installed <= components_found
    assert {tuple(line.split()) for line in dpkg.splitlines()} <= components_found
    assert {"cpython", "pci.ids", images.BASE} <= {name for name, _ in components_found}
    environment = [c for c in components if (c["name"], c.get("version", "")) in installed]
    assert [c["name"] for c in environment if not c.get("licenses")] == []


@pytest.mark.parametrize("privileged", [True, False], ids=["privileged, for VFIO", "without capabilities"])
async def test_a_pod_receives_a_device_from_the_image_with_the_options_of_the_daemonset(
    privileged: bool, image: str, tmp_path: Path
) -> None:
    async with LocalCluster() as cluster:
        node = cluster.node
        values = values_of("pci") | {"kubeletRoot": str(node.kubelet_root), "cdiRoot": str(node.cdi_root)}
        values["features"] = {"privileged": privileged}
        deployed = await Deployed.on(cluster, kustomized(values, tmp_path / "overlay"))
        pod = await deployed.pod("DaemonSet", node.name)
        async with running(deployed, pod, image, log := tmp_path / "log") as process:
            for path in sorted((ROOT / "drivers/pci/examples").glob("*.yaml")):
                await cluster.apply_file(path)
            ended = asyncio.create_task(process.wait())
            started = asyncio.create_task(cluster.wait_running("pci-demo", timeout=200))
            await asyncio.wait({ended, started}, return_when=asyncio.FIRST_COMPLETED)
            assert started.done(), log.read_text()
            await started
            (spec,) = node.cdi_root.glob("*.json")
            assert json.loads(spec.read_text())["kind"] == "k8s.pci.dra-kubeletplugin.dev/claim"
        assert process.returncode == 0, log.read_text()
