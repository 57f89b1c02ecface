"""Tests ``dra dev`` with clusters of their own: state folders, several drivers, controllers, addresses, failures."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.devkit.tests.commands.fpga import DRIVER, HOST
from tests.helpers.dev_process import GPU, ROOT, run_dev, run_dev_command
from tests.helpers.ports import free_port
from tests.helpers.waiting import block_until

pytestmark = pytest.mark.kubectl


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.full
def test_an_external_driver_registers_and_kill_driver_refuses_to_kill_it(short: Path) -> None:
    with run_dev(short, "--state-dir", str(short / "s")) as dev:
        assert "A driver in any language registers in a node's kubelet root" in dev.output
        (node,) = dev.verb("status")["nodes"]
        assert dev.verb("reboot-node") == {"nodes": [node["name"]], "sameBootId": [node["name"]]}, (
            "this machine was not rebooted, so its boot id stays the same"
        )
        env = {
            "NODE_NAME": node["name"],
            "KUBELET_ROOT": node["kubeletRoot"],
            "CDI_ROOT": node["cdiRoot"],
            "LOCAL_CLUSTER": "1",
        }
        driver = subprocess.Popen(
            [sys.executable, "-m", "dra_kubeletplugin.cli", "run", GPU],
            env=os.environ | env | {"KUBECONFIG": dev.kubeconfig}, cwd=ROOT, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            block_until(lambda: len(dev.devices()) == 8)
            block_until(lambda: dev.verb("status")["nodes"][0]["registered"] == {"gpu.example.com": 1})
            assert "stop and start your own driver yourself" in dev.verb("kill-driver")
        finally:
            driver.terminate()
            driver.wait(60)
        assert dev.verb("stop") == {}
        assert dev.process.wait(60) == 0
    assert (short / "s/kubeconfig").exists(), "files in --state-dir stay"


def test_several_drivers_run_in_one_cluster_and_end_when_it_is_killed(short: Path) -> None:
    (short / "driver.py").write_text(DRIVER)
    with run_dev(
        short, GPU, str(short / "driver.py"), "--state-dir", str(short / "s"), "--host", "virtual-machine"
    ) as dev:
        status = dev.verb("status")
        assert set(status["nodes"][0]["registered"]) == {"gpu.example.com", "fpga.example.com"}
        assert "which driver?" in dev.verb("kill-driver")
        second = run_dev_command("--state-dir", str(short / "s"))
        assert second.returncode == 2
        assert f"is in use by another `dra dev` (process {dev.process.pid})" in second.stderr
        pids = [d["pid"] for d in status["drivers"]]
        dev.process.kill()
        dev.process.wait()
        block_until(lambda: not any(_alive(pid) for pid in pids))


@pytest.mark.full
def test_a_controller_publishes_slices_and_is_restarted(short: Path) -> None:
    with run_dev(short, "drivers/fabric_example", "--controller", "--state-dir", str(short / "s")) as dev:
        assert dev.driver("controller")["phase"] == "ready"
        assert "finds no devices" not in dev.output, "the controller publishes the devices, so the plugins need no hint"
        block_until(
            lambda: any(
                not s["spec"].get("nodeName")
                for s in json.loads(dev.kubectl("get", "resourceslices", "-o", "json"))["items"]
            )
        )
        before = dev.driver("controller")["pid"]
        dev.verb("kill-driver", "--node", "controller", "--down-for", "0")
        block_until(lambda: (d := dev.driver("controller"))["phase"] == "ready" and d["pid"] != before)


@pytest.mark.parametrize("place", ["option", "variable"])
def test_upgrades_and_reloads_keep_the_address_of_the_plugin(short: Path, place: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    env = {"HTTP_ADDRESS": address} if place == "variable" else {}
    options = ["--controller"] if place == "variable" else ["--http-address", address]
    (short / "driver.py").write_text(DRIVER)
    (short / "host.yaml").write_text(HOST)

    def replaced(before: int) -> int:
        after = block_until(lambda: (d := dev.driver())["phase"] == "ready" and d["pid"] != before and d)
        block_until(is_ready)  # the instance before may still stop
        return int(after["pid"])

    def is_ready() -> bool:
        with (
            contextlib.suppress(
                urllib.error.HTTPError, ConnectionError
            ),  # the old instance may close a connection that waits
            urllib.request.urlopen(f"http://{address}/readyz", timeout=30),
        ):
            return True
        return False

    with run_dev(short, str(short / "driver.py"), "--host", str(short / "host.yaml"), *options, **env) as dev:
        pid = replaced(0)
        dev.verb("upgrade-driver", "--node", "node-1")
        pid = replaced(pid)
        (short / "next").write_text(DRIVER.replace('"one"', '"two"'))
        (short / "next").replace(short / "driver.py")
        replaced(pid)
        assert dev.devices()["pci-0000-17-00-0"]["attributes"]["version"] == {"string": "two"}
        second = run_dev_command(GPU, "--http-address", address)
        assert (second.returncode, "Traceback" in second.stderr) == (2, False)
        assert f"--http-address (HTTP_ADDRESS) {address}: " in second.stderr
        assert "Address already in use" not in dev.log()


def test_the_status_reports_a_driver_that_fails_after_it_was_ready(short: Path) -> None:
    """The driver's discovery fails, then an upgrade of the driver fails, then both succeed."""
    broken, gone = short / "broken", short / "gone"
    text = DRIVER.replace('name = "fpga', f'assert not Path("{broken}").exists()\n    name = "fpga')
    text = text.replace(
        "        return [fn", f'        assert not Path("{gone}").exists(), "no library"\n        return [fn'
    )
    (short / "driver.py").write_text(f"from pathlib import Path\n{text}")
    (short / "host.yaml").write_text(HOST)
    options = ["--host", str(short / "host.yaml"), "--rescan-interval", "1s"]

    def shown() -> str:
        return subprocess.run(
            [sys.executable, "-m", "dra_kubeletplugin.cli", "dev", "status", "--state-dir", str(dev.state)],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip

    with run_dev(short, str(short / "driver.py"), *options) as dev:
        gone.touch()
        failing = block_until(lambda: (d := dev.driver())["phase"] == "not ready" and d)
        assert "no library" in failing["waits"][0]
        assert re.search(
            r"^fpga.example.com on node-1: not ready, .*\n  not ready     .*no library", shown(), re.MULTILINE
        )
        gone.unlink()
        block_until(lambda: dev.driver()["phase"] == "ready")
        broken.touch()
        assert "AssertionError" in dev.verb("upgrade-driver")
        after = dev.driver()
        assert (after["phase"], after["pid"]) == ("ready", failing["pid"])
        assert "AssertionError" in after["failedUpgrade"]
        assert "  not upgraded  fpga.example.com on node-1" in shown()
        broken.unlink()
        dev.verb("upgrade-driver")
        assert (dev.driver()["phase"], dev.driver()["failedUpgrade"]) == ("ready", "")


def _alive(pid: int) -> bool:
    try:
        return not re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
