"""Tests how commands end: at a signal during their work, without a traceback and without files left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import dra_kubeletplugin
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.exit_handling import ended
from tests.helpers.kubeconfigs import config_of, write_config
from tests.helpers.signals import inherit_signals

HANGS = """
import time
from pathlib import Path
from dra_kubeletplugin import Driver

class Hangs(Driver):
    name = "hangs.example.com"

    def devices(self):
        Path("works").touch()
        time.sleep(1000)

    def prepare(self, claim):
        return []
"""
CHECKS = """
import time
from pathlib import Path
from dra_kubeletplugin import Config, Driver

def hang():
    Path("works").touch()
    time.sleep(1000)

class Old(Config):
    API_VERSION = "checks.example.com/v1alpha1"
    there: str

class New(Config):
    API_VERSION = "checks.example.com/v1"
    OLDER = [Old]
    there: str

    @classmethod
    def convert_from(cls, older):
        hang()

    def __post_init__(self):
        if self.there == "made":
            hang()

    def check(self):
        hang()

class Checks(Driver):
    name = "checks.example.com"
    config = New

    def devices(self):
        return []

    def prepare(self, claim):
        return []
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec:
  devices:
    requests: [{name: r, exactly: {deviceClassName: c}}]
    config: [{opaque: {driver: checks.example.com, parameters: {apiVersion: checks.example.com/VERSION, there: THERE}}}]
"""
LOADS = "import time\nfrom pathlib import Path\nPath('works').touch()\ntime.sleep(1000)\n"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: x}]}\n"
FILES = {
    "hangs.py": HANGS,
    "loads.py": LOADS,
    "checks.py": CHECKS,
    "pod.yaml": POD,
    "made.yaml": CLAIM.replace("VERSION", "v1").replace("THERE", "made"),
    "checked.yaml": CLAIM.replace("VERSION", "v1").replace("THERE", "checked"),
    "older.yaml": CLAIM.replace("VERSION", "v1alpha1").replace("THERE", "older"),
}
LONG = {
    "inspect": ["inspect", "hangs.py", "--host", "virtual-machine", "--discovery-timeout", "1h"],
    "inspect, importing": ["inspect", "loads.py"],
    "simulate": ["simulate", "-f", "pod.yaml", "--host", "virtual-machine=3", "--driver", "hangs.py"],
    "doctor": ["doctor", "--host", "--driver", "hangs.py", "--discovery-timeout", "1h"],
    "dev, importing": ["dev", "loads.py"],
    "validate, making": ["validate", "made.yaml", "--driver", "checks.py"],
    "validate, checking": ["validate", "checked.yaml", "--driver", "checks.py"],
    "validate, converting": ["validate", "older.yaml", "--driver", "checks.py"],
    "explain": ["explain", "--kubeconfig", "config"],
    "top": ["top", "--once", "--kubeconfig", "config"],
    "gather": ["gather", "out.tar.gz", "--kubeconfig", "config"],
    "cleanup": ["cleanup", "--kubeconfig", "config", "--driver-name", "x.example.com", "--node-name", "n"],
}
SIGNALS = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED, signal.SIGHUP: Exit.HUNG_UP}


@pytest.mark.cases(3)
@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
@pytest.mark.parametrize("words", LONG.values(), ids=LONG)
def test_a_signal_ends_long_work_at_once_and_leaves_no_output_and_no_files(
    tmp_path: Path, words: list[str], number: signal.Signals
) -> None:
    """The server accepts connections and never responds."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(60)
        for name, text in FILES.items():
            (tmp_path / name).write_text(text)
        write_config(tmp_path, config_of({"token": "x"}, server=f"http://127.0.0.1:{server.getsockname()[1]}"))
        argv = [sys.executable, "-m", "dra_kubeletplugin", *words]
        env = {**os.environ, "TMPDIR": str(temporary)}
        process = start_as_from_a_terminal(argv, tmp_path, env)
        with process:
            if "config" in words:
                held.enter_context(server.accept()[0])
            else:
                _wait_for(tmp_path / "works", process)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (SIGNALS[number], "", "")
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "out.tar.gz").exists()


