"""A plugin's process starts and stops in bounded time, whatever its driver does, and its log names the call that it
waits for.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import os
import signal
import struct
import sys
import tempfile
import termios
import textwrap
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import pytest

from dra_devkit.localcluster.child_signals import signal_child
from tests.helpers.certificates import authority, signed
from tests.helpers.crash.harness import ROOT
from tests.helpers.kubeconfigs import config_of, write_config
from tests.helpers.signals import inherit_signals

pytestmark = pytest.mark.crash

STARTED: list[asyncio.subprocess.Process] = []
DRIVER = """
import os, signal, time, threading, asyncio
from dra_kubeletplugin import Device, Driver

def report(text):
    os.write(1, (text + "\\n").encode())

class BaseDriver(Driver):
    def devices(self):
        return []

    def prepare(self, claim):
        return [d.prepared() for d in claim.devices]

class Slow(BaseDriver):
    name = "slow.example.com"
"""


@pytest.fixture(autouse=True)
async def _end_processes() -> AsyncIterator[None]:
    yield
    for process in STARTED:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    STARTED.clear()


class PluginProcess:
    """Runs ``dra run`` with a driver of a few lines, on its own folders and without an API server."""

    def __init__(self, tmp_path: Path, driver: str, **environment: str) -> None:
        self.root = tmp_path
        for folder in ("plugins", "plugins_registry"):
            (tmp_path / folder).mkdir()
        (tmp_path / "driver.py").write_text(DRIVER + textwrap.indent(textwrap.dedent(driver), "    "))
        kubeconfig = write_config(tmp_path, config_of({}, server="http://127.0.0.1:9"), "kubeconfig")
        self.environment = {k: v for k, v in os.environ.items() if k not in {"KUBECONFIG", "POD_UID"}} | {
            "NODE_NAME": "node",
            "KUBECONFIG": kubeconfig,
            "KUBELET_ROOT": str(tmp_path),
            "CDI_ROOT": str(tmp_path / "cdi"),
            "SHUTDOWN_GRACE_PERIOD": "500ms",
            "PYTHONPATH": str(ROOT / "src"),
            **environment,
        }
        self.err = tmp_path / "err"

    async def start(
        self, line: str, signals: Iterable[int] = (signal.SIGINT, signal.SIGHUP)
    ) -> asyncio.subprocess.Process:
        """Waits until the driver prints ``line``. ``signals`` have the handlers of a process in a terminal, however
        pytest was started.
        """
        with self.err.open("ab") as err, inherit_signals(signals):
            await self.start_with(err.fileno())
        assert self.process.stdout
        if line:  # a line that the driver prints
            async with asyncio.timeout(60):
                while (output_line := await self.process.stdout.readline()).strip() != line.encode():
                    assert output_line, self.log
        return self.process

    async def start_with(self, err: int) -> asyncio.subprocess.Process:
        """Does not wait; ``err`` is the descriptor of standard error."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dra_kubeletplugin.cli", "run", f"{self.root / 'driver.py'}:Slow",
            env=self.environment, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=err,
        )  # fmt: skip
        STARTED.append(self.process)
        return self.process

    @property
    def log(self) -> str:
        return self.err.read_text()

    async def wait_logged(self, text: str) -> None:
        async with asyncio.timeout(60):
            while text not in self.log:
                await asyncio.sleep(0.05)

    async def exit_code(self) -> int:
        async with asyncio.timeout(45):  # less than any of the grace periods and waits of these drivers
            return await self.process.wait()

    def socket_files(self) -> list[str]:
        return sorted(p.name for p in self.root.rglob("*") if p.is_socket() or p.name.endswith(".sock.lock"))


PAGE = 4096  # bytes: the smallest pipe


def unread_bytes(pipe: int) -> int:
    """Returns the number of bytes in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


STOP_SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
SERVES = """
def devices(self):
    return []
def stop(self):
    report('in stop')
