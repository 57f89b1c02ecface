"""A kubelet restarts many times: the plugin registers each time, and keeps no descriptors, threads, files or memory of
earlier registrations.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin.claims.instance_lock import InstanceLock
from tests.helpers.drivers import HealthReportingDriver
from tests.helpers.waiting import wait_until

RESTARTS = 40
MAX_KEPT = 8  # connections
WARM = 10
GROWTH = 8192  # KiB; a channel with its buffers would cost more than this in 30 restarts


class HealthStreamDriver(HealthReportingDriver):
    """A driver with a health stream, which every kubelet opens again."""


def used_resources(pid: int) -> tuple[int, int, int]:
    """Returns open descriptors, threads, and resident KiB of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return descriptors, int(status["Threads"]), int(status["VmRSS"].split()[0])


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*"))


@pytest.mark.full
async def test_forty_restarts_leave_no_descriptors_threads_memory_or_files() -> None:
    async with node_with(HealthStreamDriver, process=True) as node:
        await node.run_pod("stays")
        (lock,) = (node.settings.plugin_dir / "processes").glob("*.lock")
        pid = InstanceLock.pid(lock.stem)
        files = names(node.settings.plugin_dir)
        counts = []
        for _ in range(RESTARTS):
            await node.kubelet.restart()
            await wait_until(lambda: node.kubelet.plugins.newest(HealthStreamDriver.name) is not None)
            await wait_until(lambda: bool(node.cluster.slices()))
            counts.append(used_resources(pid))
        descriptors, threads, memory = zip(*counts[WARM:], strict=True)
        # A leak adds one descriptor per restart. The number of kept connections to the API server (at most 8) varies
        # with the machine's load.
        assert min(descriptors[-10:]) <= max(descriptors[:10]) + MAX_KEPT, descriptors
        assert min(threads[-10:]) <= max(threads[:10]) + MAX_KEPT, threads
        assert min(memory[-10:]) <= max(memory[:10]) + GROWTH, memory
        assert names(node.settings.plugin_dir) == files
        await node.run_pod("works")
        print(counts[0], counts[WARM], counts[-1])
