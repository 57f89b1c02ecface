from __future__ import annotations

from examples.conftest import Example


def test_both_containers_have_the_same_gpu(example: Example) -> None:
    example.apply()
    first, second = (example.gpus("shared-between-containers", name) for name in ("first", "second"))
    assert first == second
    assert len(first) == 1
