"""Untrusted text is shown on one line of a terminal, with the same length and without control characters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.base.terminal import indented, on_one_line
from dra_kubeletplugin.cli.shell.output import columns, on_lines
from dra_kubeletplugin.errors import printable
from tests.helpers.hostile_text import HOSTILE, RAW

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)


@given(ANY_TEXT)
def test_any_text_is_one_line_of_the_same_length(text: str) -> None:
    line = on_one_line(text)
    assert not RAW.search(line)
    assert not set(line) & {"\n", "\t", "\r"}
    assert len(line) == len(text)
    assert on_one_line(line) == line


@given(ANY_TEXT)
def test_further_lines_of_a_text_are_indented(text: str) -> None:
    first, *others = indented(text).split("\n")
    assert all(line.startswith("    ") for line in others)
    assert not RAW.search(first + "".join(others))


def test_text_that_python_calls_printable_needs_no_change() -> None:
    """`on_one_line` returns such text unchanged."""
    assert [hex(c) for c in range(0x110000) if chr(c).isprintable() and printable(chr(c)) != chr(c)] == []


class Word(StrEnum):
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    word: Word = Word.HELD


@dataclass(frozen=True)
class Report:
    number: float
    inner: tuple[Inner, ...]
    by_name: Mapping[str, list[Inner]] = field(default_factory=dict)
    nothing: None = None


def test_each_text_of_a_report_is_on_one_line_and_other_values_are_unchanged() -> None:
    found = on_lines(Report(1.5, (Inner(HOSTILE), Inner("b")), {HOSTILE: [Inner(HOSTILE)]}))
    line = on_one_line(HOSTILE)
    assert found == Report(1.5, (Inner(line), Inner("b")), {line: [Inner(line)]})
    assert found.inner[0].word is Word.HELD
    assert on_lines(found) is found, "a valid object is not copied"


def test_each_cell_of_a_table_is_on_one_line() -> None:
    table = columns([("A", "B"), (HOSTILE, "x\ny")])
    assert len(table) == 2
    assert not RAW.search("".join(table))
    assert table[1].endswith("x y")
