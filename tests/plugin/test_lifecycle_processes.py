"""A plugin's process starts and stops in bounded time, whatever its driver does, and says what it waits for."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
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

from tests.helpers.certificates import authority, signed
from tests.helpers.crash.harness import ROOT
from tests.helpers.signals import inherit_signals

pytestmark = pytest.mark.crash

STARTED: list[asyncio.subprocess.Process] = []
DRIVER = """
import os, signal, time, threading, asyncio
from dra_kubeletplugin import Device, Driver

def say(text):
    os.write(1, (text + "\\n").encode())

class Whole(Driver):
    def devices(self):
        return []

    def prepare(self, claim):
        return [d.prepared() for d in claim.devices]

class Slow(Whole):
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


class Process:
    """``dra run`` with a driver of a few lines, on folders of its own and without an API server."""

    def __init__(self, tmp_path: Path, driver: str, **environment: str) -> None:
        self.root = tmp_path
        for folder in ("plugins", "plugins_registry"):
            (tmp_path / folder).mkdir()
        (tmp_path / "driver.py").write_text(DRIVER + textwrap.indent(textwrap.dedent(driver), "    "))
        (tmp_path / "kubeconfig").write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
            "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\nusers: [{name: u, user: {}}]\n"
        )
        self.environment = {k: v for k, v in os.environ.items() if k not in {"KUBECONFIG", "POD_UID"}} | {
            "NODE_NAME": "node",
            "KUBECONFIG": str(tmp_path / "kubeconfig"),
            "KUBELET_ROOT": str(tmp_path),
            "CDI_ROOT": str(tmp_path / "cdi"),
            "SHUTDOWN_GRACE_PERIOD": "500ms",
            "PYTHONPATH": str(ROOT / "src"),
            **environment,
        }
        self.err = tmp_path / "err"

    async def start(
        self, says: str, signals: Iterable[int] = (signal.SIGINT, signal.SIGHUP)
    ) -> asyncio.subprocess.Process:
        """Waits until the driver, or the log, says a word. ``signals``: those that are as from a terminal, whatever started the tests."""
        with self.err.open("ab") as err, inherit_signals(signals):
            await self.start_with(err.fileno())
        assert self.process.stdout
        if says:  # a word of the driver's
            async with asyncio.timeout(60):
                while (line := await self.process.stdout.readline()).strip() != says.encode():
                    assert line, self.log
        return self.process

    async def start_with(self, err: int) -> asyncio.subprocess.Process:
        """Does not wait; ``err`` is where standard error goes."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dra_kubeletplugin.cli", "run", f"{self.root / 'driver.py'}:Slow",
            env=self.environment, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=err,
        )  # fmt: skip
        STARTED.append(self.process)
        return self.process

    @property
    def log(self) -> str:
        return self.err.read_text()

    async def logged(self, text: str) -> None:
        async with asyncio.timeout(60):
            while text not in self.log:
                await asyncio.sleep(0.05)

    async def ends(self) -> int:
        async with asyncio.timeout(45):  # less than any of the grace periods and waits of these drivers
            return await self.process.wait()

    def left(self) -> list[str]:
        return sorted(p.name for p in self.root.rglob("*") if p.is_socket() or p.name.endswith(".sock.lock"))


PAGE = 4096  # bytes: the smallest pipe


def unread(pipe: int) -> int:
    """Bytes."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


ASKING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
SERVES = """
def devices(self):
    return []
def stop(self):
    say('in stop')
"""
HANGS_IN_START = "async def start(self):\n    say('in start')\n    await asyncio.sleep(600)"
BLOCKS_IN_START = "def start(self):\n    say('in start')\n    time.sleep(600)"
HOLDS_THE_LOOP = "async def start(self):\n    say('in start')\n    time.sleep(600)"


@pytest.mark.parametrize("number", ASKING)
@pytest.mark.parametrize("driver", [HANGS_IN_START, BLOCKS_IN_START], ids=["on the loop", "in a thread"])
async def test_a_signal_during_start_ends_it_with_0_and_leaves_nothing(
    tmp_path: Path, driver: str, number: int
) -> None:
    p = Process(tmp_path, driver)
    (await p.start("in start")).send_signal(number)
    assert await p.ends() == 0
    assert p.left() == []
    assert "stopped" in p.log


