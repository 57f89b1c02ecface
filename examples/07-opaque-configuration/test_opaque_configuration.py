from __future__ import annotations

from examples.conftest import Example


def test_the_driver_gets_the_parameters(example: Example) -> None:
    example.apply()
    (gpu,) = example.gpus("opaque-configuration")
    env, prefix = example.env("opaque-configuration"), gpu.upper().replace("-", "_").replace("GPU_", "GPU_DEVICE_")
    assert (env[f"{prefix}_SHARING_STRATEGY"], env[f"{prefix}_PARTITION_COUNT"]) == ("SpacePartitioning", "10")
