"""The pictures of `dra top` and of the page in the documentation are current and readable."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import struct
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
CHROMIUM = shutil.which("chromium")


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    return module("view_pictures")


def test_the_pictures_of_top_show_the_lines_of_this_version(pictures: ModuleType) -> None:
    for name, content in pictures.terminal_pictures():
        assert (DOCS / "assets" / name).read_text() == content, "run `make picture`"


def test_a_picture_places_each_word_at_its_column() -> None:
    terminal_svg = module("terminal_svg")
    line = "a  \x1b[32mgreen word\x1b[0m &   ▕█▌  ▏"
    root = ElementTree.fromstring(terminal_svg.terminal_svg([line], 80))  # noqa: S314  trusted text
    words = [e for e in root if e.tag.endswith("text")]
    plain = "a  green word &   ▕█▌  ▏"
    assert [e.text for e in words] == plain.split()
    for element in words:
        column = round((float(element.attrib["x"]) - terminal_svg.MARGIN) / terminal_svg.CELL)
        assert plain[column:].startswith(element.text or "?")
    assert [e.attrib.get("class") for e in words[:3]] == [None, "good", "good"]
    for picture in (*(DOCS / "assets").glob("top-*.svg"), DOCS / "demo.svg"):
        drawn = [e for e in ElementTree.parse(picture).getroot() if e.tag.endswith("text")]  # noqa: S314  trusted text
        assert drawn and not any(" " in (e.text or "") or "x" not in e.attrib for e in drawn)
    cut = terminal_svg.terminal_svg(["12345 \x1b[1m789\x1b[0m more"], 8)
    assert [text.partition("<")[0] for text in cut.split('preserve">')[1:]] == ["12345"]
    assert cut.count(">7…<") == 1


@pytest.mark.skipif(not CHROMIUM, reason="no browser: apt-get install chromium")
async def test_the_pages_are_drawn_by_the_browser(pictures: ModuleType, tmp_path: Path) -> None:
    async with asyncio.timeout(120):
        await pictures.draw_pages(tmp_path, CHROMIUM)
    for name, size in pictures.PAGES.items():
        for folder in (tmp_path, DOCS / "assets"):
            header = (folder / name).read_bytes()[:24]
            assert header.startswith(b"\x89PNG") and struct.unpack(">II", header[16:]) == size
