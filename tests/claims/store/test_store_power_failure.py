"""The power fails: records that were not synced are lost, the CDI folder is empty, and the boot id changes.

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
from collections import Counter
from pathlib import Path

import msgspec
import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_kubeletplugin.kube.resource import PODS
from tests.helpers.crash.driver import PREPARE_POINTS, UNPREPARE_POINTS
from tests.helpers.crash.harness import ROOT, NodeHarness, node_harness

pytestmark = pytest.mark.crash


def lose_unsynced_writes(b: NodeHarness, rng: random.Random) -> None:
    """Replaces the records by what a disk may keep: of each claim, the last synced files or the last written ones.

    A file that was not synced since its last synced version may have lost its content.
    """
    copy = b.hardware.parent / "synced"
    synced = msgspec.json.decode(copy.read_bytes()) if copy.exists() else {}
    written = {p.name: p.read_text() for p in b.records_path.iterdir() if p.suffix in {".json", ".synced"}}
    for name in sorted(name for name in {*synced, *written} if name.endswith(".json")):
        kept = f".{Path(name).stem}.synced"
        disk = rng.choice([synced, written])
        for file in (name, kept):
            (b.records_path / file).unlink(missing_ok=True)
            if file in disk:
                is_lost = file == name and disk.get(kept, disk[name]) != disk[name] and rng.random() < 0.5
                (b.records_path / file).write_text("" if is_lost else disk[file])


async def lose_power(b: NodeHarness, *, keeps_state: bool, rng: random.Random) -> None:
    lose_unsynced_writes(b, rng)
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
def test_a_prepare_syncs_its_record_and_the_folder_and_an_unprepare_syncs_nothing(tmp_path: Path) -> None:
    """strace counts the calls, around an engine in a separate process. The first prepare also writes the metadata of the records."""
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
    counts: Counter[str] = Counter()
    phase = "start"
    for line in trace.read_text().splitlines():
        if mark := re.search(r'"PHASE ([\w ]+)\\n"', line):
            phase = mark[1]
        elif re.search(r"\b(fsync|fdatasync|sync_file_range|msync)\(", line):
            counts[phase] += 1
    del counts["start"], counts["end"]
    assert counts == {"first prepare": 3, "second prepare": 2}
