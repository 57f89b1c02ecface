"""What was started ends with the one who started it, killed wherever that was."""

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

from dra_kubeletplugin.localcluster.child_reaper import Guard
from tests.cli.test_dev_containers import CLASS, TEMPLATE, pod
from tests.helpers.dev_process import GPU, ROOT
from tests.helpers.waiting import block_until

pytestmark = pytest.mark.crash
GUARDED = """
    import asyncio, os, sys
    from dra_kubeletplugin.localcluster.child_reaper import Guard

    async def main(patience: float, script: str) -> None:
        guard = await Guard.start(patience)
        await asyncio.create_subprocess_exec("sh", "-c", script, env={**os.environ, **guard.mark})
        await asyncio.Event().wait()

    asyncio.run(main(float(sys.argv[1]), sys.argv[2]))
"""
LATE = """
    import asyncio, json, sys
    from pathlib import Path
    from dra_kubeletplugin.localcluster.runtime.base_spec import PATH, ContainerContext, OciProcess, base_spec
    from dra_kubeletplugin.localcluster.runtime.images import Images
    from dra_kubeletplugin.localcluster.runtime.runc import Runc

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
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever pytest was started under
from dra_kubeletplugin.cli import main
sys.exit(main(["dev", *sys.argv[1:]]))
"""
TALKATIVE = """
import os, threading
from dra_kubeletplugin import Device, Driver

SAID = os.open(os.environ["SAID"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Talkative(Driver):
    name = "talkative.example.com"

    def start(self):
        self.over = threading.Event()
        self.talking = threading.Thread(target=self.talk, daemon=True)
        self.talking.start()

    def talk(self):
        while not self.over.wait(0.001):
            print("x" * 1000, flush=True)
            os.write(SAID, b".")

    def stop(self):
        self.over.set()
        self.talking.join()
        os.write(SAID, b"stopped")

    def devices(self):
        return [Device("a")]

    def prepare(self, claim):
        return []
"""
SLOW = """#!/bin/sh
echo "$@" >> "$HELD"
case " $* " in *" run "*) while [ ! -e "$HELD.go" ]; do sleep 0.01; done;; esac
PATH=${PATH#*:} exec runc "$@"
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a name that leaves room for sockets."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
        yield Path(folder)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def named(word: str) -> list[str]:
    """The command lines with that word of what runs."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_text().replace("\0", " "))
    return [line for line in lines if word in line]


