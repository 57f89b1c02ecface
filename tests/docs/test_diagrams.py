"""docs/sequence.py draws the pictures of the pages from their text."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def _loaded() -> ModuleType:
    """As MkDocs loads a hook: it is in no package."""
    spec = importlib.util.spec_from_file_location("sequence", DOCS / "sequence.py")
    assert spec and spec.loader
    module = sys.modules["sequence"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sequence = _loaded()
DRAWN = [page for page in sorted(DOCS.glob("**/*.md")) if "```sequence\n" in page.read_text()]


@pytest.mark.parametrize("page", DRAWN, ids=lambda p: p.name)
def test_every_picture_of_a_page_is_drawn_with_all_its_words(page: Path) -> None:
    markdown = sequence.on_page_markdown(page.read_text())
    assert "```sequence" not in markdown
    pictures = re.findall(r'<div class="sequence">(.*)</div>', markdown)
    assert len(pictures) == page.read_text().count("```sequence\n")
    for picture, source in zip(
        pictures, re.findall(r"```sequence\n(.*?)```", page.read_text(), re.DOTALL), strict=True
    ):
        root = ET.fromstring(picture)  # noqa: S314 our own
        shown = " ".join(text.text or "" for text in root.iter("text"))
        for word in re.findall(r"[\w()]+", re.sub(r" [xo] ", " ", source)):
            assert word in shown
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for text in root.iter("text"):
            half = len(text.text or "") * sequence.CHARACTER / 2
            x, y = float(text.attrib["x"]), float(text.attrib["y"])
            assert half <= x <= width - half
            assert 0 < y <= height


@pytest.mark.parametrize("line", ["a => b: words", "a -> c: nobody", "c x killed", "words"])
def test_a_line_that_says_nothing_fails_the_site(line: str) -> None:
    with pytest.raises(ValueError, match=r"no (lane|line)"):
        sequence.draw(f"a, b\n{line}\n")


def test_a_line_of_life_ends_at_a_death_and_begins_at_a_birth() -> None:
    picture = sequence.draw("a, b\na x killed\nb o starts\na -> b: nothing\n")
    lives = re.findall(r'M(\d+) (\d+)V(\d+)" class="life"', picture)
    ends = {int(x): (int(begin), int(end)) for x, begin, end in lives}
    (first, second) = sorted(ends)
    assert ends[first][1] < ends[second][0] < ends[second][1]
