"""The documentation's site works when a browser opens it from files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SHIM = "assets/iframe-worker.js"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python objects."""


_Loader.add_multi_constructor("", lambda loader, suffix, node: suffix)


def test_the_search_of_the_site_needs_no_server_and_loads_no_external_file() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=_Loader)  # noqa: S506
    names = [name if isinstance(name, str) else next(iter(name)) for name in config["plugins"]]
    assert names.index("search") < names.index("offline")
    # Without a polyfill of this name, the plugin adds one from another server.
    assert config["extra"]["polyfills"] == [SHIM]
    assert (ROOT / "docs" / SHIM).is_file()


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver")
def test_a_worker_runs_in_a_page_that_a_browser_opens_as_a_file(tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: make test installs it")
    (tmp_path / "shim.js").write_text((ROOT / "docs" / SHIM).read_text())
    (tmp_path / "worker.js").write_text("addEventListener('message', (e) => postMessage(e.data.words.concat('found')))")
    (tmp_path / "page.html").write_text(
        "<!doctype html><body><script src='shim.js'></script><script>"
        "const worker = new Worker('worker.js');"
        "worker.addEventListener('message', (e) => { document.title = e.data.join(' ') });"
        "worker.postMessage({words: ['a', 'b']});</script>"
    )
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        browser.get((tmp_path / "page.html").as_uri())
        script = "const [done] = arguments; setInterval(() => document.title && done(document.title), 10)"
        browser.set_script_timeout(60)
        assert browser.execute_async_script(script) == "a b found"
    finally:
        browser.quit()
