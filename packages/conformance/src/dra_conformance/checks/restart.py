"""RST: restart, crash and reboot."""

from __future__ import annotations

import asyncio
import contextlib
import random
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from dra_devkit.localcluster.node_reboot import empty

from ..catalogue import CheckNotApplicable, CheckSkipped, expect, must, should
from ..driver_command import DriverNotReady
from ..harness import Harness
from ..kubelet_client import CallResponse, find_sockets
from .prepare import check_configured, expect_allocated

_KILLS_TIME = 600.0  # seconds after which a slow driver is not killed again
_STARTS = 3  # attempts to start a driver with damaged state
_REACH = 1.2  # the latest time of a kill, as a multiple of the duration of a call
_SEED = 20
_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "damaged": lambda data: b"\x00\xff not the content that the driver wrote\n",
}


@must(
    "RST-001",
    "after a crash, unprepares claims that it prepared before the crash",
    consequence="pods stay in Terminating, and devices stay configured, after a crash of the driver",
    source="e2e_node: unprepare succeeds after the plugin restarts",
)
async def unprepare_after_crash(h: Harness) -> None:
    """Prepares a claim, kills and starts the driver, and unprepares the claim."""
    before = await h.cdi_baseline()
    claim = await h.prepared_claim()
    await h.restart()
    await h.unprepared(claim)
    await h.expect_no_new_spec(before)
    await check_configured(h, claim, configured=False)


@must(
    "RST-002",
    "survives SIGKILL at random moments of prepare and unprepare: retries succeed and nothing is left",
    consequence="a crash makes a device unusable until an operator repairs the node",
    source="Kubernetes: containers of a DaemonSet are killed at any moment, for example for memory",
    limit=1200,
)
async def random_kills(h: Harness) -> None:
    """Kills the driver at a random moment of a call, starts it, and repeats the call. The profile sets the number of kills."""
    chance = random.Random(_SEED)
    before = await h.cdi_baseline()
    claim = await h.claim()
    prepare = (await h.plugin.prepare(claim)).seconds
    unprepare = (await h.plugin.unprepare(claim)).seconds
    h.release(claim)
    end = h.transcript.now + _KILLS_TIME
    for number in range(h.profile.limits.kills):
        if h.transcript.now > end:
            h.facts["figures"].append(f"{number} kills: the driver is too slow for {h.profile.limits.kills}")
            break
        claim = await h.claim()
        if number % 2:
            await h.prepared(claim)
            await _kill_during(h, h.plugin.unprepare(claim), chance.uniform(0, unprepare * _REACH))
        else:
            await _kill_during(h, h.plugin.prepare(claim), chance.uniform(0, prepare * _REACH))
            expect_allocated(claim, await h.prepared_after_retries(claim))
        await h.unprepared_after_retries(claim)
        await h.expect_no_new_spec(before)
        h.release(claim)


async def _kill_during(h: Harness, call: Coroutine[Any, Any, CallResponse], seconds: float) -> None:
    """Kills the driver ``seconds`` after the call began, and starts it again."""
    task = asyncio.create_task(call)
    await asyncio.sleep(seconds)
    await h.driver.kill()
    await asyncio.gather(task, return_exceptions=True)
    await h.restart(published=False)


@should(
    "RST-003",
    "starts and responds although a state file is empty, cut or damaged",
    consequence="after a power failure the driver crashes in a loop until an operator deletes its files",
    source="field reports: NVIDIA driver #643, #1080; dranet #89",
    limit=300,
)
async def damaged_state(h: Harness) -> None:
    """Prepares a claim, kills the driver, empties, cuts or damages its files, starts it up to three times, and prepares the claim again."""
    for name, damage in _DAMAGES.items():
        claim = await h.prepared_claim()
        await h.kill()
        files = state_files(h.plugins)
        if not files:
            raise CheckNotApplicable("the driver keeps no files below KUBELET_ROOT/plugins")
        for path in files:
            path.write_bytes(damage(path.read_bytes()))
        shown = ", ".join(p.name for p in files)
        for attempt in range(1, _STARTS + 1):
            try:
                await h.start(h.driver.uid, published=False)
                break
            except DriverNotReady as e:
                expect(attempt < _STARTS, f"the driver starts with {name} state files ({shown})", e)
        found = await h.plugin.prepare(claim)
        expect(not found.unserved, f"the driver responds with {name} state files ({shown})", found.unserved)
        await h.reset()


def state_files(folder: Path) -> list[Path]:
    """Returns the regular files with content below the folder."""
    out = []
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(OSError):  # the driver deleted the file during the search
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size:
                out.append(path)
    return out


@must(
    "RST-004",
    "prepares a claim again after a reboot, which empties the CDI folder and changes the boot id",
    consequence="after a reboot of the node, pods whose claims are older than the reboot do not start",
    source="kubelet: after a reboot it prepares the claims of all pods again; /var/run is empty",
)
async def reboot(h: Harness) -> None:
    """Prepares a claim, kills the driver, empties CDI_ROOT, changes the boot id, and prepares the claim again."""
    claim = await h.prepared_claim()
    await h.kill()
    if not h.reboot_host() and "reboot" not in h.profile.hooks:
        raise CheckSkipped("a new boot id needs root, --host, or the hook reboot of the profile")
    empty(h.cdi.path)
    code = await h.hook("reboot")
    expect(code in {None, 0}, "the hook reboot succeeds", f"exit code {code}")
    await h.start(h.driver.uid)
    found = await h.prepared_after_retries(claim)
    missing = h.cdi.unresolvable(found.cdi_ids)
    expect(not missing, "each CDI id resolves after the reboot", missing)
    await check_configured(h, claim, configured=True)
    await h.unprepared(claim)


@should(
    "RST-005",
    "ends within 10 s after SIGTERM with exit code 0, and removes its sockets",
    consequence="an update of the DaemonSet takes 30 s for each node, and the kubelet calls a dead socket",
    source="Kubernetes: terminationGracePeriodSeconds; kubelet: a removed socket is a removed plugin",
)
async def sigterm(h: Harness) -> None:
    """Sends SIGTERM, and looks at the exit code and the sockets."""
    sockets = {h.plugin.info.socket, h.plugin.endpoint}
    took = await h.stop()
    expect(took is not None, "the driver ends within 10 s after SIGTERM", "it had to be killed")
    expect(h.driver.process.returncode == 0, "exit code 0", h.driver.ending)
    left = sorted(str(p) for p in sockets if p.exists())
    expect(not left, "no socket is left", ", ".join(left))


@must(
    "RST-006",
    "starts although sockets of a killed process exist",
    consequence="after a crash the driver does not start again: address already in use",
    source="Linux: a socket file stays when its process is killed",
)
async def stale_sockets(h: Harness) -> None:
    """Kills the driver, starts it beside its old sockets, and calls NodePrepareResources without claims."""
    await h.kill()
    stale = find_sockets(h.kubelet_root)
    if not stale:
        raise CheckNotApplicable("the kernel or the driver removed the sockets of the killed process")
    await h.start(h.driver.uid)
    found = await h.plugin.prepare()
    expect(not found.unserved, "the driver responds", found.unserved)
