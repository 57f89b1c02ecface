"""Copies of the example driver's package that are broken, each in one way."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[4]
DRIVER = ROOT / "drivers/gpu_example"

# The image has these files in /broken.
SOURCES = {
    "wrong_device": """
class Broken(Gpu):
    name = Gpu.name

    def _environment(self, claim, device):
        index = (int(device.name.removeprefix("gpu-")) + 1) % 8
        return {f"GPU_DEVICE_{index}": f"gpu-{index}"}
""",
    "leak": """
class Broken(Gpu):
    name = Gpu.name

    def prepare(self, claim):
        (self.settings.kubelet_root / "plugins" / self.name / f"state-{claim.uid}").touch()
        return super().prepare(claim)
""",
    "never_ready": """
class Broken(Gpu):
    name = Gpu.name

    def pools(self):
        raise OSError("the vendor's library reports no cards")
""",
}


def write_sources(folder: Path) -> None:
    for name, text in SOURCES.items():
        (folder / f"{name}.py").write_text(f"from gpu_example.driver import Gpu\n{text}")


def write_manifests(file: Path, image: str, change: Callable[[list[Any]], None], driver_file: str = "") -> None:
    """Renders the manifests of the example driver as `dra deploy` does, and changes them."""
    overrides = file.with_suffix(".values")
    values: dict[str, Any] = {"image": image, "pods": {"all": {"imagePullPolicy": "Never"}}}
    overrides.write_text(yaml.safe_dump(values | ({"driverFile": driver_file} if driver_file else {})))
    folder = file.with_suffix(".deploy")
    shutil.rmtree(folder, ignore_errors=True)
    values_file = str(DRIVER / "deploy/values.yaml")
    dra = [sys.executable, "-m", "dra_kubeletplugin", "deploy", values_file, "-f", str(overrides), "-C", str(folder)]
    subprocess.run(dra, check=True, capture_output=True)
    rendered = subprocess.run(["kubectl", "kustomize", str(folder)], check=True, capture_output=True, text=True).stdout
    documents = list(yaml.safe_load_all(rendered))
    change(documents)
    file.write_text(yaml.safe_dump_all(documents))


def unchanged(documents: list[Any]) -> None:
    """Leaves the manifests as they are."""


def without_cdi_files(documents: list[Any]) -> None:
    """Lets the plugin write its CDI files into a folder that the container runtime does not read."""
    [plugin] = [d for d in documents if d["kind"] == "DaemonSet"]
    for entry in plugin["spec"]["template"]["spec"]["containers"][0]["env"]:
        if entry["name"] == "CDI_ROOT":
            entry["value"] = "/tmp/cdi"  # noqa: S108 - a place in a container


def with_an_open_policy(documents: list[Any]) -> None:
    for document in documents:
        if document["kind"] == "ValidatingAdmissionPolicyBinding":
            document["spec"]["validationActions"] = ["Audit"]


def with_an_open_role(documents: list[Any]) -> None:
    for document in documents:
        if document["kind"] == "ClusterRole":
            document["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]})
