"""The documentation's site: its files, its API pages, and that it works when a browser opens it from files."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SHIM = "assets/iframe-worker.js"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python objects."""


_Loader.add_multi_constructor("", lambda loader, suffix, node: suffix)


def test_the_site_contains_no_program() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=_Loader)  # noqa: S506
    patterns = config["exclude_docs"].split()
    programs = [
        "generate.py",
        "links.py",
        "command_reference.py",
        "reference_pages.py",
        "__pycache__/links.cpython-311.pyc",
    ]
    assert [name for name in programs if not any(fnmatch(Path(name).name, pattern) for pattern in patterns)] == []


def _documented(module: str) -> Iterator[tuple[str, str]]:
    """Yields the public names of a module and of their methods, with their docstrings."""
    found = importlib.import_module(module)
    for name in found.__all__:
        value = getattr(found, name)
        yield name, inspect.getdoc(value) or ""
        for method, function in inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else ():
            yield f"{name}.{method}", inspect.getdoc(function) or ""


@pytest.mark.parametrize(
    "module", ["dra_kubeletplugin", "dra_kubeletplugin.metadata", "dra_devkit.testing", "dra_tools"]
)
def test_each_attribute_and_argument_of_the_api_has_a_line_of_its_own(module: str) -> None:
    """The site makes one entry of each line: `namespace, name: ...` became an attribute with the name "namespace,"."""
    several = re.compile(r"^ {4}\w+(?:, \w+)+: ", re.MULTILINE)
    sections = re.compile(r"^(?:Args|Attributes):\n((?:(?: .*)?\n)*)", re.MULTILINE)
    documented = dict(_documented(module))
    assert any(sections.search(text) for text in documented.values())
    wrong = {name: several.findall("".join(sections.findall(text + "\n"))) for name, text in documented.items()}
    assert {name: lines for name, lines in wrong.items() if lines} == {}


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
