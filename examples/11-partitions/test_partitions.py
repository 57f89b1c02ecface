from __future__ import annotations

import pytest

from examples.conftest import Example


@pytest.mark.dra(environment={"GPU_PARTITIONS": "4", "NUM_DEVICES": "2"})
def test_no_gpu_is_allocated_whole_and_in_partitions(example: Example) -> None:
    example.apply()
    parts, (whole,) = example.gpus("partitions"), example.gpus("whole")
    assert len(parts) == 2
    assert all("-partition-" in part for part in parts)
    assert whole.removesuffix("-full") not in {part.partition("-partition-")[0] for part in parts}
