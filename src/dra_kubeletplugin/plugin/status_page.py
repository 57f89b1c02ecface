"""What a node's plugin knows by itself, for people: its devices, their health, prepared claims, what is left out and why.

The API server is not asked, and nothing of a claim's configuration nor of a driver's own data is shown. This module is loaded
when somebody first looks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..base.http_server.origin import is_from_here
from ..base.http_server.server import Request, Response
from ..claims import Record, RecordStore
from ..claims.record import UnreadableRecord
from ..claims.store.rows import Row, read_all
from ..claims.store.store import Mode
from ..devices.inventory import DeviceKey, Inventory
from ..devices.validation import decoded
from ..errors import RecordsError, printable
from ..resourceapi.nodes import Where
from ..resourceapi.usage.rows import DeviceRow, DeviceUse, HealthRow, NodeRow, Overview, counted
from ..resourceapi.usage.usage import count_usage
from . import usage_page

JSON = dict[str, Any]
# Anybody in a cluster's network reaches the port, and whose claims are where is not for everybody.
_ELSEWHERE = (
    "this page is for the machine itself: kubectl port-forward POD PORT, and look at http://localhost:PORT; "
    "/metrics, /healthz and /readyz are for everybody\n"
)
_HEALTH = {True: HealthRow.HEALTHY, False: HealthRow.UNHEALTHY, None: HealthRow.UNKNOWN}


async def answer(
    request: Request, node: str, driver: str, inventory: Inventory, store: RecordStore, notes: Sequence[str]
) -> Response:
    """``/`` and ``/overview.json``; ``notes`` are lines to show with them."""
    if not is_from_here(request):
        return usage_page.text(_ELSEWHERE, 403)
    if refused := usage_page.refusal(request):
        return refused
    if request.path == "/":
        return usage_page.page()
    records: Sequence[Row] = ()
    try:
        records = await store.do(read_all, Mode.READ)
    except RecordsError as e:
        notes = [*notes, f"which claims are prepared is not known: {printable(e)}"]
    return usage_page.rows(request, overview(node, driver, inventory, records, notes))


def overview(
    node: str, driver: str, inventory: Inventory, records: Sequence[Row], notes: Iterable[str] = ()
) -> Overview:
    """The rows of :func:`dra_kubeletplugin.analysis.overview`, as far as a plugin can tell them."""
    readable = [r for r in records if isinstance(r, Record)]
    found = count_usage(_slices(node, driver, inventory), [_claim(r, driver) for r in readable])
    health = inventory.health()
    known = {key: (_HEALTH[h.healthy], printable(h.message)) for key, h in health}
    devices = tuple(_with_health(row, known) for row in found.devices)
    held = sum(1 for d in devices if d.use is not DeviceUse.FREE and d.use is not DeviceUse.BLOCKED)
    odd = [
        f"the record of claim {r.shown} cannot be read, and its devices stay held"
        for r in records
        if isinstance(r, UnreadableRecord)
    ]
    return Overview(
        title=f"{driver} on {node}",
        devices=devices,
        sets=found.sets,
        nodes=(NodeRow(node, len(devices), held),),
        count=counted(devices, None),
        notes=tuple(map(printable, (*notes, *found.notes, *odd))),
        at=time.time(),
    )


def _slices(node: str, driver: str, inventory: Inventory) -> Iterator[JSON]:
    """Each pool as one slice."""
    for content in inventory.contents():
        where = content.nodes.where
        place: JSON = {"nodeName": node} if where is Where.THIS else {"allNodes": True} if where is Where.ALL else {}
        yield {
            "metadata": {"name": content.name},
            "spec": {
                "driver": driver,
                "pool": {"name": content.name, "generation": 1, "resourceSliceCount": 1},
                **({"perDeviceNodeSelection": True} if content.per_device else place),
                "devices": [decoded(p.encoded) for p in content.devices],
                "sharedCounters": content.counter_sets,
            },
        }


def _claim(record: Record, driver: str) -> JSON:
    """A record as the claim that it was made from, with its state."""
    results = []
    for d in record.devices:
        result = {"driver": driver, "pool": d["pool"], "device": d["device"], "request": d.get("request") or "?"}
        takes = d.get("takes")
        consumed = takes.get("capacity") if isinstance(takes, Mapping) else None
        results.append(
            result | {"shareID": d.get("shareID"), "adminAccess": d.get("adminAccess"), "consumedCapacity": consumed}
        )
    return {
        "metadata": {"namespace": record.namespace or "?", "name": record.name or record.uid},
        "status": {"allocation": {"devices": {"results": results}}},
        "state": str(record.state).lower(),
    }


def _with_health(row: DeviceRow, known: Mapping[DeviceKey, tuple[HealthRow, str]]) -> DeviceRow:
    """The plugin knows more than a taint says: who is well too, and what the driver said."""
    health, message = known.get(DeviceKey(row.pool, row.name), (HealthRow.UNKNOWN, "no slice has it any more"))
    if (
        row.health is HealthRow.TAINTED and health is not HealthRow.UNHEALTHY
    ):  # nothing new goes there, however well it is
        health = HealthRow.TAINTED
    return replace(row, health=health, message=row.message or message)
