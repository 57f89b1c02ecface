"""Causes the symptoms of docs/troubleshooting.md that concern the records of claims."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims.record import VERSION, encode_record
from dra_kubeletplugin.claims.store.records import file_name
from tests.docs.symptoms import (
    PREPARE,
    apply_pod,
    claims_command,
    event_message,
    produces,
    wait_for_prepare_event,
    wait_for_readiness_line,
)
from tests.helpers.crash.record_stores import damage_body, records_locked, remove_records, set_version
from tests.helpers.drivers import Toy, make_toy_class


@contextlib.contextmanager
def log_of_records() -> Iterator[list[str]]:
    """Collects the log lines about repairs of the records."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, listener = logging.getLogger("dra_kubeletplugin.claims.store.folder"), Listener()
    logger.addHandler(listener)
    try:
        yield lines
    finally:
        logger.removeHandler(listener)


async def repair_reports(node: DriverNode[Any], words: str, event: str = "") -> list[str]:
    """Waits until /readyz contains ``words``, and an event of the node too, or ``event``. Returns the lines and the events."""
    seen = await wait_for_readiness_line(node, words)
    await node.plugin.claims.alerts.check()
    return [*seen, *await event_message(node.cluster, node.cluster.node.name, "RecordsDamaged", event or words)]


async def record_file(node: DriverNode[Any], pod: str = "pod") -> Path:
    claim = await node.claim_of(pod)
    return node.settings.records_path / file_name(claim["metadata"]["uid"])


def damage_head(file: Path) -> None:
    file.write_bytes(b"X" + file.read_bytes()[1:])


def remove_note(node: DriverNode[Any], file: Path) -> None:
    ClaimSpecs(node.settings.cdi_root, node.settings.driver_name).remove_note(file.stem)


@produces("A file of the records was damaged or removed")
async def damaged_and_removed_files() -> list[str]:
    with log_of_records() as log:
        async with node_with(make_toy_class()) as node:
            await node.run_pod()
            damage_head(await record_file(node))
            seen = await repair_reports(node, "was damaged")
            (await record_file(node)).unlink()
            seen += await wait_for_readiness_line(node, "was removed")
            assert not await node.plugin.not_ready()
    return [*log, *seen]


@produces("The folder of the records was removed")
async def removed_folder() -> list[str]:
    with log_of_records() as log:
        async with node_with(make_toy_class()) as node:
            await node.run_pod("first")
            await node.run_pod()
            remove_records(node.settings.records_path)
            seen = await repair_reports(node, "lost and written again")
            await node.run_pod("third")
    return [*log, *seen]


@produces("The first line of a file is damaged")
async def head_damaged_without_a_copy() -> list[str]:
    with log_of_records() as log:
        async with node_with(make_toy_class()) as node:
            await node.run_pod("first")
            file = await record_file(node, "first")
            await node.stop()
            damage_head(file)
            remove_note(node, file)
            await node.start()
            seen = await repair_reports(node, "has no recover()", event="has no copy")
            await node.apply_pod()
            seen += [*await wait_for_prepare_event(node, "HARDWARE_UNKNOWN"), await claims_command(node)]
            seen += [line for line in node.plugin.metrics.text().decode().splitlines() if "damaged_total" in line]
            assert "forgotten" in await claims_command(node, "forget", file.stem, "--yes")
            await node.api.wait_running("pod")
    return [*log, *seen]


@produces("One record cannot be read")
async def unreadable_record() -> list[str]:
    driver = make_toy_class()
    driver.count = 1
    async with node_with(driver) as node:
        await node.run_pod()
        file = await record_file(node)
        await node.stop()
        damage_body(node.settings.records_path, file.stem)
        remove_note(node, file)
        await node.start()
        await node.plugin.claims.alerts.check()
        seen = [*await event_message(node.cluster, "pod", "RecordUnreadable"), await claims_command(node)]
        claim = await node.claim_of("pod")
        await node.api.remove("Pod", "pod")
        await node.api.remove("ResourceClaim", claim["metadata"]["name"])
        await apply_pod(node, "second")
        seen += await wait_for_prepare_event(node, "DEVICE_HELD", "second")
        assert "forgotten" in await claims_command(node, "forget", file.stem, "--yes")
        await node.api.wait_running("second")
        return seen


@produces("Two claims have one device")
async def two_claims_with_one_device() -> list[str]:
    driver = make_toy_class()
    with log_of_records() as log:
        async with node_with(driver) as node:
            await node.run_pod()
            (record,) = await node.plugin.claims.store.all()
            await node.stop()
            newer = msgspec.structs.replace(
                record, uid="00000000-0000-0000-0000-000000000001", created=record.created + 1
            )
            path = node.settings.records_path / file_name(newer.uid)
            path.write_bytes(encode_record(newer, newer.holds()))
            await node.start()
            seen = await repair_reports(node, "two claims")
            assert [r.uid for r in await node.plugin.claims.store.all()] == [record.uid]
            assert ("unprepare", newer.uid) not in driver.calls
    return [*log, *seen]


@produces("Records cannot be written")
async def records_busy() -> list[str]:
    async with node_with(make_toy_class(), lock_timeout=0.3) as node:
        with records_locked(node.settings.records_path):
            await node.apply_pod()
            seen = await event_message(node.cluster, "pod", PREPARE)
        await node.api.wait_running("pod")
        return seen


@produces("The driver cannot read the state of its hardware")
async def recover_fails() -> list[str]:
    class FailingRecover(Toy):
        async def recover(self) -> Any:
            raise OSError("the board does not respond")

    async with node_with(FailingRecover) as node:  # There are no records yet, and the state of the hardware is unknown.
        seen = await wait_for_readiness_line(node, "recover()")
        await node.apply_pod()
        return [*seen, *await event_message(node.cluster, "pod", PREPARE)]


@produces("A newer version wrote a record")
async def newer_record() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.run_pod("old")
        file = await record_file(node, "old")
        await node.stop()
        set_version(node.settings.records_path, file.stem, VERSION + 1)
        await node.start()
        await node.run_pod()  # Other claims are not affected.
        await node.plugin.claims.alerts.check()
        return [*await event_message(node.cluster, "old", "RecordUnreadable"), await claims_command(node)]
