"""Commands such as kubectl against a local cluster, with limits of time for a busy machine."""

from __future__ import annotations

import asyncio
import os
import subprocess

from dra_devkit.localcluster.cluster import LocalCluster

COMMAND_TIMEOUT = 100.0  # seconds for a command on a busy machine
TIMEOUT = "--timeout=90s"  # for a command that waits


async def run(cluster: LocalCluster, *command: str, stdin: str = "") -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(cluster.state)},
        timeout=COMMAND_TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr
