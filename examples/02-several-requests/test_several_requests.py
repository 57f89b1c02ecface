from __future__ import annotations

from examples.conftest import Example


def test_a_container_has_the_gpus_of_the_requests_that_it_names(example: Example) -> None:
    example.apply()
    left, right = example.node.allocated("several-requests")
    assert left != right
    assert example.gpus("several-requests", "both") == sorted([left, right])
    assert example.gpus("several-requests", "left") == [left]
