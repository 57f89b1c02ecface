"""Processes that `dra dev` started end with it, wherever it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.localcluster.child_reaper import Guard
from dra_devkit.localcluster.runtime.images import make_busybox
from tests.helpers.command_lines import command_lines_with
from tests.helpers.dev_process import GPU, ROOT
from tests.helpers.gpu_objects import CLASS, TEMPLATE, pod
from tests.helpers.waiting import block_until

pytestmark = pytest.mark.crash
GUARDED = """
    import asyncio, os, sys
    from dra_devkit.localcluster.child_reaper import Guard

    async def main(timeout: float, script: str) -> None:
        guard = await Guard.start(timeout)
        await asyncio.create_subprocess_exec("sh", "-c", script, env={**os.environ, **guard.mark})
        await asyncio.Event().wait()

    asyncio.run(main(float(sys.argv[1]), sys.argv[2]))
"""
LATE_CONTAINER = """
    import asyncio, json, sys
    from pathlib import Path
    from dra_devkit.localcluster.runtime.base_spec import PATH, ContainerContext, OciProcess, base_spec
    from dra_devkit.localcluster.runtime.images import Images
    from dra_devkit.localcluster.runtime.runc import Runc

    async def main(root: Path, cgroup: str) -> None:
        bundle = root / "bundle"
        for name in ("rootfs", "scratch"):
            (bundle / name).mkdir(parents=True)
        (bundle / "image").symlink_to(Images({}, root / "images").find("busybox").root)
        process = OciProcess(["sleep", "1000"], [PATH], "/", 0, 0)
        (bundle / "config.json").write_text(json.dumps(base_spec(process, ContainerContext([], cgroup=cgroup))))
        none = asyncio.subprocess.DEVNULL
        runc = await Runc.find(root / "runc")
        await runc.run(runc.name(), bundle, (none, none, none))

    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""
TERMINAL = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # pytest may run under nohup
from dra_kubeletplugin.cli import main
sys.exit(main(["dev", *sys.argv[1:]]))
"""
TALKATIVE = """
import os, threading
from dra_kubeletplugin import Device, Driver

OUTPUT = os.open(os.environ["OUTPUT"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Talkative(Driver):
    name = "talkative.example.com"

    def start(self):
        self.over = threading.Event()
        self.talking = threading.Thread(target=self.talk, daemon=True)
        self.talking.start()

    def talk(self):
        while not self.over.wait(0.001):
            print("x" * 1000, flush=True)
            os.write(OUTPUT, b".")

    def stop(self):
        self.over.set()
        self.talking.join()
        os.write(OUTPUT, b"stopped")

    def devices(self):
        return [Device("a")]

    def prepare(self, claim):
        return []
"""
SLOW_RUNC = """#!/bin/sh
echo "$@" >> "$HELD"
case " $* " in *" run "*) while [ ! -e "$HELD.go" ]; do sleep 0.01; done;; esac
PATH=${PATH#*:} exec runc "$@"
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path, because the length of socket paths is limited."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
        yield Path(folder)


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextlib.contextmanager
def start_script(script: str, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments], stdout=subprocess.PIPE, text=True,
        env=environment(**env),
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def kill_at_every_step(state: Path, events: str, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "packages.devkit.tests.localcluster.dev.killed_dev", str(state), events, GPU, *arguments],
        cwd=ROOT, env=environment(KILLED_DEV=uuid.uuid4().hex), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    *steps, temporary_files = map(json.loads, done.stdout.splitlines())
    assert temporary_files == []
    assert [f["code"] for f in steps] == [-signal.SIGKILL] * (len(steps) - 1) + [0], done.stderr
    return steps


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_cluster_killed_at_any_step_leaves_nothing_and_restarts_from_its_state(short_folder: Path) -> None:
    steps = kill_at_every_step(short_folder / "s", "subprocess.Popen,os.rename,socket.bind", "--nodes", "2")
    assert [f for f in steps if f["leftovers"]] == []
    assert sum("subprocess.Popen" in f["at"] for f in steps) >= 3


@pytest.mark.runc
@pytest.mark.timeout(400)
def test_containers_end_after_their_cluster_is_killed_at_any_step(short_folder: Path) -> None:
    manifests = [CLASS, TEMPLATE, pod("server", "trap 'exit 0' TERM; while :; do sleep 0.05; done", restart="Always")]
    (short_folder / "a.json").write_text("\n---\n".join(map(json.dumps, manifests)))
    image = make_busybox(
        short_folder / "image"
    )  # made here, because making it starts a process in the first start only
    steps = kill_at_every_step(
        short_folder / "s", "subprocess.Popen", "--containers", "--image", f"*={image}",
        "--apply", str(short_folder / "a.json"),
    )  # fmt: skip
    assert [f for f in steps if f["leftovers"]] == []
    assert any("unshare" in f["at"] for f in steps)


@pytest.mark.runc
def test_a_container_that_starts_after_its_cluster_was_killed_is_ended(short_folder: Path) -> None:
    slow_runc, call_log, cgroup = short_folder / "bin/runc", short_folder / "held", f"/dra-dev-{uuid.uuid4()}"
    slow_runc.parent.mkdir()
    slow_runc.write_text(SLOW_RUNC)
    slow_runc.chmod(0o755)
    with start_script(
        LATE_CONTAINER, str(short_folder), cgroup, HELD=str(call_log), PATH=f"{slow_runc.parent}:{os.environ['PATH']}"
    ) as cluster:
        block_until(lambda: (call_log.exists() and " run " in call_log.read_text()) or cluster.poll() is not None)
        before = call_log.read_text().count(" list ")
        cluster.kill()
        cluster.wait()
    block_until(lambda: call_log.read_text().count(" list ") > before)  # the reaper has listed the containers
    Path(f"{call_log}.go").touch()
    block_until(lambda: not command_lines_with(str(short_folder)))
    name = f"*{cgroup.removeprefix('/')}*"
    assert [p for pattern in (name, f"*/{name}") for p in Path("/sys/fs/cgroup").glob(pattern)] == []
    assert str(short_folder) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize(
    "invalid_options", [["--host", "nowhere"], ["--api-address", "192.0.2.77:80"]], ids=["before the cluster", "within"]
)
def test_a_cluster_that_fails_to_start_leaves_no_folder(tmp_path: Path, invalid_options: list[str]) -> None:
    """No host uses an address in 192.0.2.0/24 (RFC 5737)."""
    script = (
        "import pathlib, sys; from dra_devkit.localcluster import cluster; from dra_kubeletplugin.cli import main\n"
        f"cluster.state_root = lambda: pathlib.Path({str(tmp_path)!r})\n"
        "sys.exit(main(['dev', *sys.argv[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, GPU, *invalid_options], cwd=ROOT, env=environment(), check=False
    )
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_closed_terminal_stops_the_cluster_cleanly(short_folder: Path) -> None:
    reader, writer = os.openpty()
    dev = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, GPU, "--state-dir", str(short_folder / "s")],
        cwd=ROOT, env=environment(), stdin=writer, stdout=writer, stderr=writer, start_new_session=True,
    )  # fmt: skip
    os.close(writer)
    try:
        output = b""
        while b"Ctrl-C stops the cluster.\r\n" not in output:
            output += os.read(reader, 65536)
    finally:
        os.close(reader)
        code = dev.wait(90)
    assert code == 0
    assert command_lines_with(str(short_folder)) == []
    assert not (short_folder / "s/control.sock").exists()


