"""The power fails: the journal ends at its last sync, the CDI folder is empty, and the boot id changes.

State that a device keeps over a power failure (a partition, a binding) must be in the remaining records, at every
point.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_kubeletplugin.kube.resource import PODS
from tests.helpers.crash.driver import PREPARE_POINTS, UNPREPARE_POINTS
from tests.helpers.crash.harness import DRIVER, ROOT, NodeHarness, node_harness

pytestmark = pytest.mark.crash


def cut_the_journal(b: NodeHarness, rng: random.Random) -> None:
    """Cuts the journal at a random byte after its last sync."""
    log = b.node.kubelet_root / "plugins" / DRIVER / "records.journal"
    if not log.exists():
        return
    note = b.hardware.parent / "synced"
    synced = int(note.read_text()) if note.exists() else 0
    length = log.stat().st_size
    os.truncate(log, rng.choice([synced, min(length, synced), rng.randint(min(synced, length), length)]))


async def lose_power(b: NodeHarness, *, keeps_state: bool, rng: random.Random) -> None:
    cut_the_journal(b, rng)
    if not keeps_state:
        for path in b.hardware.iterdir():
            path.unlink()
    await b.cluster.reboot(sysfs=b.sysfs)


@pytest.mark.parametrize("keeps_state", [True, False], ids=["devices keep their state", "devices lose their state"])
@pytest.mark.parametrize("point", PREPARE_POINTS)
async def test_a_power_failure_in_prepare_leads_to_a_fresh_prepare_for_the_pod(
    tmp_path: Path, point: str, keeps_state: bool
) -> None:
    rng = random.Random(f"{point} {keeps_state}")
    async with node_harness(tmp_path) as b:
        await b.start(KILL_AT=point)
        await b.apply_pod("pod")
        await b.died()
        await lose_power(b, keeps_state=keeps_state, rng=rng)
        await b.start()
        await b.cluster.wait_running("pod")
        b.check_quiet()
        (claim,) = b.cluster.claims()
        assert b.holders() == {"c-0": claim["metadata"]["uid"]}
        await b.cluster.delete_pod("pod")
        assert b.is_empty(), (b.device_files(), b.files(), b.records())


@pytest.mark.full
@pytest.mark.parametrize("keeps_state", [True, False], ids=["devices keep their state", "devices lose their state"])
@pytest.mark.parametrize("point", UNPREPARE_POINTS)
async def test_a_power_failure_in_unprepare_frees_the_device_for_the_next_claim(
    tmp_path: Path, point: str, keeps_state: bool
) -> None:
    rng = random.Random(f"{point} {keeps_state}")
    async with node_harness(tmp_path) as b:
        await b.start(KILL_AT=point)
        await b.apply_pod("pod")
        await b.cluster.wait_running("pod")
        await b.cluster.client.delete(PODS, "pod", "default")
        await b.died()
        await lose_power(b, keeps_state=keeps_state, rng=rng)
        await b.start()
        await b.until("the pod to disappear", lambda: not b.cluster.api.storage.get("pods", "default", "pod"))
        await b.until("everything to be free", b.is_empty)
        await b.apply_pod("next", count=4)
        await b.cluster.wait_running("next")
        b.check_quiet()


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_prepare_syncs_once_and_an_unprepare_never(tmp_path: Path) -> None:
    """strace counts the calls, around an engine in a separate process."""
    trace = tmp_path / "trace"
    script = ROOT / "tests/helpers/crash/claim_process.py"
    command = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,sync_file_range,msync,write", "-o", str(trace)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    process = subprocess.run(
        [*command, sys.executable, str(script), str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "ptrace" in process.stderr and "not permitted" in process.stderr:
        pytest.skip("needs the right to trace processes")
    assert process.returncode == 0, process.stderr
    counts: dict[str, int] = {}
    phase = ""
    for line in trace.read_text().splitlines():
        if mark := re.search(r'"PHASE (\w+)\\n"', line):
            phase = mark[1]
        elif re.search(r"\b(fsync|fdatasync|sync_file_range|msync)\(", line):
            counts[phase] = counts.get(phase, 0) + 1
    assert counts.get("prepare") == 1, counts
    assert counts.get("repeat", 0) == 0, counts
    assert counts.get("unprepare", 0) == 0, counts