async def test_a_signal_while_the_driver_s_file_is_imported_ends_the_process(tmp_path: Path) -> None:
    p = Process(tmp_path, "say('importing')\ntime.sleep(600)")
    (await p.start("importing")).terminate()
    assert await p.ends() == 0


@pytest.mark.full
async def test_a_start_that_holds_the_event_loop_is_cut_after_a_signal_with_a_line_that_names_it(
    tmp_path: Path,
) -> None:
    p = Process(tmp_path, HOLDS_THE_LOOP)
    (await p.start("in start")).terminate()
    assert await p.ends() == 3
    assert "the stop has taken 5.5 s, so the process ends now" in p.log
    assert "Slow.start" in p.log


@pytest.mark.parametrize("number", ASKING)
async def test_a_signal_while_it_serves_stops_it_in_order_with_0_and_leaves_nothing(
    tmp_path: Path, number: int
) -> None:
    """SIGHUP too, which the end of a terminal sends."""
    p = Process(tmp_path, SERVES)
    process = await p.start("")
    await p.logged("serving the kubelet")
    process.send_signal(number)
    assert process.stdout
    assert (await process.stdout.readline()).strip() == b"in stop"
    assert await p.ends() == 0
    assert p.left() == []
    assert f"{signal.Signals(number).name}: stopping" in p.log


async def test_each_line_in_json_names_the_driver_and_the_node(tmp_path: Path) -> None:
    p = Process(tmp_path, SERVES, LOG_FORMAT="json")
    process = await p.start("")
    await p.logged("serving the kubelet")
    process.terminate()
    assert await p.ends() == 0
    lines = [json.loads(line) for line in p.log.splitlines()]
    assert {"serving the kubelet at", "stopping", "stopped"} <= {" ".join(line["msg"].split()[:4]) for line in lines}
    assert {(line["driver"], line["node"]) for line in lines} == {("slow.example.com", "node")}


@pytest.mark.full
async def test_what_nohup_started_goes_on_without_its_terminal(tmp_path: Path) -> None:
    p = Process(tmp_path, SERVES)
    with inherit_signals([signal.SIGHUP], signal.SIG_IGN):
        process = await p.start("", [])
    await p.logged("serving the kubelet")
    process.send_signal(signal.SIGHUP)
    process.terminate()
    assert await p.ends() == 0
    assert "SIGTERM: stopping" in p.log
    assert "SIGHUP" not in p.log


HANGS_IN_STOP = """
def devices(self):
    say('serving')
    return []
def stop(self):
    say('in stop')
    signal.pause if threading.current_thread() is threading.main_thread() else time.sleep(600)
"""


async def test_a_stop_of_the_driver_that_hangs_is_bounded(tmp_path: Path) -> None:
    p = Process(tmp_path, HANGS_IN_STOP)
    process = await p.start("serving")
    await p.logged("serving the kubelet")
    process.terminate()
    assert await p.ends() in {0, 3}
    assert "stop" in p.log


HOLDS_IN_STOP = """
def devices(self):
    return []
async def stop(self):
    say('in stop')
    time.sleep(600)
"""


@pytest.mark.full
async def test_a_stop_that_holds_the_event_loop_is_cut_with_a_line_that_names_it(tmp_path: Path) -> None:
    p = Process(tmp_path, HOLDS_IN_STOP)
    process = await p.start("")
    await p.logged("serving the kubelet")
    process.terminate()
    assert await p.ends() == 3
    assert "Slow.stop" in p.log


async def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    p = Process(tmp_path, HOLDS_IN_STOP, SHUTDOWN_GRACE_PERIOD="60s")
    process = await p.start("")
    await p.logged("serving the kubelet")
    process.terminate()
    assert process.stdout
    assert (await process.stdout.readline()).strip() == b"in stop"
    process.terminate()
    assert await p.ends() == 3
    assert "SIGTERM again: the process ends at once" in p.log


