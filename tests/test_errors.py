"""Texts of errors: whatever was raised, they can be encoded, shown and repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.errors import DraError, PermanentError, clip, describe, printable

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)


class Unprintable(Exception):
    """Its text cannot be had."""

    def __init__(self, why: Exception) -> None:
        self.why = why

    def __str__(self) -> str:
        raise self.why

    __repr__ = __str__


def is_clean(text: str) -> bool:
    text.encode()
    return not any(ord(c) < 32 and c not in "\n\t" for c in text)


@given(ANY_TEXT)
def test_any_text_becomes_one_that_can_be_encoded_and_shown(text: str) -> None:
    assert is_clean(printable(text))
    assert len(printable(text)) == len(text)
    line = describe(ValueError(text))
    assert is_clean(line)
    assert "\n" not in line


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_an_event_is_one_line_of_valid_text_of_at_most_a_kibibyte(text: str, reason: str, code: str) -> None:
    class Odd(PermanentError):
        pass

    Odd.reason, Odd.code = reason, code
    event = Odd(text * 20).event()
    assert len(event.encode()) <= 1024
    assert is_clean(event)
    assert "\n" not in event


@given(ANY_TEXT, st.integers(0, 50))
def test_a_clipped_text_is_never_longer_than_it_may_be(text: str, limit: int) -> None:
    assert len(clip(text, limit).encode()) <= max(limit, 3)


@pytest.mark.parametrize("why", [ValueError(), RecursionError()])
def test_an_object_without_a_text_is_named_by_its_type(why: Exception) -> None:
    broken = Unprintable(why)
    assert printable(broken) == "Unprintable"
    assert describe(broken) == "Unprintable"
    assert describe(ExceptionGroup("two", [broken, OSError("x")])) == (
        "ExceptionGroup: two (2 sub-exceptions) [Unprintable; OSError: x]"
    )

    class Broken(DraError):
        def __str__(self) -> str:
            raise why

    assert Broken().event() == "INTERNAL: Broken [DRA-E000]"


def test_the_same_fault_has_the_same_text_wherever_its_objects_live() -> None:
    def text() -> str:
        kept.append([object(), lambda: None, printable])
        return f"{kept[-1]} BAR 0 at 0xfe000000"

    kept: list[object] = []
    said = {describe(OSError(text())) for _ in range(3)} | {PermanentError(text()).event() for _ in range(3)}
    assert len(said) == 2
    for line in said:
        assert "<object object>" in line
        assert line.count(" at 0x") == 1
        assert "BAR 0 at 0xfe000000" in line


def test_nested_groups_without_end_are_described_in_bounded_time() -> None:
    group = ExceptionGroup("g", [OSError("bottom")])
    for _ in range(200):
        group = ExceptionGroup("g", [group] * 5)
    assert len(describe(group)) < 4096
