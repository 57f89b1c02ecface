"""Patterns of users are matched by RE2 in linear time, with the results and messages of Go."""

from __future__ import annotations

import re
import time

import pytest

from dra_devkit.localcluster.apiserver import selectors
from dra_devkit.localcluster.apiserver.selectors import SelectorError
from dra_devkit.scheduling import cel
from dra_devkit.scheduling.cel.patterns import regex

DEVICE = cel.Device("d.example.com", {"name": "d", "attributes": {"name": {"string": "a" * 64 + "!"}}})
NAME = 'device.attributes["d.example.com"].name'
ATTACKS = [
    "^(a+)+$",
    "^(a|a)*$",
    "^(a|aa)+$",
    "^(a*)*b",
    "(.*)*x",
    "([a-z]+)*[0-9]",
    "^(([a-z])+.)+[A-Z]$",
    "(x+x+)+y",
    "^(a?){60}a{60}b",
]
SECONDS = 10  # of CPU time; the measured code takes milliseconds


@pytest.mark.parametrize("pattern", ATTACKS)
@pytest.mark.parametrize("call", ["{0}.matches('{1}')", "{0}.find('{1}') != ''", "size({0}.findAll('{1}')) > 0"])
def test_a_pattern_with_catastrophic_backtracking_ends_quickly(pattern: str, call: str) -> None:
    started = time.thread_time()
    assert not cel.Selector(call.format(NAME, pattern)).matches(DEVICE)
    assert time.thread_time() - started < SECONDS


@pytest.mark.parametrize(
    "text",
    [
        "a" + " " * 20_000 + "!", "a=" + " " * 20_000 + "(", " " * 20_000 + "(", "a" * 20_000 + "(", "a in (" + "b" * 20_000,
        "!" + " " * 20_000 + "(", "a" + " " * 20_000 + "(", "a>" + "9" * 20_000,
    ],
)  # fmt: skip
def test_a_selector_of_the_api_server_is_read_in_one_pass(text: str) -> None:
    started = time.thread_time()
    with pytest.raises(SelectorError):
        selectors.labels(text)
    with pytest.raises(SelectorError):
        selectors.fields(text, ["metadata.name"])
    assert time.thread_time() - started < SECONDS


def test_a_field_selector_is_parsed() -> None:
    terms = selectors.fields(r"metadata.name = a\,b , spec.nodeName!=n", ["metadata.name", "spec.nodeName"])
    assert [(t.path, t.value, t.negated) for t in terms] == [
        (("metadata", "name"), "a,b ", False),
        (("spec", "nodeName"), "n", True),
    ]


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("b*", "abc", ["", "b", ""]),  # Go drops the empty match after "b"
        ("", "aé\U0001f600", ["", "", "", ""]),
        ("a|", "ba", ["", "a"]),
        ("é+", "xééy", ["éé"]),
        (r"\ba", "a aa", ["a", "a"]),
        ("^", "ab", [""]),
        (r"[^a]", "a\n", ["\n"]),
        (r"(?i)É", "é", ["é"]),
        (r"\pL+", "aé1", ["aé"]),
        (r"(?P<n>a)(?<m>b)", "ab", ["ab"]),
        (r"\Qa.b\E", "a.b axb", ["a.b"]),
        (r"\x{e9}|\x41", "éA", ["é", "A"]),
        ("a$", "a\n", []),
        ("(?m)a$", "a\n", ["a"]),
        (r"a\z", "a", ["a"]),
        ("a{,2}", "a{,2}", ["a{,2}"]),
        (r"\\C", r"\C", [r"\C"]),
        (r"\Q\C\E", r"\C", [r"\C"]),
        ("x", "\ud800x", ["x"]),
        ("[^x]", "\ud800x", ["\ufffd"]),
    ],
)
def test_matches_are_those_of_go(pattern: str, text: str, expected: list[str]) -> None:
    compiled = regex(pattern)
    assert compiled.find_all(text) == expected
    assert compiled.find_all(text, 1) == expected[:1]
    assert compiled.find_all(text, 0) == []
    assert compiled.find(text) == (expected[0] if expected else "")
    assert compiled.matches(text) is bool(expected)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("[", "missing closing ]: `[`"),
        ("(a", "missing closing ): `(a`"),
        ("a)", "unexpected ): `a)`"),
        ("*", "missing argument to repetition operator: `*`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        (r"\C", r"invalid escape sequence: `\C`"),
        (r"\1", r"invalid escape sequence: `\1`"),
        (r"\Z", r"invalid escape sequence: `\Z`"),
        ("[b-a]", "invalid character class range: `b-a`"),
        ("\\", "trailing backslash at end of expression"),
    ],
)
def test_an_invalid_pattern_is_rejected_with_gos_message(pattern: str, message: str) -> None:
    for _ in range(2):  # the second result comes from the cache
        with pytest.raises(ValueError, match=re.escape(message)):
            regex(pattern)
