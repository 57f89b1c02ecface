"""A driver forks a process without exec, and the plugin is killed: the child keeps none of the plugin's locks, sockets
and ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, Device, Driver, PreparedClaim, PreparedDevice
from tests.helpers.crash.harness import ROOT
from tests.helpers.ports import free_port

pytestmark = pytest.mark.crash
WAIT = 60  # seconds
FOLDER = Path(os.environ.get("FORKING_DRIVER", "/nonexistent"))


class ForkingDriver(Driver):
    """Marks its device as taken, forks a process that outlives the plugin, and hangs as long as the file ``hang``
    exists.
    """

    name = "forking.example.com"

    def devices(self) -> list[Device]:
        return [Device("f-0")]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        claim.on_undo("release")
        (FOLDER / "taken").open("x").close()
        if (FOLDER / "multiprocessing").exists():
            multiprocessing.get_context("fork").Process(target=_outlive).start()
        elif os.fork() == 0:
            _outlive()
        while (FOLDER / "hang").exists():
            time.sleep(0.02)
        return [d.prepared() for d in claim.devices]

    def undo_release(self, claim: PreparedClaim) -> None:
        (FOLDER / "taken").unlink(missing_ok=True)


def _outlive() -> None:
    (FOLDER / f"child-{os.getpid()}").touch()
    time.sleep(600)
    os._exit(0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FORKING_DRIVER", str(tmp_path))
    yield tmp_path
    for child in tmp_path.glob("child-*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child.name.partition("-")[2]), signal.SIGKILL)


@pytest.mark.full
@pytest.mark.parametrize("fork_method", ["os.fork", "multiprocessing"])
async def test_after_a_kill_the_work_of_the_dead_plugin_is_rolled_back_while_its_forked_child_runs(
    folder: Path, fork_method: str
) -> None:
    (folder / fork_method).touch()
    (folder / "hang").touch()
    async with node_with(ForkingDriver, process=True, http_address=f"127.0.0.1:{free_port()}") as node:
        await node.apply_pod()
        async with asyncio.timeout(WAIT):
            while not list(folder.glob("child-*")):
                await asyncio.sleep(0.02)
        await node.kill()
        (folder / "hang").unlink()
        await node.start()  # the sockets' paths and the port are free
        await node.api.wait_running("pod", timeout=WAIT)
        plugin_dir = node.settings.plugin_dir
        assert len(list((plugin_dir / "processes").glob("*.lock"))) == 1
        await node.delete_pod()
        assert await node.leftovers() == {"files": [], "records": [], "held": []}
        assert not (folder / "taken").exists()
        await node.stop()
        assert not [p.name for p in plugin_dir.iterdir() if p.is_socket() or p.name.endswith(".sock.lock")]


FORKS = 30
CHILDREN = """
import asyncio, os, pathlib, sys, time
from dra_kubeletplugin.plugin.grpc import UnixServer
import grpc.aio

folder = pathlib.Path(sys.argv[1])

async def main():
    server = UnixServer(folder / "x.sock", "1-00000000", [lambda server: None])
    await server.start()
    channel = grpc.aio.insecure_channel(f"unix:{folder}/x.sock")
    call = channel.unary_unary("/service/method")
    forking = asyncio.create_task(asyncio.to_thread(fork))
    while not forking.done():
        try:
            await call(b"")
        except grpc.aio.AioRpcError:
            pass
    print(sorted(set(forking.result())))
    await channel.close()
    await server.stop()

def fork():
    for _ in range(int(sys.argv[2])):
        pid = os.fork()
        if pid == 0:
            time.sleep(0.1)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return codes

codes = []
asyncio.run(main())
"""


@pytest.mark.full
def test_a_forked_child_does_not_crash_in_grpc_while_the_plugin_handles_calls(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", CHILDREN, str(tmp_path), str(FORKS)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=_without_setting())
    assert process.stdout == "[0]\n", process.stderr[-2000:]


def _without_setting() -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    return environment | {"PYTHONPATH": str(ROOT / "src")}
