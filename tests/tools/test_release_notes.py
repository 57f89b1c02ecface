"""The notes of a release are the section of its version in the changelog, which must have a date."""

from __future__ import annotations

import pytest

from dra_kubeletplugin import __version__
from tests.tools.release_notes import CHANGELOG, notes_of

TEXT = "# Changelog\n\n## 0.2.0, not released\n\n- new\n\n## 0.1.0, 2026-11-29\n\n### A part\n\n- old\n"


def test_the_notes_are_the_section_of_the_version() -> None:
    assert notes_of(TEXT, "0.1.0") == "### A part\n\n- old\n"
    assert notes_of(TEXT.replace("not released", "2026-12-24"), "0.2.0") == "- new\n"


@pytest.mark.parametrize(
    "version, fault", [("0.2.0", "write the date of the release there"), ("0.3.0", "has no section '0.3.0'")]
)
def test_a_section_without_a_date_and_a_missing_section_are_refused(version: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        notes_of(TEXT, version)


def test_the_changelog_of_this_tree_has_a_section_of_its_version() -> None:
    text = CHANGELOG.read_text().replace(f"## {__version__}, not released", f"## {__version__}, 2026-11-29")
    assert notes_of(text, __version__)
