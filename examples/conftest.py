"""For the tests of the examples: the GPU driver on a node, and the manifest beside the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.testing import Node

GPU = Path(__file__).parents[1] / "drivers/gpu_example"


class Example:
    """The manifest of one folder."""

    def __init__(self, folder: Path, node: Node[Any]) -> None:
        self.folder = folder
        self.node = node
        self.api = node.api

    def apply(self) -> None:
        """As ``kubectl apply`` does, of the driver's DeviceClass too."""
        self.api.apply_file(GPU / "deploy/deviceclass.yaml")
        self.api.apply_file(self.folder / "manifest.yaml")

    def env(self, pod: str, container: str = "", namespace: str = "default") -> dict[str, str]:
        """What a container sees in its environment, once its pod runs."""
        return self.node.env(self.api.wait_running(pod, namespace), container)

    def gpus(self, pod: str, container: str = "", namespace: str = "default") -> list[str]:
        """The GPUs that a container was given, once its pod runs."""
        env = self.env(pod, container, namespace)
        return sorted(v for k, v in env.items() if k.startswith("GPU_DEVICE_") and v.startswith("gpu-"))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has no options but those that a test gives."""
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
