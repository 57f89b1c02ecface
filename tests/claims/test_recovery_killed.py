"""The records are lost while the plugin is stopped, or after a kill: no claim is lost, and no device is allocated twice.

`test_claims_killed_before_each_step.py` has the kills during a repair.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_kubeletplugin.errors import RecordsError
from tests.helpers.crash.harness import DRIVER, NodeHarness, node_harness
from tests.helpers.crash.record_stores import remove_records

pytestmark = pytest.mark.crash


def overwrite(b: NodeHarness) -> None:
    for path in b.records_path.glob("*.json"):
        path.write_bytes(os.urandom(8192))


def remove(b: NodeHarness) -> None:
    remove_records(b.records_path)


def remove_one_and_overwrite_one_without_a_note(b: NodeHarness) -> None:
    first, second = sorted(b.records())
    (b.records_path / f"{first}.json").unlink()
    (b.records_path / f"{second}.json").write_bytes(os.urandom(8192))
    for note in b.node.cdi_root.glob(f".*{second}.record"):
        note.unlink()


async def hold_two(b: NodeHarness) -> None:
    await b.start()
    for name in ("first", "second"):
        await b.apply_pod(name)
        await b.cluster.wait_running(name)
    await b.kill()


async def check_claims(b: NodeHarness) -> None:
    await b.start()
    await b.until("records, files and hardware to be consistent", lambda: is_quiet(b))
    held = b.holders()
    assert set(held) == {"c-0", "c-1"}
    await b.apply_pod("third")
    await b.cluster.wait_running("third")
    assert {k: v for k, v in b.holders().items() if k != "c-2"} == held
    b.check_quiet()
    for name in ("first", "second", "third"):
        await b.cluster.delete_pod(name)
    await b.until("all devices to be free", b.is_empty)


def is_quiet(b: NodeHarness) -> bool:
    try:
        b.check_quiet()
    except (AssertionError, RecordsError):
        return False
    return True


@pytest.mark.parametrize("damage", [overwrite, remove, remove_one_and_overwrite_one_without_a_note])
async def test_records_that_are_lost_while_the_plugin_is_stopped_lose_no_claim(
    tmp_path: Path, damage: Callable[[NodeHarness], None]
) -> None:
    async with node_harness(tmp_path) as b:
        await hold_two(b)
        damage(b)
        await check_claims(b)


@pytest.mark.parametrize(
    "point", ["prepare: between two steps of hardware", "prepare: after hardware", "prepare: before reply"]
)
async def test_after_a_kill_in_prepare_and_a_loss_of_the_records_the_pod_never_runs_with_a_partial_device(
    tmp_path: Path, point: str
) -> None:
    """The hardware has the claim, but the edits of its containers are unknown, so a prepare must not return it."""
    async with node_harness(tmp_path) as b:
        await b.start(KILL_AT=point)
        await b.apply_pod("pod")
        await b.died()
        remove(b)
        for note in b.node.cdi_root.iterdir():  # notes are written after the response
            note.unlink()
        await b.start()
        await b.cluster.wait_running("pod")
        (claim,) = b.cluster.claims()
        uid = claim["metadata"]["uid"]
        assert b.holders() == {"c-0": uid}
        assert sorted(p.name for p in b.node.cdi_root.iterdir() if not p.name.startswith(".")) == [
            f"k8s.{DRIVER}-claim_{uid}.json",
        ]
        await b.until("records, files and hardware to be consistent", lambda: is_quiet(b))
        await b.cluster.delete_pod("pod")
        await b.until("all devices to be free", b.is_empty)
