from __future__ import annotations

from examples.conftest import Example


def test_the_pod_has_the_gpu_that_the_expression_selects(example: Example) -> None:
    example.apply()
    assert example.gpus("selectors") == ["gpu-2"]
