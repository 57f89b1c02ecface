"""The documentation's site: its files, its API pages, and that it works when a browser opens it from files."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dra_kubeletplugin

ROOT = Path(__file__).parents[2]
API = ["dra_kubeletplugin", "dra_kubeletplugin.metadata", "dra_devkit.testing", "dra_tools"]
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def _documented(module: str) -> Iterator[tuple[str, str]]:
    """Yields the public names of a module and of their methods, with their docstrings."""
    found = importlib.import_module(module)
    for name in found.__all__:
        value = getattr(found, name)
        yield name, inspect.getdoc(value) or ""
        for method, function in inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else ():
            yield f"{name}.{method}", inspect.getdoc(function) or ""


@pytest.mark.parametrize("module", API)
def test_each_attribute_and_argument_of_the_api_has_a_line_of_its_own(module: str) -> None:
    """The site makes one entry of each line: `namespace, name: ...` became an attribute with the name "namespace,"."""
    several = re.compile(r"^ {4}\w+(?:, \w+)+: ", re.MULTILINE)
    sections = re.compile(r"^(?:Args|Attributes):\n((?:(?: .*)?\n)*)", re.MULTILINE)
    documented = dict(_documented(module))
    assert any(sections.search(text) for text in documented.values())
    wrong = {name: several.findall("".join(sections.findall(text + "\n"))) for name, text in documented.items()}
    assert {name: lines for name, lines in wrong.items() if lines} == {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it. The first build installs MkDocs into .venv-docs."""
    folder = tmp_path_factory.mktemp("built") / "site"
    argv = ["make", "--no-print-directory", "site", f"ARGS=--site-dir {folder}"]
    done = subprocess.run(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: make test installs it")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    browser.set_script_timeout(60)
    yield browser
    browser.quit()


@pytest.mark.index
@pytest.mark.timeout(300)
def test_the_site_has_pages_and_their_pictures_and_no_program(site: Path) -> None:
    own = {p.relative_to(site) for p in site.rglob("*") if p.is_file() and p.relative_to(site).parts[0] != "assets"}
    assert {p.suffix for p in own} == {".html", ".svg", ".js", ".json", ".xml", ".gz", ".inv"}
    assert {p for p in own if p.suffix in {".js", ".json"}} == {
        Path("search/search_index.js"),
        Path("search/search_index.json"),
    }


@pytest.mark.index
@pytest.mark.timeout(300)
def test_no_page_loads_a_file_of_another_server(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|img|iframe|link [^>]*rel="(?:stylesheet|icon|preload)")[^>]*(?:src|href)=["']?(?:https?:)?//"""
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    assert [str(p) for p in pages if loaded.search(p.read_text())] == []


@pytest.mark.index
@pytest.mark.timeout(300)
def test_each_class_of_the_api_has_a_page_with_what_authors_use(site: Path) -> None:
    for module in API:
        pages = {f"{module}.{name}.html" for name in importlib.import_module(module).__all__ if name != "__version__"}
        assert {name for name in pages if not (site / "api" / name).is_file()} == set()
    ids = set(
        re.findall(r'id="dra_kubeletplugin\.Driver\.(\w+)"', (site / "api/dra_kubeletplugin.Driver.html").read_text())
    )
    assert {"devices", "prepare", "unprepare", "hardware_lock", "rescan"} <= ids


@pytest.mark.index
@pytest.mark.timeout(300)
def test_each_page_leads_to_all_sections_and_to_the_repository_with_the_version(site: Path) -> None:
    for page in ("index.html", "guides/cookbook.html", "api/dra_kubeletplugin.Claim.html"):
        text = (site / page).read_text()
        tabs = text.partition('class="md-tabs"')[2].partition("</nav>")[0]
        shown = [" ".join(tab.split()) for tab in re.findall(r"<a [^>]*>(.*?)</a>", tabs, re.DOTALL)]
        assert shown == ["Overview", "Author", "Operator", "Other languages", "Contributor"]
        assert f"version {dra_kubeletplugin.__version__}" in text
        assert 'href="https://github.com/dra-kubeletplugin/dra-kubeletplugin"' in text


_SEARCH = """
const [words, done] = arguments;
document.querySelector("#__search").click();
const box = document.querySelector("[data-md-component=search-query]");
box.focus(); box.value = words; box.dispatchEvent(new KeyboardEvent("keyup"));
setInterval(() => {
  const links = [...document.querySelectorAll(".md-search-result__link")].map((link) => link.href);
  if (links.some((link) => link.includes("h=")) || document.querySelector(".md-search-result__meta").innerText.startsWith("No "))
    done(links);
}, 50);
"""


@pytest.mark.index
@pytest.mark.timeout(300)
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver")
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("hotplug", "guides/devices.html"),
        ("device status", "guides/cookbook.html#report-the-status-of-a-device"),
        ("MIG", "guides/partitions.html"),
        ("KubeVirt", "guides/virtual-machines.html"),
        ("rollback", "concepts.html#undo"),
        ("autoscaler", "guides/cookbook.html#nodes-that-an-autoscaler-would-add"),
        ("block device", "guides/cookbook.html#a-block-device"),
        ("firmware mode", "guides/shared-state.html"),
        ("on_undo", "api/dra_kubeletplugin.Claim.html"),
    ],
)
def test_the_search_finds_the_page_for_words_that_people_use(words: str, page: str, site: Path, browser: Any) -> None:
    """The browser opens the pages as files, so neither the pages nor their search need a server."""
    browser.get((site / "index.html").as_uri())
    links = [re.sub(r"\?h=[^#]*", "", link) for link in browser.execute_async_script(_SEARCH, words)]
    assert any(link.removeprefix(f"{site.as_uri()}/").startswith(page) for link in links), links


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver")
def test_a_worker_runs_in_a_page_that_a_browser_opens_as_a_file(tmp_path: Path, browser: Any) -> None:
    (tmp_path / "shim.js").write_text((ROOT / "docs" / "assets" / "iframe-worker.js").read_text())
    (tmp_path / "worker.js").write_text("addEventListener('message', (e) => postMessage(e.data.words.concat('found')))")
    (tmp_path / "page.html").write_text(
        "<!doctype html><body><script src='shim.js'></script><script>"
        "const worker = new Worker('worker.js');"
        "worker.addEventListener('message', (e) => { document.title = e.data.join(' ') });"
        "worker.postMessage({words: ['a', 'b']});</script>"
    )
    browser.get((tmp_path / "page.html").as_uri())
    script = "const [done] = arguments; setInterval(() => document.title && done(document.title), 10)"
    assert browser.execute_async_script(script) == "a b found"
