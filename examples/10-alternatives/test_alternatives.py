from __future__ import annotations

from examples.conftest import Example


def test_the_second_alternative_is_allocated_if_the_first_is_impossible(example: Example) -> None:
    example.apply()
    assert len(example.gpus("alternatives")) == 1
    claim = example.node.claim_of("alternatives")
    assert [r["request"] for r in claim["status"]["allocation"]["devices"]["results"]] == ["gpu/any"]
