from __future__ import annotations

import pytest

from examples.conftest import Example


@pytest.mark.dra(environment={"GPU_ALLOW_MULTIPLE_ALLOCATIONS": "true", "NUM_DEVICES": "1"})
def test_both_pods_have_a_part_of_the_one_gpu(example: Example) -> None:
    example.apply()
    assert example.gpus("part-a") == example.gpus("part-b") == ["gpu-0"]
    for pod in ("part-a", "part-b"):
        env = example.env(pod)
        assert (env["GPU_DEVICE_0_MEMORY"], env["GPU_DEVICE_0_COMPUTE"]) == ("10Gi", "30")
