"""A reboot and the end of the local cluster end the processes that drivers started for claims, as a machine would."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from dra_devkit.localcluster.node_reboot import kill_claim_processes
from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, ContainerEdits, PreparedDevice
from dra_kubeletplugin.base.processes.identity import identify, is_alive
from tests.helpers.drivers import Toy
from tests.helpers.waiting import wait_until

PROGRAM = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"


class Daemons(Toy):
    processes = True

    def prepare(self, claim: Claim) -> list[PreparedDevice]:  # type: ignore[override]
        file = self.settings.plugin_dir / f"{claim.uid}.pid"
        file.unlink(missing_ok=True)

        def ready() -> bool:
            return file.exists() and bool(file.read_text())

        claim.start_process("daemon", [sys.executable, "-I", "-S", "-c", PROGRAM, file], ready=ready)
        return [d.prepared(ContainerEdits(env={"PID": file.read_text()})) for d in claim.devices]


async def test_a_reboot_and_the_end_of_the_cluster_end_claim_processes() -> None:
    async with node_with(Daemons, host={"functions": []}) as node:
        first = identify(int(node.env(await node.run_pod())["PID"]))
        assert first and is_alive(first)
        await node.reboot()
        await wait_until(lambda: not is_alive(first), "the end of the process")
        second = identify(int(node.env(await node.run_pod("second"))["PID"]))
        assert second and is_alive(second)
    await wait_until(lambda: not is_alive(second), "the end of the process")


async def test_processes_with_another_output_are_not_killed(tmp_path: Path) -> None:

    (tmp_path / "d/process-logs").mkdir(parents=True)
    (tmp_path / "d/process-logs/u.x.log").touch()
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)", stdout=asyncio.subprocess.DEVNULL)  # fmt: skip
    kill_claim_processes(tmp_path)
    assert Path(f"/proc/{other.pid}").exists() and os.getpid()
    other.kill()
    await other.wait()
