from __future__ import annotations

from examples.conftest import Example


def test_both_pods_have_the_same_gpu_and_the_claim_outlives_them(example: Example) -> None:
    example.apply()
    first, second = example.gpus("sharer-a"), example.gpus("sharer-b")
    assert first == second
    assert len(first) == 1
    example.node.delete_pod("sharer-a")
    assert example.node.leftovers()["held"] == first
    example.node.delete_pod("sharer-b")
    assert not any(example.node.leftovers().values())
    assert example.api.get("ResourceClaim", "common-gpu")
