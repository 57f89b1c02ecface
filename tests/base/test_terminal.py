"""Text of others on lines of a terminal: whatever it is, it is one line, as long as before, and nothing in it acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.base.terminal import indented, on_one_line
from dra_kubeletplugin.cli.shell.output import columns, on_lines
from dra_kubeletplugin.errors import printable
from tests.cli.test_cli_hostile_text import HOSTILE, RAW

ANY = st.text(st.characters(exclude_categories=()), max_size=200)


@given(ANY)
def test_any_text_is_one_line_of_the_same_length(text: str) -> None:
    line = on_one_line(text)
    assert not RAW.search(line)
    assert not set(line) & {"\n", "\t", "\r"}
    assert len(line) == len(text)
    assert on_one_line(line) == line


@given(ANY)
def test_no_line_of_a_text_begins_like_a_line_of_ours(text: str) -> None:
    first, *others = indented(text).split("\n")
    assert all(line.startswith("    ") for line in others)
    assert not RAW.search(first + "".join(others))


def test_what_python_calls_printable_needs_no_look() -> None:
    """`on_one_line` returns such text as it is."""
    assert [hex(c) for c in range(0x110000) if chr(c).isprintable() and printable(chr(c)) != chr(c)] == []


class Word(StrEnum):
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    word: Word = Word.HELD


@dataclass(frozen=True)
class Answer:
    number: float
    inner: tuple[Inner, ...]
    by_name: Mapping[str, list[Inner]] = field(default_factory=dict)
    nothing: None = None


def test_each_text_of_an_answer_is_on_one_line_and_the_rest_stays() -> None:
    found = on_lines(Answer(1.5, (Inner(HOSTILE), Inner("b")), {HOSTILE: [Inner(HOSTILE)]}))
    line = on_one_line(HOSTILE)
    assert found == Answer(1.5, (Inner(line), Inner("b")), {line: [Inner(line)]})
    assert found.inner[0].word is Word.HELD
    assert on_lines(found) is found, "what is well is not copied"


def test_cells_of_a_table_are_on_one_line() -> None:
    table = columns([("A", "B"), (HOSTILE, "x\ny")])
    assert len(table) == 2
    assert not RAW.search("".join(table))
    assert table[1].endswith("x y")
