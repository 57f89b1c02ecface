"""docs/sequence.py draws the diagrams of the pages from their sources."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import sequence

DOCS = Path(__file__).parents[2] / "docs"
SOURCES = sorted((DOCS / "diagrams").glob("*.txt"))
SVG = "{http://www.w3.org/2000/svg}"
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]*diagrams/[^)]+)\)")


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_every_diagram_shows_all_words_of_its_source(source: Path) -> None:
    root = ET.fromstring(sequence.draw(source.read_text()))  # noqa: S314 trusted text
    shown = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    for word in re.findall(r"[\w()]+", re.sub(r" [xo] ", " ", source.read_text())):
        assert word in shown
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for text in root.iter(f"{SVG}text"):
        half_width = len(text.text or "") * sequence.CHARACTER / 2
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        assert half_width <= x <= width - half_width
        assert 0 < y <= height


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_the_svg_beside_a_source_is_current(source: Path) -> None:
    assert source.with_suffix(".svg").read_text() == sequence.draw(source.read_text()), "run `make docs`"


def test_pages_show_every_diagram_as_an_image_with_alternative_text() -> None:
    """GitHub and plain Markdown viewers show images, but not diagram sources."""
    images = [(page, *image) for page in DOCS.glob("**/*.md") for image in _IMAGE.findall(page.read_text())]
    assert all(text for _, text, _ in images)
    shown = {(page.parent / path).resolve() for page, _, path in images}
    pictures = set((DOCS / "diagrams").glob("*.svg"))
    assert shown == pictures == {source.with_suffix(".svg") for source in SOURCES}
    pages = [page.name for page in DOCS.glob("**/*.md") if re.search(r"^```(mermaid|sequence)", page.read_text(), re.M)]
    assert pages == []


def test_a_diagram_has_colours_for_light_and_dark_mode_and_loads_no_resources() -> None:
    drawn = sequence.draw("a, b\na -> b: hello\n")
    assert "prefers-color-scheme: dark" in drawn
    assert 'class="page"' in drawn
    assert re.findall(r"https?://[^\"]+|url\(", drawn) == ["http://www.w3.org/2000/svg"]