@contextlib.contextmanager
def started(script: str, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments], stdout=subprocess.PIPE, text=True,
        env=environment(**env),
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def swept(state: Path, events: str, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.localcluster.dev.killed_dev", str(state), events, GPU, *arguments],
        cwd=ROOT, env=environment(KILLED_DEV=uuid.uuid4().hex), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    *found, half_made = map(json.loads, done.stdout.splitlines())
    assert half_made == []
    assert [f["code"] for f in found] == [-signal.SIGKILL] * (len(found) - 1) + [0], done.stderr
    return found


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_cluster_that_is_killed_anywhere_leaves_nothing_and_comes_up_again_on_its_state(short: Path) -> None:
    found = swept(short / "s", "subprocess.Popen,os.rename,socket.bind", "--nodes", "2")
    assert [f for f in found if f["left"]] == []
    assert sum("subprocess.Popen" in f["at"] for f in found) >= 3


@pytest.mark.runc
@pytest.mark.timeout(400)
def test_containers_of_a_cluster_that_is_killed_anywhere_are_gone(short: Path) -> None:
    wanted = [CLASS, TEMPLATE, pod("server", "trap 'exit 0' TERM; while :; do sleep 0.05; done", restart="Always")]
    (short / "a.json").write_text("\n---\n".join(map(json.dumps, wanted)))
    found = swept(short / "s", "subprocess.Popen", "--containers", "--apply", str(short / "a.json"))
    assert [f for f in found if f["left"]] == []
    assert any("unshare" in f["at"] for f in found)


@pytest.mark.runc
def test_a_container_that_comes_up_after_its_cluster_was_killed_is_ended(short: Path) -> None:
    slow, held, cgroup = short / "bin/runc", short / "held", f"/dra-dev-{uuid.uuid4()}"
    slow.parent.mkdir()
    slow.write_text(SLOW)
    slow.chmod(0o755)
    with started(LATE, str(short), cgroup, HELD=str(held), PATH=f"{slow.parent}:{os.environ['PATH']}") as cluster:
        block_until(lambda: (held.exists() and " run " in held.read_text()) or cluster.poll() is not None)
        before = held.read_text().count(" list ")
        cluster.kill()
        cluster.wait()
    block_until(lambda: held.read_text().count(" list ") > before)  # what there is has been looked for
    Path(f"{held}.go").touch()
    block_until(lambda: not named(str(short)))
    name = f"*{cgroup.removeprefix('/')}*"
    assert [p for pattern in (name, f"*/{name}") for p in Path("/sys/fs/cgroup").glob(pattern)] == []
    assert str(short) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize(
    "wrong", [["--host", "nowhere"], ["--api-address", "192.0.2.77:80"]], ids=["before the cluster", "within"]
)
def test_a_cluster_that_does_not_come_up_leaves_no_folder(tmp_path: Path, wrong: list[str]) -> None:
    """192.0.2.0/24 is nobody's (RFC 5737)."""
    script = (
        "import pathlib, sys; from dra_kubeletplugin.localcluster import cluster; from dra_kubeletplugin.cli import main\n"
        f"cluster.state_root = lambda: pathlib.Path({str(tmp_path)!r})\n"
        "sys.exit(main(['dev', *sys.argv[1:]]))"
    )
    done = subprocess.run([sys.executable, "-c", script, GPU, *wrong], cwd=ROOT, env=environment(), check=False)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_closed_terminal_ends_the_cluster_in_order(short: Path) -> None:
    ours, theirs = os.openpty()
    dev = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, GPU, "--state-dir", str(short / "s")],
        cwd=ROOT, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        told = b""
        while b"Ctrl-C stops the cluster.\r\n" not in told:
            told += os.read(ours, 65536)
    finally:
        os.close(ours)
        code = dev.wait(90)
    assert code == 0
    assert named(str(short)) == []
    assert not (short / "s/control.sock").exists()


@pytest.mark.full
def test_a_driver_goes_on_and_ends_in_order_where_nobody_reads_its_output_any_more(short: Path) -> None:
    """A driver whose output nobody takes would stand still with its next line."""
    (short / "driver.py").write_text(TALKATIVE)
    said = short / "said"
    ours, theirs = os.pipe()
    argv = [
        sys.executable,
        "-m",
        "dra_kubeletplugin.cli",
        "dev",
        str(short / "driver.py"),
        "--state-dir",
        str(short / "s"),
    ]
    dev = subprocess.Popen(
        argv, cwd=ROOT, env=environment(SAID=str(said)), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        told = b""
        while b"Ctrl-C stops the cluster.\n" not in told:
            told += os.read(ours, 65536)
        os.close(ours)
        before = said.stat().st_size
        block_until(lambda: said.stat().st_size > before + 200)  # lines of 1,000 bytes: more than pipes hold
    finally:
        dev.send_signal(signal.SIGINT)
        code = dev.wait(90)
    assert code == 0
    assert said.read_bytes().endswith(b"stopped")


@pytest.mark.parametrize(
    "script",
    [
        ": {}; trap '' TERM HUP INT; echo up; while :; do sleep 0.02; done",
        "setsid sh -c 'echo up; while :; do sleep 0.02; done' {} & exit 0",
    ],
    ids=["that is deaf", "whose parent has ended"],
)
def test_a_process_goes_with_its_guard(script: str) -> None:
    word = uuid.uuid4().hex
    with started(GUARDED, "0.3", script.format(word)) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        process.kill()
        process.wait()
        block_until(lambda: not named(word))


async def test_a_guard_that_is_closed_ends_what_is_left_at_once() -> None:
    guard = await Guard.start(1000)
    left = await asyncio.create_subprocess_exec("sleep", "1000", env={**os.environ, **guard.mark})
    await guard.close()
    assert await left.wait() == -signal.SIGKILL
    assert not guard.alive
