from __future__ import annotations

from dra_kubeletplugin.base.telemetry.log_once import LogOnce


def test_a_text_is_new_once_for_each_subject_until_the_subject_is_forgotten() -> None:
    once = LogOnce()
    assert [once.is_new("u", text) for text in ("a", "b", "a", "b")] == [True, True, False, False]
    assert once.is_new("v", "a")
    once.forget("u")
    assert [once.is_new("u", "a"), once.is_new("v", "a")] == [True, False]


def test_a_text_is_new_again_after_the_interval() -> None:
    for interval, is_new in ((0.0, True), (600.0, False)):
        once = LogOnce(again_after=interval)
        assert [once.is_new("u", "a"), once.is_new("u", "a")] == [True, is_new]


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
