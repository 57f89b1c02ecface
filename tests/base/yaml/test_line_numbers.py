"""YAML with the line of every key, as described hosts are read."""

from __future__ import annotations

import pytest

from dra_kubeletplugin.base.yaml.line_numbers import parse
from dra_kubeletplugin.errors import SettingsError

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


def test_a_merge_adds_the_keys_that_the_mapping_does_not_have() -> None:
    value, lines = parse(CARDS, "host.yaml")
    assert value == {
        "one": {"serial": "A100", "health": "ok"},
        "two": {"serial": "A100", "health": "hot"},
        "three": {"serial": "A300", "health": "cold"},
        "four": {"<<": "text"},
    }
    assert [lines["two", "serial"], lines["two", "health"], lines["three", "serial"]] == [2, 6, 7]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: {<<: 1}", "host.yaml:1: '<<' merges only mappings"),
        ("a: {<<: [{b: 1}, 2]}", "host.yaml:1: '<<' merges only mappings"),
        ("a: {<<: {b: 1}, b: 2, b: 3}", "host.yaml:1: duplicate key 'b'"),
        ("a: &a\n  <<: *a", "host.yaml:"),
    ],
)
def test_a_wrong_merge_is_reported_with_its_line(text: str, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        parse(text, "host.yaml")
