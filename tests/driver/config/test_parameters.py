"""Opaque parameters are validated strictly and by type, per request. The parameters of the claim override those of the class."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import pytest

from dra_kubeletplugin import Config
from dra_kubeletplugin.driver.config.parameters import applies
from dra_kubeletplugin.errors import ConfigError
from tests.helpers.drivers import ToyConfig
from tests.helpers.parameters import decode, resolve

DRIVER = "toy.example.com"


def entry(
    parameters: Any, source: str = "FromClaim", requests: list[str] | None = None, driver: str = DRIVER
) -> dict[str, Any]:
    return {"source": source, "requests": requests or [], "opaque": {"driver": driver, "parameters": parameters}}


def test_the_claim_overrides_the_class_and_the_source_is_reported() -> None:
    config, source_of_config = resolve(
        [entry({"colour": "red"}, "FromClass"), entry({"colour": "blue"})], [ToyConfig], DRIVER, "r"
    )
    assert (config, source_of_config) == (ToyConfig(colour="blue"), "FromClaim")


@pytest.mark.parametrize(
    ("requests", "request_name", "expected"),
    [([], "r", True), (["r"], "r", True), (["r"], "r/sub", True), (["r/sub"], "r/sub", True), (["r/other"], "r/sub", False), (["s"], "r", False)],
)  # fmt: skip
def test_an_entry_applies_to_all_requests_or_to_the_named_request_or_alternative(
    requests: list[str], request_name: str, expected: bool
) -> None:
    assert applies(requests, request_name) is expected


def test_defaults_are_used_if_no_entry_applies() -> None:
    assert resolve([entry({"colour": "blue"}, requests=["x"])], [ToyConfig], DRIVER, "r") == (ToyConfig(), "")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"color": "blue"}, r"config\[0\] \(FromClaim\): parameters: unknown field 'color', did you mean 'colour'\?"),
        ({"colour": "green"}, "parameters.colour: Invalid enum value 'green'"),
        ({"slots": "2"}, "parameters.slots: Expected `int`, got `str`"),
        ({"slots": 0}, "slots must be at least 1"),
        (
            {"kind": "Other", "apiVersion": "toy.example.com/v1"},
            r"parameters\.kind: 'Other' is not known to toy\.example\.com, which knows toy.example.com/v1 \w+; to accept an older version",
        ),
        (
            {"apiVersion": "toy.example.com/v11"},
            r"parameters\.apiVersion: 'toy.example.com/v11' is not known to toy\.example\.com, which knows toy.example.com/v1 ",
        ),
        (
            {"kind": "ToyConfig"},
            r"parameters\.apiVersion: missing: toy\.example\.com knows toy.example.com/v1 \w+$",
        ),
        ({"zzzzzz": "blue"}, r"parameters: unknown field 'zzzzzz': there are colour, "),
        ([1], "must be an object"),
    ],
)
def test_invalid_parameters_are_rejected_with_their_path(parameters: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve([entry(parameters)], [ToyConfig], DRIVER, "r")


def test_other_drivers_and_kinds_of_other_domains_are_skipped() -> None:
    entries = [entry({"x": 1}, driver="other.example.com"), entry({"kind": "K", "apiVersion": "other.org/v1", "y": 2})]
    entries.append({"source": "FromClaim", "requests": []})
    assert resolve(entries, [ToyConfig], DRIVER, "r") == (ToyConfig(), "")


def test_a_driver_without_parameters_rejects_parameters() -> None:
    with pytest.raises(ConfigError, match="takes no parameters"):
        resolve([entry({})], [], DRIVER, "r")


class Leaf(Config):
    size: int = 1

    def check(self) -> None:
        if self.size < 0:
            raise ValueError(f"size is {self.size}: give 0 or more")


class Tree(Config):
    one: Leaf | None = None
    many: Sequence[Leaf] = ()
    named: Mapping[str, Leaf] | None = None


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"one": {"size": -1}}, "parameters.one"),
        ({"many": [{"size": 1}, {"size": -1}]}, "parameters.many[1]"),
        ({"named": {"left": {"size": -1}}}, "parameters.named[left]"),
    ],
)
def test_nested_objects_are_checked_and_named_by_their_path(parameters: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{path}: size is -1")):
        decode(parameters, [Tree], "d.example.com")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Chosen(Config):
    mode: Literal["Fast", "Safe"] = "Safe"
    colour: Colour | None = None
    lists: Sequence[Literal[1, 2]] = ()
    named: Mapping[str, Colour] | None = None
    deep: Chosen | None = None


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mode": "fast"}, "parameters.mode: Invalid enum value 'fast': use one of 'Fast', 'Safe'"),
        ({"colour": "green"}, "parameters.colour: Invalid enum value 'green': use one of 'red', 'blue'"),
        ({"lists": [1, 3]}, "parameters.lists[1]: Invalid enum value 3: use one of 1, 2"),
        ({"named": {"left": "x"}}, "parameters.named[left]: Invalid enum value 'x': use one of 'red', 'blue'"),
        ({"deep": {"deep": {"mode": ""}}}, "parameters.deep.deep.mode: Invalid enum value '': use one of 'Fast', 'Safe'"),
    ],
)  # fmt: skip
def test_an_invalid_choice_is_reported_with_the_valid_choices(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        decode(parameters, [Chosen], "d.example.com")