FORKS = """
def devices(self):
    import multiprocessing
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    say(f"child ended with {child.exitcode}")
    return []
"""


@pytest.mark.full
async def test_a_signal_to_a_process_that_the_driver_forked_is_not_one_to_the_plugin(tmp_path: Path) -> None:
    p = Process(tmp_path, FORKS)
    process = await p.start("child ended with -15")
    await p.logged("serving the kubelet")
    assert "stopping" not in p.log
    process.terminate()
    assert await p.ends() == 0


async def test_a_start_that_takes_too_long_is_a_failure_in_one_sentence(tmp_path: Path) -> None:
    p = Process(tmp_path, BLOCKS_IN_START, START_TIMEOUT="500ms")
    await p.start("in start")
    assert await p.ends() == 2
    assert "start() of Slow has not returned within 0.5s" in p.log
    assert "Traceback" not in p.log
    assert p.left() == []


async def test_the_sockets_come_up_while_devices_hangs_and_a_signal_ends_the_plugin(tmp_path: Path) -> None:
    p = Process(tmp_path, "def devices(self):\n    say('looking')\n    time.sleep(600)", DISCOVERY_TIMEOUT="300ms")
    process = await p.start("looking")
    await p.logged("serving the kubelet")
    await p.logged("the driver's devices() has not returned for")
    process.terminate()
    assert await p.ends() == 0
    assert [n for n in p.left() if n.endswith(".sock")] == []


async def test_a_driver_that_calls_sys_exit_does_not_end_the_plugin_with_0(tmp_path: Path) -> None:
    p = Process(tmp_path, "async def start(self):\n    raise SystemExit(0)")
    await p.start("")
    assert await p.ends() == 2
    assert "SystemExit" in p.log


@pytest.mark.parametrize(
    "driver", ["sys.exit(0)", "def __init__(self):\n    raise SystemExit(0)"], ids=["import", "made"]
)
async def test_a_driver_that_exits_before_it_is_started_is_a_failure(tmp_path: Path, driver: str) -> None:
    p = Process(tmp_path, f"import sys\n{driver}")
    await p.start("")
    assert await p.ends() == 2
    assert "raised SystemExit: 0" in p.log


SAYS_ALL_THE_TIME = """
async def start(self):
    async def spam():
        while True:
            self.log.warning("y")
            await asyncio.sleep(0)
    self.spam = asyncio.create_task(spam())
"""


@pytest.mark.full
async def test_a_signal_ends_a_plugin_whose_log_nobody_reads(tmp_path: Path) -> None:
    p = Process(tmp_path, SAYS_ALL_THE_TIME)
    read, written = os.pipe()
    try:
        fcntl.fcntl(written, fcntl.F_SETPIPE_SZ, PAGE)
        with contextlib.closing(os.fdopen(written, "wb", 0)) as err:
            process = await p.start_with(err.fileno())
        async with asyncio.timeout(60):
            while unread(read) < PAGE - 250:  # then the process hangs in one of its next log lines
                await asyncio.sleep(0.05)
        process.terminate()
        assert await p.ends() == 3
    finally:
        os.close(read)


@pytest.mark.full
async def test_a_signal_ends_a_plugin_whose_log_s_reader_is_gone(tmp_path: Path) -> None:
    p = Process(tmp_path, SAYS_ALL_THE_TIME.replace("start(self):", "start(self):\n    say('in start')"))
    read, written = os.pipe()
    os.close(read)
    with contextlib.closing(os.fdopen(written, "wb", 0)) as err:
        process = await p.start_with(err.fileno())
    assert process.stdout
    assert (await process.stdout.readline()).strip() == b"in start"
    process.terminate()
    assert await p.ends() == 0


WATCHES_SIGNALS = """
async def start(self):
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: say("reloading"))
    say("in start")
"""


