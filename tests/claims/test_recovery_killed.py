"""Killed while the records are repaired, made anew, reconciled or completed: no claim is lost, no device given twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_kubeletplugin.errors import RecordsError
from tests.helpers.crash.driver import REPAIR_POINTS
from tests.helpers.crash.harness import DRIVER, NodeHarness, node_harness
from tests.helpers.crash.record_stores import lose_bodies

pytestmark = pytest.mark.crash


def records(b: NodeHarness) -> Path:
    return b.node.kubelet_root / "plugins" / DRIVER / "records.journal"


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(8192))


def without_bodies(path: Path) -> None:
    lose_bodies(path, "doc")


def removed(path: Path) -> None:
    path.unlink()


async def hold_two(b: NodeHarness) -> None:
    """Two running pods, one of whose claims has no CDI edits, so that only its record and the driver know of it."""
    await b.start()
    for name in ("first", "second"):
        await b.apply_pod(name)
        await b.cluster.wait_running(name)
    await b.kill()


async def check_nothing_is_lost(b: NodeHarness) -> None:
    await b.start()
    await b.until("all stories to agree", lambda: is_quiet(b))
    held = b.holders()
    assert set(held) == {"c-0", "c-1"}
    await b.apply_pod("third")
    await b.cluster.wait_running("third")
    assert {k: v for k, v in b.holders().items() if k != "c-2"} == held
    b.check_quiet()
    for name in ("first", "second", "third"):
        await b.cluster.delete_pod(name)
    await b.until("everything to be free", b.is_empty)
    await b.until("no part of a repair to be left", lambda: not b.unrepaired())


def is_quiet(b: NodeHarness) -> bool:
    try:
        b.check_quiet()
    except (AssertionError, RecordsError):
        return False
    return True


@pytest.mark.parametrize("damage", [garbage, removed])
async def test_a_database_that_is_lost_while_the_plugin_is_down_loses_no_claim(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    async with node_harness(tmp_path) as b:
        await hold_two(b)
        damage(records(b))
        await check_nothing_is_lost(b)


@pytest.mark.parametrize("point", REPAIR_POINTS)
async def test_killed_in_repair_no_claim_is_lost_and_no_device_is_given_twice(tmp_path: Path, point: str) -> None:
    async with node_harness(tmp_path) as b:
        await hold_two(b)
        garbage(records(b))
        await b.start(KILL_AT=point, ready=False)
        await b.died()
        await check_nothing_is_lost(b)


@pytest.mark.full
@pytest.mark.parametrize("skip", [0, 1])
async def test_killed_twice_in_repair_the_third_start_knows_every_claim(tmp_path: Path, skip: int) -> None:
    async with node_harness(tmp_path) as b:
        await hold_two(b)
        without_bodies(records(b))
        for point in ("repair: after setting aside", "repair: before the name"):
            await b.start(KILL_AT=point, ready=False)
            await b.died()
        await check_nothing_is_lost(b)


@pytest.mark.parametrize(
    "point", ["prepare: between two steps of hardware", "prepare: before CDI file", "prepare: before commit"]
)
async def test_killed_in_prepare_and_the_records_lost_the_pod_never_runs_with_half_of_its_device(
    tmp_path: Path, point: str
) -> None:
    """The hardware knows of the claim, and nobody what its containers get: that is no claim to be answered for."""
    async with node_harness(tmp_path) as b:
        await b.start(KILL_AT=point)
        await b.apply_pod("pod")
        await b.died()
        removed(records(b))
        for note in b.node.cdi_root.iterdir():  # they are written when nobody waits for them
            note.unlink()
        await b.start()
        await b.cluster.wait_running("pod")
        (claim,) = b.cluster.claims()
        uid = claim["metadata"]["uid"]
        assert b.holders() == {"c-0": uid}
        assert sorted(p.name for p in b.node.cdi_root.iterdir() if not p.name.startswith(".")) == [
            f"k8s.{DRIVER}-claim_{uid}.json",
        ]
        await b.until("all stories to agree", lambda: is_quiet(b))
        await b.cluster.delete_pod("pod")
        await b.until("everything to be free", b.is_empty)


@pytest.mark.full
async def test_while_nobody_knows_what_the_hardware_has_in_use_nothing_is_prepared(tmp_path: Path) -> None:
    """The records are lost, a device is half taken, and the driver cannot tell: the pod waits, and says for what."""
    # Of a pod 25 Events are told, and then hardly any: those of tries while no plugin is there must not be all.
    async with node_harness(tmp_path, retry=2) as b:
        await b.start(KILL_AT="prepare: between two steps of hardware")
        await b.apply_pod("pod")
        await b.died()
        removed(records(b))
        for note in b.node.cdi_root.iterdir():
            note.unlink()
        unknown = b.faults / "recover-fails"
        unknown.touch()
        await b.start()
        await b.until("the pod's event", lambda: any("HARDWARE_UNKNOWN" in e for e in b.cluster.events("pod")))
        b.check()
        unknown.unlink()
        await b.kill()  # or it would be asked again after half a minute
        await b.start()
        await b.cluster.wait_running("pod")
        b.check_quiet()
