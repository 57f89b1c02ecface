"""UPG: rolling updates. Two instances with different POD_UIDs run at the same time, or one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from ..api_server import new_uid
from ..catalogue import CheckNotApplicable, expect, may, should
from ..driver_command import DriverInstance
from ..harness import Harness
from ..kubelet_client import PluginConnection, find_sockets, listens
from .slices import require_published

_NOT_OFFERED = "optional: a second instance with another POD_UID does not register beside the first"
_SOURCE = "Kubernetes: kubeletplugin, rolling updates; e2e: rolling update loses nothing"


async def second_instance(h: Harness) -> tuple[DriverInstance, PluginConnection]:
    """Starts a second instance and connects to it. Returns the first instance and its connection.

    Raises :class:`CheckSkipped` if the driver does not support two instances.
    """
    if h.facts.get("no second instance"):
        raise CheckNotApplicable(_NOT_OFFERED)
    with h.starting():
        old, old_plugin = h.driver, h.plugin
        before = _inodes(h.kubelet_root)
        new = await h.spawn(new_uid())

        def decided() -> str:
            now = _inodes(h.kubelet_root)
            if not new.alive or any(now.get(path) != inode for path, inode in before.items()):
                return "replaced"
            added = [path for path in find_sockets(h.registry) if path not in before]
            return "added" if any(listens(path) for path in added) else ""

        if await h.until(decided, h.profile.ready_timeout) != "added":
            h.facts["no second instance"] = True
            await h.reset()
            raise CheckNotApplicable(_NOT_OFFERED)
        h.driver = new
        await h.connect([path for path in before if path.is_relative_to(h.registry)])
    return old, old_plugin


def _inodes(folder: Path) -> dict[Path, int]:
    """Returns the inodes of the sockets below the folder, without sockets that an instance removes during the search."""
    out = {}
    for path in find_sockets(folder):
        with contextlib.suppress(FileNotFoundError):
            out[path] = path.stat().st_ino
    return out


@may(
    "UPG-001",
    "serves calls without an error while two instances overlap",
    consequence="pods that start during an update of the driver fail",
    source=_SOURCE,
)
async def overlap(h: Harness) -> None:
    """Starts a second instance, prepares a claim with both, stops the first instance, and prepares the claim again."""
    claim = await h.prepared_claim()
    old, old_plugin = await second_instance(h)
    for connection in (old_plugin, h.plugin):
        found = (await connection.prepare(claim)).of(claim)
        expect(not found.error, "both instances prepare the claim", found.error)
    took = await old.terminate(20.0)
    expect(took is not None, "the old instance ends within 20 s after SIGTERM", "it had to be killed")
    await h.prepared(claim)


@may(
    "UPG-002",
    "unprepares claims of the old instance with the new instance",
    consequence="pods from before an update stay in Terminating",
    source=_SOURCE,
)
async def across_instances(h: Harness) -> None:
    """Prepares a claim, starts a second instance, and unprepares the claim with it."""
    before = await h.cdi_baseline()
    claim = await h.prepared_claim()
    old, _ = await second_instance(h)
    await h.unprepared(claim)
    await h.expect_no_new_spec(before)
    await old.terminate(20.0)


@may(
    "UPG-003",
    "keeps the sockets of the new instance when the old instance ends",
    consequence="after an update the driver is not registered, although it runs",
    source=_SOURCE,
)
async def sockets_stay(h: Harness) -> None:
    """Starts a second instance, stops the first instance, and connects to both sockets of the second instance."""
    old, _ = await second_instance(h)
    await old.terminate(20.0)
    await asyncio.sleep(0.5)
    for path in (h.plugin.info.socket, h.plugin.endpoint):
        expect(path.exists() and listens(path), f"{path.name} of the new instance responds", "it does not")
    await h.prepared(await h.claim())


@should(
    "UPG-004",
    "keeps its slices while one instance replaces another",
    consequence="during each update the scheduler finds no device, and evicted pods wait",
    source="e2e_node: slices are kept when the plugin restarts quickly; kubelet: it deletes slices only after 30 s",
)
async def slices_stay(h: Harness) -> None:
    """Stops the driver and starts it with another POD_UID. Examines the slices after each change."""
    wanted = await require_published(h)
    async with h.api.states_of_slices(h.name) as states:
        await h.stop()
        await h.start(new_uid())
        await asyncio.sleep(1.0)
    for state in states:
        now = {(s["spec"]["pool"]["name"], d["name"]) for s in state for d in s["spec"].get("devices") or ()}
        missing = sorted("/".join(device) for device in wanted - now)
        expect(not missing, "each device stays published", f"without a slice for a moment: {', '.join(missing[:5])}")