"""
HANGS_IN_START = "async def start(self):\n    report('in start')\n    await asyncio.sleep(600)"
BLOCKS_IN_START = "def start(self):\n    report('in start')\n    time.sleep(600)"
HOLDS_THE_LOOP = "async def start(self):\n    report('in start')\n    time.sleep(600)"


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("driver", [HANGS_IN_START, BLOCKS_IN_START], ids=["on the loop", "in a thread"])
async def test_a_signal_during_start_ends_the_process_with_0_and_leaves_no_sockets(
    tmp_path: Path, driver: str, number: int
) -> None:
    p = PluginProcess(tmp_path, driver)
    (await p.start("in start")).send_signal(number)
    assert await p.exit_code() == 0
    assert p.socket_files() == []
    assert "stopped" in p.log


async def test_a_signal_while_the_driver_s_file_is_imported_ends_the_process(tmp_path: Path) -> None:
    p = PluginProcess(tmp_path, "report('importing')\ntime.sleep(600)")
    (await p.start("importing")).terminate()
    assert await p.exit_code() == 0


@pytest.mark.full
async def test_a_start_that_blocks_the_event_loop_ends_after_a_signal_with_a_line_that_names_it(
    tmp_path: Path,
) -> None:
    p = PluginProcess(tmp_path, HOLDS_THE_LOOP)
    (await p.start("in start")).terminate()
    assert await p.exit_code() == 3
    assert "the stop has taken 5.5 s, so the process ends now" in p.log
    assert "Slow.start" in p.log


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_a_signal_to_a_serving_plugin_stops_it_in_order_with_0_and_leaves_no_sockets(
    tmp_path: Path, number: int
) -> None:
    """Also SIGHUP, which a terminal sends at its end."""
    p = PluginProcess(tmp_path, SERVES)
    process = await p.start("")
    await p.wait_logged("serving the kubelet")
    process.send_signal(number)
    assert process.stdout
    assert (await process.stdout.readline()).strip() == b"in stop"
    assert await p.exit_code() == 0
    assert p.socket_files() == []
    assert f"{signal.Signals(number).name}: stopping" in p.log


@pytest.mark.full
async def test_a_plugin_started_by_nohup_continues_without_its_terminal(tmp_path: Path) -> None:
    p = PluginProcess(tmp_path, SERVES)
    with inherit_signals([signal.SIGHUP], signal.SIG_IGN):
        process = await p.start("", [])
    await p.wait_logged("serving the kubelet")
    process.send_signal(signal.SIGHUP)
    signal_child(process, signal.SIGTERM)  # the process may be ending
    assert await p.exit_code() == 0
    assert "SIGTERM: stopping" in p.log
    assert "SIGHUP" not in p.log


HOLDS_IN_STOP = """
def devices(self):
    return []
async def stop(self):
    report('in stop')
    time.sleep(600)
"""


@pytest.mark.full
async def test_a_stop_that_blocks_the_event_loop_ends_with_a_line_that_names_it(tmp_path: Path) -> None:
    p = PluginProcess(tmp_path, HOLDS_IN_STOP)
    process = await p.start("")
    await p.wait_logged("serving the kubelet")
    process.terminate()
    assert await p.exit_code() == 3
    assert "Slow.stop" in p.log


async def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    p = PluginProcess(tmp_path, HOLDS_IN_STOP, SHUTDOWN_GRACE_PERIOD="60s")
    process = await p.start("")
    await p.wait_logged("serving the kubelet")
    process.terminate()
    assert process.stdout
    assert (await process.stdout.readline()).strip() == b"in stop"
    signal_child(process, signal.SIGTERM)  # the process may be ending
    assert await p.exit_code() == 3
    assert "SIGTERM again: the process ends at once" in p.log


FORKS = """
def devices(self):
    import multiprocessing
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    report(f"child ended with {child.exitcode}")
    return []
"""


@pytest.mark.full
async def test_a_signal_to_a_process_that_the_driver_forked_does_not_stop_the_plugin(tmp_path: Path) -> None:
    p = PluginProcess(tmp_path, FORKS)
    process = await p.start("child ended with -15")
    await p.wait_logged("serving the kubelet")
    assert "stopping" not in p.log
    process.terminate()
    assert await p.exit_code() == 0


async def test_a_start_that_takes_too_long_is_one_line_of_error(tmp_path: Path) -> None:
    p = PluginProcess(tmp_path, BLOCKS_IN_START, START_TIMEOUT="500ms")
    await p.start("in start")
    assert await p.exit_code() == 2
    assert "start() of Slow has not returned within 0.5s" in p.log
    assert "Traceback" not in p.log
    assert p.socket_files() == []


async def test_the_sockets_are_served_while_devices_hangs_and_a_signal_ends_the_plugin(tmp_path: Path) -> None:
    p = PluginProcess(
        tmp_path, "def devices(self):\n    report('looking')\n    time.sleep(600)", DISCOVERY_TIMEOUT="300ms"
    )
    process = await p.start("looking")
    await p.wait_logged("serving the kubelet")
    await p.wait_logged("the driver's devices() has not returned for")
    process.terminate()
    assert await p.exit_code() == 0
    assert [n for n in p.socket_files() if n.endswith(".sock")] == []


@pytest.mark.parametrize(
    "driver",
    [
        "sys.exit(0)",
        "def __init__(self):\n    raise SystemExit(0)",
        "async def start(self):\n    raise SystemExit(0)",
    ],
    ids=["import", "constructor", "start"],
)
async def test_a_driver_that_exits_at_its_start_is_a_failure(tmp_path: Path, driver: str) -> None:
    p = PluginProcess(tmp_path, f"import sys\n{driver}")
    await p.start("")
    assert await p.exit_code() == 2
    assert "raised SystemExit: 0" in p.log


LOGS_CONTINUOUSLY = """
async def start(self):
    async def spam():
        while True:
            self.log.warning("y")
            await asyncio.sleep(0)
    self.spam = asyncio.create_task(spam())