@pytest.mark.full
def test_a_driver_runs_and_stops_cleanly_when_its_output_is_not_read(short_folder: Path) -> None:
    """Without a reader, the next line of output would block the driver."""
    (short_folder / "driver.py").write_text(TALKATIVE)
    output_file = short_folder / "said"
    reader, writer = os.pipe()
    argv = [
        sys.executable,
        "-m",
        "dra_kubeletplugin.cli",
        "dev",
        str(short_folder / "driver.py"),
        "--state-dir",
        str(short_folder / "s"),
    ]
    dev = subprocess.Popen(
        argv, cwd=ROOT, env=environment(OUTPUT=str(output_file)), stdin=subprocess.DEVNULL, stdout=writer, stderr=writer
    )
    os.close(writer)
    try:
        output = b""
        while b"Ctrl-C stops the cluster.\n" not in output:
            output += os.read(reader, 65536)
        os.close(reader)
        before = output_file.stat().st_size
        block_until(
            lambda: output_file.stat().st_size > before + 200
        )  # lines of 1,000 bytes, more than the buffer of a pipe
    finally:
        dev.send_signal(signal.SIGINT)
        code = dev.wait(90)
    assert code == 0
    assert output_file.read_bytes().endswith(b"stopped")


@pytest.mark.parametrize(
    "script",
    [
        ": {}; trap '' TERM HUP INT; echo up; while :; do sleep 0.02; done",
        "setsid sh -c 'echo up; while :; do sleep 0.02; done' {} & exit 0",
    ],
    ids=["ignores signals", "parent has ended"],
)
def test_a_process_ends_with_its_guard(script: str) -> None:
    word = uuid.uuid4().hex
    with start_script(GUARDED, "0.3", script.format(word)) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        process.kill()
        process.wait()
        block_until(lambda: not command_lines_with(word))


async def test_closing_a_guard_kills_the_remaining_processes_immediately() -> None:
    guard = await Guard.start(1000)
    remaining = await asyncio.create_subprocess_exec("sleep", "1000", env={**os.environ, **guard.mark})
    await guard.close()
    assert await remaining.wait() == -signal.SIGKILL
    assert not guard.alive
