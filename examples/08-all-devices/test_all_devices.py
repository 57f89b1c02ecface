from __future__ import annotations

import pytest

from examples.conftest import Example


@pytest.mark.dra(environment={"NUM_DEVICES": "3"})
def test_the_pod_has_every_gpu_of_the_node(example: Example) -> None:
    example.apply()
    assert example.gpus("all-devices") == ["gpu-0", "gpu-1", "gpu-2"]


@pytest.mark.dra(environment={"NUM_DEVICES": "3"})
def test_the_pod_waits_while_one_gpu_is_in_use(example: Example) -> None:
    example.node.run_pod("holder")
    example.apply()
    example.api.wait_event("all-devices", "cannot allocate all claims")
    example.node.delete_pod("holder")
    assert len(example.gpus("all-devices")) == 3
