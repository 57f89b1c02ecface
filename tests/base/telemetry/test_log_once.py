from __future__ import annotations

import tracemalloc

import pytest

from dra_kubeletplugin.base.telemetry import log_once
from dra_kubeletplugin.base.telemetry.log_once import LogOnce


def test_a_text_is_new_once_for_each_subject_until_the_subject_is_forgotten() -> None:
    once = LogOnce()
    assert [once.is_new("u", text) for text in ("a", "b", "a", "b")] == [True, True, False, False]
    assert once.is_new("v", "a")
    once.forget("u")
    assert [once.is_new("u", "a"), once.is_new("v", "a")] == [True, False]


def test_a_text_is_new_again_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(log_once.time, "monotonic", lambda: clock[0])
    once = LogOnce(again_after=600.0)
    out = []
    for clock[0] in (1000.0, 1599.0, 1600.0, 1601.0):
        out.append(once.is_new("u", "a"))
    assert out == [True, False, True, False]


def test_the_memory_is_bounded_and_the_oldest_subject_is_forgotten_first() -> None:
    once = LogOnce()
    for i in range(50):
        assert once.is_new("u", f"text {i}")
    assert not once.is_new("u", "text 0")
    assert once.is_new("u", "text 50")
    assert once.is_new("u", "text 0"), "50 texts of a subject are remembered"
    for i in range(9_999):
        assert once.is_new(f"v{i}")
    assert not once.is_new("u", "text 0")
    assert once.is_new("w")
    assert once.is_new("u", "text 0"), "10,000 subjects are remembered"


def test_long_texts_are_not_kept() -> None:
    once = LogOnce()
    once.is_new("u", "text")
    tracemalloc.start()
    try:
        for i in range(1_000):
            once.is_new(f"u{i % 20}", f"text {i} {'x' * 60_000}")
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()
