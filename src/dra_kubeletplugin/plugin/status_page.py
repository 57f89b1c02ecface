"""Serves the state of a node's plugin as a page: devices, health, prepared claims, and devices that are not published with the reasons.

It does not query the API server, and shows neither a claim's configuration nor a driver's data. This module is imported at the first
request.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..base.http_server.origin import is_from_loopback
from ..base.http_server.server import Request, Response
from ..claims import ClaimSnapshot, ClaimSummary
from ..devices.inventory import Inventory
from ..devices.pool_state import DeviceKey
from ..devices.validation import decoded
from ..errors import RecordsError, printable
from ..resourceapi.usage.rows import TAKEN, DeviceRow, HealthRow, NodeRow, Overview, card_shares, counted, occupancy
from ..resourceapi.usage.usage import count_usage
from . import usage_page

JSON = dict[str, Any]
ReadClaims = Callable[[], Awaitable[ClaimSnapshot]]
# Any pod in the cluster can reach the port, and the names of claims must not be public.
_LOCAL_ONLY = (
    "this page is served on the loopback only: run kubectl port-forward POD PORT, and open http://localhost:PORT; "
    "/metrics, /healthz and /readyz are open to all clients\n"
)
_HEALTH = {True: HealthRow.HEALTHY, False: HealthRow.UNHEALTHY, None: HealthRow.UNKNOWN}


async def render_page(
    request: Request, node: str, driver: str, inventory: Inventory, claims: ReadClaims, notes: Sequence[str]
) -> Response:
    """Handles ``/`` and the paths of its data. ``notes`` are lines to show with them.

    Args:
        claims: reads the recorded claims. Raises :class:`RecordsError`.
    """
    if not is_from_loopback(request):
        return usage_page.text(_LOCAL_ONLY, 403)
    if refused := usage_page.refusal(request):
        return refused
    if request.path == "/":
        return usage_page.page()
    recorded = ClaimSnapshot()
    try:
        recorded = await claims()
    except RecordsError as e:
        notes = [*notes, f"which claims are prepared is not known: {printable(e)}"]
    return usage_page.data(request, overview(node, driver, inventory, recorded, notes))


def overview(
    node: str, driver: str, inventory: Inventory, recorded: ClaimSnapshot, notes: Iterable[str] = ()
) -> Overview:
    """Returns the same rows as :func:`dra_kubeletplugin.analysis.overview`, with the facts that a plugin knows."""
    found = count_usage(_slices(driver, inventory), map(_claim, recorded.claims))
    health = inventory.health()
    known = {key: (_HEALTH[h.healthy], printable(h.message)) for key, h in health}
    devices = tuple(_with_health(row, known) for row in found.devices)
    held = sum(1 for d in devices if d.use in TAKEN)
    unreadable = [f"the record of claim {c} cannot be read, and its devices stay held" for c in recorded.unreadable]
    return Overview(
        title=f"{driver} on {node}",
        devices=devices,
        sets=found.sets,
        nodes=(NodeRow(node, len(devices), held, occupancy=occupancy(devices, card_shares(found.sets))),),
        count=counted(devices, found.sets, None),
        notes=tuple(map(printable, (*notes, *found.notes, *unreadable))),
        at=time.time(),
    )


def _slices(driver: str, inventory: Inventory) -> Iterator[JSON]:
    """Yields each pool as one slice."""
    for content in inventory.contents():
        yield {
            "metadata": {"name": content.name},
            "spec": {
                "driver": driver,
                "pool": {"name": content.name, "generation": 1, "resourceSliceCount": 1},
                **content.fields,
                "devices": [decoded(p.encoded) for p in content.devices],
                "sharedCounters": content.counter_sets,
            },
        }


def _claim(summary: ClaimSummary) -> JSON:
    """Converts a summary to the form of a ResourceClaim, with the record's state."""
    return {
        "metadata": {"namespace": summary.namespace, "name": summary.name},
        "status": {"allocation": {"devices": {"results": summary.results}}},
        "state": summary.state,
    }


def _with_health(row: DeviceRow, known: Mapping[DeviceKey, tuple[HealthRow, str]]) -> DeviceRow:
    """Adds the health and the driver's message, which a slice does not contain."""
    health, message = known.get(DeviceKey(row.pool, row.name), (HealthRow.UNKNOWN, ""))
    # A taint blocks new claims, also if the device is healthy.
    if row.health is HealthRow.TAINTED and health is not HealthRow.UNHEALTHY:
        health = HealthRow.TAINTED
    return replace(row, health=health, message=message)