@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
def test_a_signal_does_not_interrupt_a_step_of_the_event_loop(number: signal.Signals) -> None:
    """The signal can arrive in any step, and each step must complete. A partly created transport warns when it is collected."""
    steps = []

    async def work() -> None:
        def step() -> None:
            os.kill(os.getpid(), number)
            steps.append("completed")

        asyncio.get_running_loop().call_soon(step)
        try:
            await asyncio.sleep(60)
        finally:
            steps.append("unwound")

    with inherit_signals(SIGNALS):
        assert ended(lambda: asyncio.run(work()) or 0) == SIGNALS[number]
    assert steps == ["completed", "unwound"]


SCRIPT = """
from dra_kubeletplugin import Driver, run

class Own(Driver):
    DOC
    name = "own.example.com"

    def devices(self):
        return []

    def prepare(self, claim):
        return []

run(Own)
"""


@pytest.mark.cases(2)
@pytest.mark.parametrize("doc", ['""" """', '"""Its own words."""', "pass"])
@pytest.mark.parametrize("redirected", [">/dev/full", ">&-"])
def test_a_driver_program_ends_as_dra_run_does_if_it_cannot_write_output(
    tmp_path: Path, doc: str, redirected: str
) -> None:
    (tmp_path / "own.py").write_text(SCRIPT.replace("DOC", doc))
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" own.py --help {redirected}', sys.executable],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert re.fullmatch(r"dra: the output cannot be written: .+\n", done.stderr)
    shown = subprocess.run(
        [sys.executable, "own.py", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ("Its own words." if "own" in doc else "Own") in shown.stdout


def start_as_from_a_terminal(argv: list[str], cwd: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    with inherit_signals(SIGNALS):
        return subprocess.Popen(argv, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "words",
    [
        ["explain"],
        ["top", "--once"],
        ["simulate", "-f", "pod.yaml"],
        ["doctor", "--no-host", "--kubeconfig", "~/none"],
        ["explain", "--kubeconfig", "~/none"],
        ["cleanup", "--driver-name", "x.example.com", "--node-name", "n", "--kubeconfig", "~/none"],
    ],
    ids=" ".join,
)
def test_an_account_without_a_home_gets_the_usual_kubeconfig_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A container with an arbitrary user id has no home."""
    (tmp_path / "pod.yaml").write_text(POD)
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 123456)
    assert main(words) == (
        Exit.UNKNOWN if words[0] == "doctor" else Exit.USAGE
    )  # doctor reports the missing kubeconfig as a finding
    output = "".join(capsys.readouterr())
    assert "kubeconfig" in output
    assert "RuntimeError" not in output


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        with pytest.raises(subprocess.TimeoutExpired):  # the process is still running
            process.wait(0.05)


def on_terminal(tmp_path: Path, *words: str, **env: str) -> str:
    """Returns what a command writes to standard error if that is a terminal of 30 columns."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "30", **env}
    with subprocess.Popen(
        [sys.executable, "-m", "dra_kubeletplugin", *words], stdout=subprocess.DEVNULL, stderr=child, env=environment
    ):
        os.close(child)
        output = b""
        while True:
            try:
                output += os.read(parent, 4096)
            except OSError:  # the command has closed its end
                break
    os.close(parent)
    return output.decode()


def test_progress_is_shown_on_one_line_of_a_terminal_and_erased_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    driver = str(Path(__file__).parents[3] / "drivers/gpu_example")
    words = [
        "simulate",
        "-f",
        str(tmp_path / "pod.yaml"),
        "--host",
        "virtual-machine=3",
        "--driver",
        driver,
        "-o",
        "json",
    ]
    output = on_terminal(tmp_path, *words)
    assert "devices of node 3 of 3" in output
    assert "\n" not in output
    assert max(len(line) for line in output.split("\r")) < 30, (
        "a longer line would wrap, and a carriage return would not overwrite it"
    )
    assert re.search(r"\r +\r$", output), "the command erases the line at the end"
    assert on_terminal(tmp_path, *words, TERM="dumb") == ""


def test_every_public_name_of_the_package_can_be_imported() -> None:
    assert all(getattr(dra_kubeletplugin, name) is not None for name in dra_kubeletplugin.__all__)
    assert set(dra_kubeletplugin.__all__) <= set(dir(dra_kubeletplugin))
    with pytest.raises(AttributeError, match="has no attribute 'Divice'"):
        dra_kubeletplugin.Divice  # noqa: B018


def test_the_version_is_printed_without_modules_that_only_drivers_need() -> None:
    code = "import sys; from dra_kubeletplugin.cli import main; main(['--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert not loaded & {"msgspec", "asyncio", "ssl", "grpc", "yaml", "dra_kubeletplugin.driver", "importlib.metadata"}
