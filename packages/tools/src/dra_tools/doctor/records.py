"""Compares the records of prepared claims with claims and CDI files, to find leaked devices and missing CDI files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import counted, natural
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims.record import Record, State, UnreadableRecord
from dra_kubeletplugin.claims.rollback_retries import retry_note
from dra_kubeletplugin.claims.store.files import read_rows
from dra_kubeletplugin.errors import ApiError, RecordsError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.resourceapi.allocation import results_of

from .findings import Finding, denied, failure, ok, unknown, warning

_LONG = 600.0  # seconds that preparing, unpreparing, or noticing a deleted claim may take
_PARALLEL_READS = 8  # claims that are read in parallel


async def look(kubelet_root: Path, cdi_root: Path, client: KubeClient | None) -> AsyncIterator[Finding]:
    """Checks the records of all drivers of the node. ``client`` is None if the API server cannot be reached."""
    plugins = kubelet_root / "plugins"
    try:
        found = sorted(p.parent.name for p in plugins.glob("*/claims"))
    except OSError as e:
        yield denied("records", e)
        return
    for driver in found:
        path = plugins / driver / "claims"
        try:
            rows = await asyncio.to_thread(read_rows, path)
            specs = ClaimSpecs(cdi_root, driver)
            files = set(specs.uids())
        except RecordsError as e:
            judgement = unknown if e.denied else failure
            yield judgement("records", e.message, e.help)
            continue
        except (OSError, ValueError) as e:
            yield denied("records", e) if isinstance(e, OSError) else unknown("records", f"{path}: {e}")
            continue
        faults = [*_check_records(driver, rows, files, specs)]
        records = [r for r in rows if isinstance(r, Record)]
        if client is not None:
            faults += await _against_claims(client, driver, records)
        for fault in faults:
            yield fault
        if not faults:
            beside = "" if client else ", not compared with the API server"
            yield ok("records", f"{driver}: {counted(len(records), 'claim')}, with CDI files{beside}")


def _check_records(
    driver: str, rows: list[Record | UnreadableRecord], files: set[str], specs: ClaimSpecs
) -> Iterator[Finding]:
    for r in rows:
        if isinstance(r, UnreadableRecord):
            yield failure(
                "records",
                f"{driver}: the record of claim {r.shown} cannot be read: {r.reason}",
                f"its devices stay held: run `dra claims forget {r.uid}` once no process uses them",
            )
            continue
        age = time.time() - r.updated
        if r.state is State.PREPARED and r.cdi and not specs.path(r.uid).exists():
            yield failure(
                "records",
                f"{driver}: claim {r.shown} is prepared and {specs.path(r.uid)} is missing",
                "restart the driver's pod: it writes the file again at its start",
            )
        elif retry := retry_note(r):
            yield failure(
                "records",
                f"{driver}: claim {r.shown} cannot be rolled back and keeps its devices ({retry}): {r.error}",
                "repair the cause that the message names; the driver tries again. "
                f"`dra claims forget {r.uid}` frees the devices without the driver",
            )
        elif r.state is not State.PREPARED and age > _LONG:
            yield failure(
                "records",
                f"{driver}: claim {r.shown} has been {r.state} for {age / 60:.0f} min{f': {r.error}' if r.error else ''}",
                "see the driver's log for what it waits for",
            )
    known = {r.uid for r in rows}
    for uid in sorted(files - known):
        yield warning(
            "records",
            f"{driver}: {specs.path(uid)} belongs to no record",
            "the driver removes it at its start; if the driver is uninstalled, run `dra cleanup`",
        )


async def _against_claims(client: KubeClient, driver: str, records: list[Record]) -> list[Finding]:
    try:
        resource = await client.dra("resourceclaims")
    except ApiError as e:
        return [unknown("records", f"{driver}: not compared with claims: {e.message}")]
    limit = asyncio.Semaphore(_PARALLEL_READS)

    async def one(r: Record) -> Finding | None:
        if not r.name:
            return warning(
                "records",
                f"{driver}: claim {r.uid} has no name in its record",
                "its record was lost, and the driver reported the claim: the kubelet's next call adds the name",
            )
        async with limit:
            try:
                claim: JSON | None = await client.get(resource, r.name, r.namespace)
            except NotFoundError:
                claim = None
            except ApiError as e:
                return unknown("records", f"{driver}: claim {r.shown}: {e.message}")
        return _compared(driver, r, claim)

    return [f for f in await asyncio.gather(*map(one, records)) if f]


def _compared(driver: str, r: Record, claim: JSON | None) -> Finding | None:
    todo = (
        "the driver unprepares the claim when no pod of its namespace on this node can use it, and its grace period is over; "
        "if this stays, see the driver's log for such pods"
    )
    level = failure if time.time() - r.updated > _LONG else warning
    if claim is None or claim["metadata"]["uid"] != r.uid:
        return level("records", f"{driver}: claim {r.shown} is recorded as {r.state} and no longer exists", todo)
    found = results_of(claim)
    allocated = {(x.get("pool"), x.get("device"), x.get("shareID")) for x in found if x.get("driver") == driver}
    held = {(d["pool"], d["device"], d.get("shareID")) for d in r.devices}
    if not allocated:
        return level("records", f"{driver}: claim {r.shown} is recorded as {r.state} and no longer allocated", todo)
    if allocated != held:
        return failure(
            "records",
            f"{driver}: claim {r.shown} holds {_names(held)}, but its allocation has {_names(allocated)}",
            "delete its pods: the kubelet then unprepares the claim, and prepares it again for new pods",
        )
    return None


def _names(devices: set[tuple[Any, ...]]) -> str:
    return ", ".join(sorted((f"{pool}/{name}" for pool, name, _ in devices), key=natural)) or "nothing"
