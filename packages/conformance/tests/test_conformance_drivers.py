"""The drivers of this tree pass every check."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_conformance import CATALOGUE, ConformanceProfile, read_profile, run_checks, select_checks
from dra_conformance.driver_command import DriverCommand, can_unshare
from dra_devkit.yaml.manifests import objects
from tests.helpers.conformance.runs import ROOT, SHORT, explained

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
DRA = f"{shlex.quote(sys.executable)} -m dra_kubeletplugin run"
PROFILES = ROOT / "tests/helpers/conformance/profiles"
COMPONENTS = ("base", "components/controller", "components/events")
RULES = [
    rule
    for manifest in objects([ROOT / "deploy/kustomize" / name / "objects.yaml" for name in COMPONENTS])
    if manifest.value["kind"] in {"Role", "ClusterRole"}
    for rule in manifest.value["rules"]
]
"""The permissions of a driver whose manifests have these components."""
HOSTS = {
    "pci": "drivers/pci/hosts/two-sockets.yaml",
    "mig_example": "drivers/mig_example/hosts/two-a100.yaml",
    "nvidia": "drivers/nvidia/hosts/two-h100.yaml",
}
PARTITIONS = {"GPU_PARTITIONS": "4", "NUM_DEVICES": "4"}
SHARED = {"GPU_ALLOW_MULTIPLE_ALLOCATIONS": "true"}


def short_profile(name: str) -> ConformanceProfile:
    return replace(read_profile(PROFILES / name, list(CATALOGUE)), pace=SHORT)


async def passes(name: str, profile: str, host: str = "") -> None:
    chosen = short_profile(profile)
    command = DriverCommand.parse(f"{DRA} {ROOT / 'drivers' / name}", host=host)
    found = await run_checks(command, chosen, select_checks(), rules=RULES)
    assert found.fault == ""
    assert found.failed_ids == [], explained(found)


@pytest.mark.parametrize("options", [{}, PARTITIONS, SHARED], ids=["whole", "partitions", "shared"])
async def test_the_gpu_driver_passes(options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {**options, "GPU_FAULTS": str(tmp_path / "faults"), "HEALTH_INTERVAL": "1s"}.items():
        monkeypatch.setenv(key, value)
    await passes("gpu_example", "gpu.toml")


@pytest.mark.parametrize("name", HOSTS)
async def test_a_driver_on_a_described_host_passes(name: str) -> None:
    await passes(name, "quick.toml", str(ROOT / HOSTS[name]))


async def test_a_driver_without_devices_of_the_node_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_STATE", str(tmp_path / "fabric.db"))
    await passes("fabric_example", "no-devices.toml")


@pytest.mark.mounts
@pytest.mark.skipif(not can_unshare(), reason="needs root and mount namespaces")
async def test_a_driver_with_fixed_paths_runs_in_a_mount_namespace() -> None:
    fixed = "env KUBELET_ROOT=/var/lib/kubelet CDI_ROOT=/var/run/cdi"
    command = DriverCommand.parse(f"{fixed} {DRA} {ROOT / 'drivers/gpu_example'}", fixed_paths=True)
    chosen = short_profile("quick.toml")
    found = await run_checks(command, chosen, select_checks(["REG", "UNP", "CDI-001", "CDI-006", "RST-004", "UPG"]))
    assert found.fault == ""
    assert found.failed_ids == [], explained(found)