"""


@pytest.mark.full
async def test_a_signal_ends_a_plugin_whose_log_is_not_read(tmp_path: Path) -> None:
    p = PluginProcess(tmp_path, LOGS_CONTINUOUSLY)
    read_end, write_end = os.pipe()
    try:
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PAGE)
        with contextlib.closing(os.fdopen(write_end, "wb", 0)) as err:
            process = await p.start_with(err.fileno())
        async with asyncio.timeout(60):
            while unread_bytes(read_end) < PAGE - 250:  # then the process blocks in one of its next log lines
                await asyncio.sleep(0.05)
        process.terminate()
        assert await p.exit_code() == 3
    finally:
        os.close(read_end)


@pytest.mark.full
async def test_a_signal_ends_a_plugin_whose_log_has_no_reader(tmp_path: Path) -> None:
    p = PluginProcess(tmp_path, LOGS_CONTINUOUSLY.replace("start(self):", "start(self):\n    report('in start')"))
    read_end, write_end = os.pipe()
    os.close(read_end)
    with contextlib.closing(os.fdopen(write_end, "wb", 0)) as err:
        process = await p.start_with(err.fileno())
    assert process.stdout
    assert (await process.stdout.readline()).strip() == b"in start"
    process.terminate()
    assert await p.exit_code() == 0


WATCHES_SIGNALS = """
async def start(self):
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: report("reloading"))
    report("in start")
"""


@pytest.mark.full
async def test_a_signal_handler_of_the_driver_does_not_replace_the_handlers_of_the_plugin(tmp_path: Path) -> None:
    p = PluginProcess(tmp_path, WATCHES_SIGNALS)
    process = await p.start("in start")
    process.send_signal(signal.SIGHUP)
    assert process.stdout
    assert (await process.stdout.readline()).strip() == b"reloading"
    signal_child(process, signal.SIGTERM)  # the process may be ending
    assert await p.exit_code() == 0
    assert "SIGTERM again" not in p.log


@pytest.mark.full
async def test_inline_keys_of_a_kubeconfig_are_in_no_file_while_a_plugin_runs(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    p = PluginProcess(tmp_path, "def devices(self):\n    return []", TMPDIR=str(tmp_path / "tmp"))
    ca = authority(tmp_path)
    user = signed(tmp_path, ca, "user")
    inline = [base64.b64encode(f.read_bytes()).decode() for f in (ca.cert, user.cert, user.key)]
    keys = {"client-certificate-data": inline[1], "client-key-data": inline[2]}
    cluster = {"server": "https://127.0.0.1:9", "certificate-authority-data": inline[0]}
    write_config(tmp_path, config_of(keys, **cluster), "kubeconfig")
    process = await p.start("")
    await p.wait_logged("cannot be reached")  # the keys have been loaded, for which they were in a file for a moment
    assert list((tmp_path / "tmp").iterdir()) == []
    process.terminate()
    assert await p.exit_code() == 0


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A short path, because socket names contain the pod's UID."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


async def test_a_killed_instance_with_a_pod_uid_leaves_no_files_after_the_next_start(short_path: Path) -> None:
    p = PluginProcess(short_path, "def devices(self):\n    return []", POD_UID="11111111-1111-4111-8111-111111111111")
    process = await p.start("")
    await p.wait_logged("serving the kubelet")
    plugin_folder = short_path / "plugins" / "slow.example.com"
    process.kill()
    await process.wait()
    assert len(p.socket_files()) == 4  # two sockets and their locks
    p.environment["POD_UID"] = "22222222-2222-4222-8222-222222222222"
    p.err = short_path / "err2"
    process = await p.start("")
    await p.wait_logged("serving the kubelet")
    process.terminate()
    assert await p.exit_code() == 0
    assert p.socket_files() == []
    assert [f.name for f in plugin_folder.iterdir() if "lock" in f.name] == []
