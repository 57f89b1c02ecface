"""The reported device value for the part of a selector that rejects the device."""

from __future__ import annotations

import pytest

from dra_devkit.scheduling.cel.parts import unmet
from dra_devkit.scheduling.cel.selector import Device

ATTRIBUTES = {**{f"a{i}": {"int": i} for i in range(9)}, "model": {"string": "a100"}, "types": {"strings": ["x", "y"]}}
CARD = Device("gpu.example.com", {"attributes": ATTRIBUTES, "capacity": {"memory": {"value": "16Gi"}}})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('"profile" in device.attributes["gpu.example.com"]', "profile is not published"),
        ('"hbm" in device.capacity["gpu.example.com"] && device.driver != ""', "hbm is not published"),
        ('"other.example.com" in device.attributes', "attributes of other.example.com is not published"),
        ('!("model" in device.attributes["gpu.example.com"])', 'model is "a100"'),
        ('"z" in device.attributes["gpu.example.com"].types', 'types is ["x", "y"]'),
        ('device.attributes["gpu.example.com"].model in ["b"]', 'model is "a100"'),
    ],
)
def test_a_presence_test_reports_only_its_own_key(expression: str, expected: str) -> None:
    assert [part.seen for part in unmet(expression, CARD)] == [expected]
