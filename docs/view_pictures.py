"""Draws `dra top` and the page of an example cluster for the documentation: `make picture`."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from terminal_svg import terminal_svg  # noqa: E402

from dra_devkit.commands.style import Style  # noqa: E402
from dra_kubeletplugin.base.http_server.server import HttpServer, Request, Response  # noqa: E402
from dra_tools.commands.top import explained_overview  # noqa: E402
from dra_tools.commands.top.table import table  # noqa: E402
from dra_tools.page import usage_page  # noqa: E402
from dra_tools.usage.rows import Overview  # noqa: E402
from tests.helpers.usage_examples import cluster  # noqa: E402

FOLDER = ROOT / "docs" / "assets"
COLUMNS = (80, 130, 200)
PAGES = {"page.png": (1280, 1100), "page-phone.png": (390, 1500)}


def example() -> Overview:
    return explained_overview(cluster(), "", lambda text: None)


def terminal_pictures() -> Iterator[tuple[str, str]]:
    """Yields the name and the content of each picture of `dra top`."""
    found = example()
    for columns in COLUMNS:
        lines = list(table(found, Style(coloured=True), columns))
        yield f"top-{columns}.svg", terminal_svg(["$ dra top --once", *lines], columns)


async def draw_pages(folder: Path, chromium: str) -> None:
    """Draws the page of the example with a browser, at the width of a desktop and of a phone."""
    found = example()

    async def serve(request: Request) -> Response:
        return usage_page.page() if request.path == "/" else usage_page.data(request, found)

    server = HttpServer(serve)
    url = await server.start()
    try:
        for name, (width, height) in PAGES.items():
            await _draw(chromium, f"{url}/", folder / name, width, height)
    finally:
        await server.close()


async def _draw(chromium: str, url: str, to: Path, width: int, height: int) -> None:
    flags: Iterable[str] = (
        "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000",
        f"--window-size={width},{height}", f"--screenshot={to}",
    )  # fmt: skip
    process = await asyncio.create_subprocess_exec(chromium, *flags, url, stderr=asyncio.subprocess.DEVNULL)
    if status := await process.wait():
        raise SystemExit(f"{chromium} has not drawn {to}: exit status {status}")


if __name__ == "__main__":
    for name, content in terminal_pictures():
        (FOLDER / name).write_text(content)
    if found := shutil.which("chromium"):
        asyncio.run(draw_pages(FOLDER, found))
    else:
        print("the pictures of the page stay as they are, because chromium is not installed", file=sys.stderr)
