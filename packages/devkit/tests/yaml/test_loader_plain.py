"""The plain builder reads YAML with the line of each key, for files that describe hosts."""

from __future__ import annotations

import pytest

from dra_devkit.yaml.loader import PlainBuilder
from dra_devkit.yaml.stream import parse_one

CARDS = """\
one: &card
  serial: A100
  health: ok
two:
  <<: *card
  health: hot
three: {<<: [{health: cold}, *card], serial: A300}
four: {"<<": text}
"""


def test_a_merge_adds_only_missing_keys() -> None:
    document = parse_one(CARDS, "host.yaml", [], PlainBuilder)
    assert document
    assert document.value == {
        "one": {"serial": "A100", "health": "ok"},
        "two": {"serial": "A100", "health": "hot"},
        "three": {"serial": "A300", "health": "cold"},
        "four": {"<<": "text"},
    }
    paths = ("two.serial", "two.health", "three.serial")
    assert [document.place(path) for path in paths] == ["host.yaml:2", "host.yaml:6", "host.yaml:7"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: {<<: 1}", "host.yaml:1:9: not valid YAML: '<<' merges only mappings"),
        ("a: {<<: [{b: 1}, 2]}", "host.yaml:1:18: not valid YAML: '<<' merges only mappings"),
        ("a: {<<: {b: 1}, b: 2, b: 3}", "host.yaml:1: the key 'b' was already used in line 1"),
        ("a: &a\n  <<: *a", "host.yaml:1:4: not valid YAML: an alias is inside its own anchor"),
    ],
)
def test_an_invalid_merge_is_reported_with_its_line(text: str, fault: str) -> None:
    faults: list[str] = []
    parse_one(text, "host.yaml", faults, PlainBuilder)
    assert faults[0].startswith(fault)