@pytest.mark.full
async def test_a_driver_whose_event_loop_watches_a_signal_of_its_own_does_not_take_ours(tmp_path: Path) -> None:
    p = Process(tmp_path, WATCHES_SIGNALS)
    process = await p.start("in start")
    process.send_signal(signal.SIGHUP)
    assert process.stdout
    assert (await process.stdout.readline()).strip() == b"reloading"
    process.terminate()
    assert await p.ends() == 0
    assert "SIGTERM again" not in p.log


@pytest.mark.full
async def test_inline_keys_of_a_kubeconfig_are_in_no_file_while_a_plugin_runs(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    p = Process(tmp_path, "def devices(self):\n    return []", TMPDIR=str(tmp_path / "tmp"))
    ca = authority(tmp_path)
    user = signed(tmp_path, ca, "user")
    inline = [base64.b64encode(f.read_bytes()).decode() for f in (ca.cert, user.cert, user.key)]
    (tmp_path / "kubeconfig").write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        f"clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:9', certificate-authority-data: {inline[0]}}}}}]\n"
        f"users: [{{name: u, user: {{client-certificate-data: {inline[1]}, client-key-data: {inline[2]}}}}}]\n"
    )
    process = await p.start("")
    await p.logged("serving the kubelet")
    assert list((tmp_path / "tmp").iterdir()) == []
    process.terminate()
    assert await p.ends() == 0


@pytest.fixture
def short_path() -> Iterator[Path]:
    """For names of sockets with a pod's UID."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


async def test_a_killed_instance_with_a_pod_uid_leaves_nothing_behind_the_next(short_path: Path) -> None:
    p = Process(short_path, "def devices(self):\n    return []", POD_UID="11111111-1111-4111-8111-111111111111")
    process = await p.start("")
    await p.logged("serving the kubelet")
    own = short_path / "plugins" / "slow.example.com"
    (own / ".x.sock.lock.1-00000000").touch()  # of one that was killed between two lines
    process.kill()
    await process.wait()
    assert len(p.left()) == 4  # two sockets and their locks
    p.environment["POD_UID"] = "22222222-2222-4222-8222-222222222222"
    p.err = short_path / "err2"
    process = await p.start("")
    await p.logged("serving the kubelet")
    process.terminate()
    assert await p.ends() == 0
    assert p.left() == []
    assert sorted(f.name for f in own.glob("*lock*")) == []


@pytest.mark.full
async def test_of_two_processes_that_start_together_without_a_pod_uid_exactly_one_serves(tmp_path: Path) -> None:
    p = Process(tmp_path, "def devices(self):\n    return []")
    q = Process.__new__(Process)
    q.root, q.environment, q.err = p.root, p.environment, tmp_path / "err2"
    await asyncio.gather(p.start(""), q.start(""))

    def counted() -> tuple[int, int]:
        logs = [p.log, q.log]
        return sum("serving the kubelet" in t for t in logs), sum("is served by another process" in t for t in logs)

    async with asyncio.timeout(60):
        while sum(counted()) < 2:
            await asyncio.sleep(0.05)
    assert counted() == (1, 1)
    loser, winner = (p, q) if "serving the kubelet" in q.log else (q, p)
    assert await loser.ends() == 2
    winner.process.terminate()
    assert await winner.ends() == 0


@pytest.mark.full
async def test_cleanup_takes_no_name_that_is_a_path_and_nothing_of_a_plugin_that_lives_without_sockets(
    tmp_path: Path,
) -> None:
    p = Process(tmp_path, BLOCKS_IN_START)
    precious = tmp_path / "precious"
    precious.mkdir()

    async def cleanup(name: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dra_kubeletplugin.cli", "cleanup", "--force",
            env={**p.environment, "DRIVER_NAME": name}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, err = await process.communicate()
        return process.returncode, err.decode()

    code, told = await cleanup("../precious")
    assert (code, precious.exists()) == (2, True)
    assert "is not a DNS subdomain" in told
    await p.start("in start")
    code, told = await cleanup("slow.example.com")
    assert code == 2
    assert "is in use by a running plugin" in told
    assert list((tmp_path / "plugins" / "slow.example.com" / "processes").glob("*.lock"))
