"""The page of an example cluster in a real browser: it fits a desktop and a phone, and the server filters and sorts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.base.http_server.server import HttpServer, Request, Response
from dra_tools.commands.top import explained_overview
from dra_tools.page import usage_page
from tests.helpers.usage_examples import CARDS, cluster

pytest.importorskip("selenium", reason="selenium is not installed: make test installs it")
from selenium import webdriver

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver"),
    pytest.mark.timeout(240),
]
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")
WIDER = (
    "return [...document.querySelectorAll('main *')].filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth"
    " && getComputedStyle(e).overflowX !== 'auto').map(e => e.outerHTML.slice(0, 120))"
)


class Page:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    async def run(self, script: str) -> Any:
        return await asyncio.to_thread(self.driver.execute_script, script)

    async def text(self, css: str) -> str:
        return str(await self.run(f"return document.querySelector({css!r}).innerText"))

    async def wait_text(self, text: str, css: str = "#groups") -> None:
        async with asyncio.timeout(60):
            while text not in await self.text(css):
                await asyncio.sleep(0.05)

    async def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await asyncio.to_thread(self.driver.execute_cdp_cmd, "Emulation.setDeviceMetricsOverride", metrics)


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    page_model = explained_overview(cluster(), "", lambda text: None)

    async def serve(request: Request) -> Response:
        return usage_page.page() if request.path == "/" else usage_page.data(request, page_model)

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    server = HttpServer(serve)
    url = await server.start()
    driver = await asyncio.to_thread(webdriver.Chrome, options=options, service=webdriver.ChromeService(DRIVER))
    try:
        await asyncio.to_thread(driver.get, f"{url}/")
        yield Page(driver)
    finally:
        await asyncio.to_thread(driver.quit)
        await server.close()


async def test_the_page_fits_a_desktop_and_a_phone(page: Page) -> None:
    await page.wait_text("part-half-0-1")
    for size in ((1280, 900), (768, 1024), (390, 844), (320, 568)):
        await page.resize(*size)
        assert await page.run("return document.documentElement.scrollWidth <= innerWidth"), size
        assert await page.run(WIDER) == [], size


async def test_a_card_is_one_line_with_its_counters_and_an_unhealthy_card_has_the_driver_s_text(page: Page) -> None:
    await page.wait_text("part-half-0-1")
    rows = await page.run("return [...document.querySelectorAll('.of-card')].map(e => e.innerText)")
    assert [row.split()[0] for row in rows] == [*CARDS, *CARDS]
    assert "memory 48Gi/64Gi  cores 6/8  slots 1110" in rows[0]
    text = await page.text("#groups")
    assert text.count("▲ the fan stands still") == 1
    assert "1.75 of 4 held" in text and "7 not well" in text


async def test_the_server_filters_and_groups_and_details_come_on_a_click(page: Page) -> None:
    await page.wait_text("part-half-0-1")
    await page.run(
        "const f = document.getElementById('filter'); f.value = 'notebook'; f.dispatchEvent(new Event('input'))"
    )
    await page.wait_text("ml/notebook")
    async with asyncio.timeout(60):
        while "ml/train-0" in await page.text("#groups"):
            await asyncio.sleep(0.05)
    assert await page.text("#waiting h2") == "2 pods wait to start, the filter hides 2"
    await page.run("[...document.querySelectorAll('.row')].find(e => e.innerText === 'part-quarter-2').click()")
    await page.wait_text("claim ml/notebook", "#sheet")
    assert "counters of n4-0000-17-00-0" in await page.text("#sheet")
    assert [e["message"] for e in page.driver.get_log("browser") if e["level"] == "SEVERE"] == []
