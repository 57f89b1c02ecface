"""Similar names: the parts of a domain that two names share say nothing about a mistake."""

from __future__ import annotations

import pytest

from dra_devkit.near_names import KnownNames, near_name_warnings, similar_names, suggestion


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("bda", "bad"),
        ("ab", "ba"),
        ("gpus.example.com", "gpu.example.com"),
        ("gpu.exmple.com", "gpu.example.com"),
        ("gpu.example.org", "gpu.example.com"),
        ("one-gpu", "one-gpus"),
    ],
)
def test_a_misspelt_name_has_a_similar_name(name: str, other: str) -> None:
    assert suggestion(name, [other, "zzz"]) == f", did you mean {other!r}?"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("n4-part.nimbus.example.com", "gpu.example.com"),
        ("nimbus.example.com", "gpu.example.com"),
        ("a", "b"),
        ("abc", "cba"),
        ("x" * 600, "x" * 600),
    ],
)
def test_names_that_share_only_a_domain_are_not_similar(name: str, other: str) -> None:
    assert similar_names(name, [other]) == []


def test_a_selector_gets_no_suggestion_of_another_vendors_domain() -> None:
    device = {"name": "d", "attributes": {"model": {"string": "x"}}}
    published = KnownNames([{"spec": {"driver": "gpu.example.com", "devices": [device]}}])
    assert list(published.warnings('device.attributes["nimbus.example.com"].model == "x"')) == []
    assert list(published.warnings('device.attributes["gpus.example.com"].model == "x"'))


def test_a_key_that_no_device_has_and_a_field_that_no_value_has_are_both_named() -> None:
    expression = 'device.attributes["nics.example.com/rdma"].bool == true'
    value = 'device.attributes["nics.example.com"].rdma'
    found = [text for _, text in near_name_warnings({"expression": expression}, [], KnownNames([]))]
    assert [text.endswith(f"use {value}") for text in found] == [True, False]
    assert found[1] == f"the value of {value} has no field 'bool': compare {value} itself"
