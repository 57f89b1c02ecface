"""Fixtures for the tests of the examples: the GPU driver on a node, and the manifest in the test's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_devkit.testing import Node

GPU = Path(__file__).parents[1] / "drivers/gpu_example"


class Example:
    """The manifest of one example folder."""

    def __init__(self, folder: Path, node: Node[Any]) -> None:
        self.folder = folder
        self.node = node
        self.api = node.api

    def apply(self) -> None:
        """Applies the driver's DeviceClass and the manifest, as ``kubectl apply`` does."""
        self.api.apply_file(GPU / "deploy/deviceclass.yaml")
        self.api.apply_file(self.folder / "manifest.yaml")

    def env(self, pod: str, container: str = "", namespace: str = "default") -> dict[str, str]:
        """Waits until the pod runs and returns the environment of a container."""
        return self.node.env(self.api.wait_running(pod, namespace), container)

    def gpus(self, pod: str, container: str = "", namespace: str = "default") -> list[str]:
        """Waits until the pod runs and returns the GPUs of a container."""
        env = self.env(pod, container, namespace)
        return sorted(v for k, v in env.items() if k.startswith("GPU_DEVICE_") and v.startswith("gpu-"))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes options that the environment of the test run sets."""
    for name in (
        "NUM_DEVICES",
        "GPU_PARTITIONS",
        "GPU_ALLOW_MULTIPLE_ALLOCATIONS",
        "GPU_DEVICE_STATUS",
        "BINDING_CONDITIONS",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def example(request: pytest.FixtureRequest, node: Node[Any]) -> Example:
    return Example(request.path.parent, node)
