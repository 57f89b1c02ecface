from __future__ import annotations

from examples.conftest import Example


def test_the_pod_has_a_gpu_and_leaves_nothing_behind(example: Example) -> None:
    example.apply()
    assert example.gpus("one-device") == example.node.allocated("one-device")
    example.node.delete_pod("one-device")
    example.api.wait("the claim to go", lambda: not example.api.get_all("ResourceClaim"))
    assert not any(example.node.leftovers().values())
