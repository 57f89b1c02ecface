"""What people are told that a device has, of the part of a selector that keeps it out."""

from __future__ import annotations

import pytest

from dra_kubeletplugin.scheduling.cel.parts import unmet
from dra_kubeletplugin.scheduling.cel.selector import Device

ATTRIBUTES = {**{f"a{i}": {"int": i} for i in range(9)}, "model": {"string": "a100"}, "types": {"strings": ["x", "y"]}}
CARD = Device("gpu.example.com", {"attributes": ATTRIBUTES, "capacity": {"memory": {"value": "16Gi"}}})


@pytest.mark.parametrize(
    ("expression", "seen"),
    [
        ('"profile" in device.attributes["gpu.example.com"]', "profile is not published"),
        ('"hbm" in device.capacity["gpu.example.com"] && device.driver != ""', "hbm is not published"),
        ('"other.example.com" in device.attributes', "attributes of other.example.com is not published"),
        ('!("model" in device.attributes["gpu.example.com"])', 'model is "a100"'),
        ('"z" in device.attributes["gpu.example.com"].types', 'types is ["x", "y"]'),
        ('device.attributes["gpu.example.com"].model in ["b"]', 'model is "a100"'),
    ],
)
def test_who_asks_whether_a_key_is_there_is_reported_that_key_and_not_of_the_others(expression: str, seen: str) -> None:
    assert [part.seen for part in unmet(expression, CARD)] == [seen]
