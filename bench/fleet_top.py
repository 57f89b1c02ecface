"""Measures the live screen of ``dra top`` on a terminal: the time to the first devices, then the CPU time while the cluster changes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

from bench.apiserver import Api
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS

_FIRST = 120.0  # seconds until the measurement fails
_REASONS = 35.0  # seconds in which the reasons of the waiting pods are found
_SIZE = (50, 160)  # lines and columns


@dataclass(frozen=True)
class Screen:
    """``first`` is in seconds of wall time, ``first_cpu`` in seconds; ``share`` is the share of a core afterwards."""

    first: float
    first_cpu: float
    share: float
    memory: float  # resident MiB
    changes: float  # objects a second that changed meanwhile


async def measure(api: Api, seconds: float) -> Screen:
    """Starts ``dra top``. While it is measured, nodes report, a pod starts and ends each second, and so does its claim."""
    started = time.monotonic()
    pid, terminal = pty.fork()
    if not pid:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "dra_kubeletplugin", "top"])  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE, 0, 0))
    os.set_blocking(terminal, False)
    shown = asyncio.Event()
    output = bytearray()

    def read() -> None:
        try:
            output.extend(os.read(terminal, 1 << 16))
        except OSError:
            asyncio.get_running_loop().remove_reader(terminal)
        if b"node-" in output:
            shown.set()
        del output[: -1 << 12]

    asyncio.get_running_loop().add_reader(terminal, read)
    try:
        async with asyncio.timeout(_FIRST):
            await shown.wait()
        first, first_cpu = time.monotonic() - started, _cpu(pid)
        await asyncio.sleep(_REASONS)
        before, began = _cpu(pid), time.monotonic()
        changes = await _change(api, seconds)
        lasted = time.monotonic() - began
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        memory = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
        return Screen(first, first_cpu, (_cpu(pid) - before) / lasted, memory, changes / lasted)
    finally:
        asyncio.get_running_loop().remove_reader(terminal)
        os.close(terminal)  # ends the program
        await asyncio.to_thread(os.waitpid, pid, 0)


async def _change(api: Api, seconds: float) -> int:
    """Changes the cluster as its kubelets and users do. Returns the number of changes."""
    client, until, count = api.client, time.monotonic() + seconds, 0
    held = await client.get(CLAIMS, "train-1", "team-1")
    while (now := time.monotonic()) < until:
        for i in range(17):  # 5,000 kubelets report every 5 minutes
            node = f"node-{(count + i) % 5000:04}"
            condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-01-01T00:{count % 60:02}:00Z"}
            await client.patch(NODES, node, {"status": {"conditions": [condition]}}, sub="status")
        pod = {"metadata": {"name": f"change-{count}"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
        await client.create(PODS, pod, "default")
        await client.delete(PODS, f"change-{count}", "default", grace=0)
        users = [] if held["status"].get("reservedFor") else [{"resource": "pods", "name": "train-1", "uid": "u"}]
        held = await client.update(CLAIMS, {**held, "status": {**held["status"], "reservedFor": users}}, "status")
        count += 20
        await asyncio.sleep(max(0.0, now + 1.0 - time.monotonic()))
    return count


def _cpu(pid: int) -> float:
    """Seconds of CPU time so far, user and system. Source: clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)
