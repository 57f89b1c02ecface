"""The page of `dra dev` in a real browser: content, keys, and rejected requests."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.dev_process import GPU, DevProcess, run_dev
from tests.helpers.waiting import block_until

pytest.importorskip("selenium", reason="selenium is not installed: make test installs it")
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver"),
    pytest.mark.timeout(240),
]
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1400,1000",
)  # fmt: skip
SCRIPT = "<img src=x onerror=document.title='owned'>"
MANIFEST: list[dict[str, Any]] = [
    {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "odd"},
        "spec": {
            "driver": "odd.example.com", "allNodes": True, "pool": {"name": "odd", "generation": 1, "resourceSliceCount": 1},
            "devices": [{
                "name": "odd-0", "attributes": {"model": {"string": SCRIPT}, "numa": {"string": SCRIPT}},
                "taints": [{"key": "odd.example.com/sick", "value": "yes", "effect": "NoSchedule"}],
            }],
        },
    },
    {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]},
    },
    {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "nine"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 9}}]}}},
    },
    {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}},
    },
]  # fmt: skip


def pod(name: str, template: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
            "containers": [{
                "name": "main", "image": "busybox", "command": ["sleep", "infinity"], "resources": {"claims": [{"name": "gpu"}]},
            }],
        },
    }  # fmt: skip


@dataclass
class Browser:
    """A browser with a new profile."""

    driver: webdriver.Chrome

    def text(self, css: str = "body") -> str:
        """Returns the visible text; empty if no element matches, or the element is being replaced."""
        script = "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''"
        return str(self.driver.execute_script(script, css))

    def wait_text(self, text: str, css: str = "body") -> None:
        block_until(lambda: text in self.text(css), limit=60)

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def errors(self) -> list[str]:
        """Returns the errors of the browser: violations of the policy, failed scripts."""
        return [str(e["message"]) for e in self.driver.get_log("browser") if e["level"] == "SEVERE"]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProcess]:
    """One node with eight GPUs whose plugin serves its own page; a slice of a hostile driver; a pod that waits."""
    folder = tmp_path_factory.mktemp("dev")
    file = folder / "manifest.yaml"
    file.write_text("\n---\n".join(json.dumps(o) for o in [*MANIFEST, pod("greedy", "nine")]))
    flags = (
        "--http-address",
        "127.0.0.1:0",
        "--log-level",
        "info",
        "--no-reload",
    )  # without a reload, the address never changes
    with run_dev(folder, GPU, *flags, "--apply", str(file)) as process:
        yield process


def link(dev: DevProcess) -> str:
    return str(dev.verb("print-link")["url"])


def send(url: str, method: str = "GET", data: bytes | None = None, **headers: str) -> tuple[int, str]:
    request_headers = {k.replace("_", "-"): v for k, v in headers.items()}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, request_headers, method=method), timeout=30
        ) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


def apply(dev: DevProcess, folder: Path, *objects: dict[str, Any]) -> None:
    file = folder / "more.yaml"
    file.write_text("\n---\n".join(map(json.dumps, objects)))
    dev.kubectl("apply", "-f", str(file))


# --- dra dev --------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.kubectl
def test_the_page_of_dra_dev_follows_the_cluster(dev: DevProcess, browser: Browser, tmp_path: Path) -> None:
    browser.driver.get(link(dev))
    browser.wait_text("0 of 8 held", "#groups")
    apply(dev, tmp_path, pod("train", "one"))
    browser.wait_text("default/train", "#groups")
    browser.wait_text("1 of 8 held", "#groups")
    browser.wait_text("1\n● held", "#tiles")
    dev.kubectl("delete", "pod", "train", "--grace-period=1")
    browser.wait_text("0 of 8 held", "#groups")
    assert browser.errors() == []


@pytest.mark.full
def test_a_waiting_pod_is_shown_with_its_reason_and_a_click_shows_the_details(
    dev: DevProcess, browser: Browser
) -> None:
    browser.driver.get(link(dev))
    browser.wait_text("on the only node", "#waiting")
    click = "document.querySelector('#waiting .row').click()"  # in one step, because each change creates the rows again
    browser.driver.execute_script(click)
    browser.wait_text("9 devices of class gpu", "#sheet")
    script = "const end = arguments[0], p = explain(shown.waiting[0]); at('sheet').close(); p.then(() => end(at('sheet').open))"
    assert browser.driver.execute_async_script(script) is False, "a late response does not open a closed sheet"


def test_names_and_attributes_are_shown_as_text_whatever_they_contain(dev: DevProcess, browser: Browser) -> None:
    browser.driver.get(link(dev))
    browser.wait_text("odd-0", "#groups")
    browser.wait_text(SCRIPT, "#groups")  # the NUMA node is a column
    browser.driver.execute_script("[...document.querySelectorAll('.row')].find(e => e.innerText === 'odd-0').click()")
    browser.wait_text(SCRIPT, "#sheet")
    assert browser.driver.title == "cluster"
    assert browser.driver.execute_script("return document.querySelectorAll('img, main script').length") == 0
    assert browser.errors() == []


def test_the_browser_refuses_scripts_and_requests_of_other_origins(dev: DevProcess, browser: Browser) -> None:
    browser.driver.get(link(dev))
    browser.wait_text("live", "#state")
    outcomes = browser.driver.execute_async_script(
        "const done = arguments[0], out = [];"
        "try { document.body.innerHTML = '<b>x</b>'; out.push('html') } catch { out.push('no html') }"
        "const s = document.createElement('script'); try { s.text = 'window.ran = 1'; document.body.append(s) } catch {}"
        "out.push(window.ran ? 'ran' : 'no script');"
        "fetch('http://127.0.0.1:9/').then(() => out.push('asked'), () => out.push('no request')).then(() => done(out))"
    )
    assert outcomes == ["no html", "no script", "no request"]
    block_until(lambda: any("Content Security Policy" in e for e in browser.errors()))


@pytest.mark.full
def test_keys_filter_group_fold_pause_and_open_without_a_mouse(dev: DevProcess, browser: Browser) -> None:
    browser.driver.get(link(dev))
    browser.wait_text("gpu-7", "#groups")
    browser.press("/")
    browser.press("index=3", Keys.ENTER)
    browser.wait_text("0 of 1 held", "#groups")
    block_until(lambda: "gpu-7" not in browser.text("#groups"))  # the server filters
    browser.wait_text("gpu-3", "#groups")
    browser.press("/")
    browser.press(Keys.ESCAPE)
    browser.wait_text("gpu-7", "#groups")
    browser.press("g")
    browser.wait_text("odd.example.com\n", "#groups")
    browser.press("c")
    block_until(lambda: "gpu-7" not in browser.text("#groups"))
    browser.press("c")
    browser.wait_text("gpu-7", "#groups")
    browser.press("j", "j", "j", Keys.ENTER)
    browser.wait_text("attributes", "#sheet")
    browser.press(Keys.ESCAPE)
    block_until(lambda: not browser.driver.execute_script("return document.getElementById('sheet').open"))
    browser.press("p")
    browser.wait_text("paused at", "#state")
    browser.press("p", "?")
    browser.wait_text("Keys and signs", "#sheet")


@pytest.mark.full
def test_the_page_is_dark_if_the_reader_prefers_it(dev: DevProcess, browser: Browser) -> None:
    colours = []
    browser.driver.get(link(dev))
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        script = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color].map(c => c.match(/\\d+/g).map(Number))"
        colours.append(browser.driver.execute_script(script))
    (light, ink), (dark, chalk) = ((sum(b[:3]), sum(t[:3])) for b, t in colours)
    assert min(light, chalk) > 600
    assert max(dark, ink) < 150


@pytest.mark.full
def test_a_link_can_be_used_once_and_lasts_for_its_tab(dev: DevProcess, browser: Browser) -> None:
    url = link(dev)
    browser.driver.get(url)
    browser.wait_text("live", "#state")
    assert "key=" not in browser.driver.current_url
    browser.driver.refresh()
    browser.wait_text("live", "#state")
    browser.driver.switch_to.new_window("tab")
    browser.driver.get(url)
    browser.wait_text("`dra dev print-link` prints a new one", "#groups")
    block_until(lambda: browser.text("#state") == "nothing to show")  # also a refused request is complete
    assert browser.driver.get_cookies() == []


def test_requests_without_a_session_get_no_data_of_dra_dev(dev: DevProcess) -> None:
    url, _, key = link(dev).partition("#key=")
    data = url + "overview.json"
    assert send(data)[0] == 401
    assert send(url + "view.json")[0] == 401
    assert send(url + "details.json?devices=x")[0] == 401
    assert send(data, Authorization="Bearer x")[0] == 401
    assert send(url + "explanation?namespace=default&pod=greedy")[0] == 401
    assert send(url + "session", "POST", b"wrong")[0] == 401
    assert send(url + "session", "POST", key.encode(), Origin="http://evil.example.com")[0] == 403
    assert send(url + "session", "POST", key.encode(), Host="evil.example.com")[0] == 403
    status, body = send(url + "session", "POST", key.encode())
    assert status == 200
    token = json.loads(body)["token"]
    assert send(url + "session", "POST", key.encode())[0] == 401, "once"
    assert send(data, Authorization=f"Bearer {token}")[0] == 200
    assert send(data, Authorization=f"Bearer {token}", Origin="http://evil.example.com")[0] == 403
    assert send(data, Authorization=f"Bearer {token}", Sec_Fetch_Site="cross-site")[0] == 403
    assert send(data, "DELETE", Authorization=f"Bearer {token}")[0] == 405
    assert "greedy" not in send(url)[1], "the page itself contains no data"


@pytest.mark.full
def test_an_outage_of_the_api_server_is_shown_until_it_ends(dev: DevProcess, browser: Browser) -> None:
    browser.driver.get(link(dev))
    browser.wait_text("live", "#state")
    is_shown = threading.Event()

    def keep_outage() -> None:
        while not is_shown.is_set():
            dev.verb("api-outage", "1")

    with ThreadPoolExecutor(1) as executor:
        outage = executor.submit(keep_outage)
        try:
            browser.wait_text("the API server is unavailable", "#state")
        finally:
            is_shown.set()
        outage.result()
    browser.wait_text("live", "#state")
