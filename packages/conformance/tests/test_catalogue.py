"""The catalogue: its ids are those of the specification, and each check says what it requires and why."""

from __future__ import annotations

import re

from dra_conformance import CATALOGUE, Requirement
from dra_conformance.catalogue import GROUPS

COUNTS = {
    "REG": 8, "PRE": 14, "UNP": 3, "CDI": 7, "SLC": 10, "RST": 6, "UPG": 4, "HLT": 4, "CFG": 4, "MET": 3, "SKW": 3, "SEC": 2, "PRF": 2,
}  # fmt: skip
"""Checks of each group. An id is never removed or renumbered, so a count only grows."""


def test_each_id_of_the_specification_has_a_check() -> None:
    expected = {f"{group}-{number:03}" for group, count in COUNTS.items() for number in range(1, count + 1)}
    assert set(CATALOGUE) == expected
    assert list(GROUPS) == list(COUNTS)


def test_checks_run_group_by_group() -> None:
    assert list(dict.fromkeys(c.group for c in CATALOGUE.values())) == list(GROUPS)


def test_each_check_is_described() -> None:
    for found in CATALOGUE.values():
        assert re.match("[a-z]", found.text), f"{found.id}: the text continues 'the driver ...'"
        assert re.fullmatch(r"[A-Z].+\.", found.steps), f"{found.id}: the docstring describes the steps"
        assert found.consequence, found.id
        assert found.source, found.id
        assert isinstance(found.level, Requirement)
