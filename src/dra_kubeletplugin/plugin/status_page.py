"""The plugin's own page: why it is not ready, its devices with health and holders, failing claims, and the kubelet's last calls.

All of it comes from the plugin's objects. The page does not query the API server, and shows neither a claim's configuration nor a
driver's data. This module is imported at the first request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from ..base.http_server import pages
from ..base.http_server.origin import is_from_loopback
from ..base.http_server.server import Request, Response
from ..base.text import duration
from ..claims import Record, Row
from ..devices.inventory import Inventory
from ..devices.pool_state import DeviceKey
from ..errors import RecordsError, printable
from .grpc.node_service import KubeletCall

JSON_PATH = "/status.json"
ReadRecords = Callable[[], Awaitable[Sequence[Row]]]
# Any pod in the cluster can reach the port, and the names of claims must not be public.
_LOCAL_ONLY = (
    "this page is served on the loopback only: run kubectl port-forward POD PORT, and open http://localhost:PORT; "
    "/metrics, /healthz and /readyz are open to all clients\n"
)
_HEALTH = {True: "healthy", False: "unhealthy", None: "unknown"}
_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color-scheme:light dark}"
    "h2{font-size:1.1em;margin:1.6em 0 .4em}table{border-collapse:collapse;width:100%}"
    "th,td{text-align:left;padding:.2em 1em .2em 0;border-bottom:1px solid #8884;vertical-align:top}"
    ".bad{color:light-dark(#b00020,#ff8a80);font-weight:600}"
)


@dataclass(frozen=True)
class DeviceState:
    """A device of the driver.

    ``health`` is healthy, unhealthy or unknown, with the driver's ``message``. ``taints`` are the published ones as ``key=value:effect``.
    ``holders`` are the claims that hold it, as ``namespace/name (state)``; ``monitors`` have admin access and do not hold it.
    """

    pool: str
    name: str
    health: str
    message: str
    taints: Sequence[str]
    holders: Sequence[str]
    monitors: Sequence[str]


@dataclass(frozen=True)
class PluginState:
    """The state of one plugin at a moment (``at``, in seconds since 1970)."""

    driver: str
    node: str
    at: float
    not_ready: Sequence[str]
    notes: Sequence[str]
    failing: Sequence[str]
    devices: Sequence[DeviceState]
    calls: Sequence[KubeletCall]


async def render_page(
    request: Request, state: PluginState, inventory: Inventory, records: ReadRecords, timeout: float = 2.0
) -> Response:
    """Handles ``/`` and :data:`JSON_PATH`.

    Args:
        request: the request.
        state: the state without devices.
        inventory: the devices.
        records: reads the records of claims. Raises :class:`RecordsError`.
        timeout: seconds for reading the records.
    """
    if not is_from_loopback(request):
        return pages.text(_LOCAL_ONLY, 403)
    if rejected := pages.rejection(request, has_data=True):
        return rejected
    rows: Sequence[Row] = ()
    notes = list(state.notes)
    try:
        async with asyncio.timeout(timeout):
            rows = await records()
    except (RecordsError, TimeoutError) as e:
        notes.append(f"which claims are prepared is not known: {printable(e) or 'the records do not respond'}")
    notes += [
        f"the record of claim {row.shown} cannot be read, and its devices stay held"
        for row in rows
        if not isinstance(row, Record)
    ]
    whole = replace(
        state,
        not_ready=[*map(printable, state.not_ready)],
        notes=[*map(printable, notes)],
        failing=[*map(printable, state.failing)],
        devices=tuple(device_states(inventory, [row for row in rows if isinstance(row, Record)])),
    )
    return pages.json(whole) if request.path == JSON_PATH else pages.html(_document(whole))


def device_states(inventory: Inventory, records: Iterable[Record]) -> Iterator[DeviceState]:
    """Yields all devices of the driver, also those that are not published and those that vanished in use, in the driver's order."""
    holders = defaultdict[DeviceKey, list[str]](list)
    monitors = defaultdict[DeviceKey, list[str]](list)
    for record in records:
        for device in record.devices:
            by_device = monitors if device.get("adminAccess") else holders
            name = printable(f"{record.namespace or '?'}/{record.name or record.uid} ({record.state.lower()})")
            by_device[DeviceKey(device["pool"], device["device"])].append(name)
    taints = {
        DeviceKey(content.name, device.name): device.json.get("taints") or ()
        for content in inventory.contents()
        for device in content.devices
    }
    for key, health in inventory.health():
        shown = [f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in taints.get(key, ())]
        users = holders.pop(key, []), monitors.pop(key, [])
        yield DeviceState(*key, _HEALTH[health.healthy], printable(health.message), shown, *users)
    for key in {**holders, **monitors}:
        message = "the driver has not reported it since the start"
        yield DeviceState(*key, _HEALTH[None], message, (), holders.get(key, ()), monitors.get(key, ()))


def _document(state: PluginState) -> str:
    title = f"{state.driver} on {state.node}"
    calls = [
        (
            f"{duration(max(0.0, state.at - c.at))} ago",
            c.method,
            str(c.claims),
            f"{c.seconds * 1000:.0f} ms",
            f"{c.failed} failed" if c.failed else "ok",
        )
        for c in reversed(state.calls)
    ]
    devices = [
        (
            d.pool,
            d.name,
            d.health if not d.message else f"{d.health}: {d.message}",
            ", ".join(d.taints),
            ", ".join([*(d.holders or ["free"]), *(f"admin access: {claim}" for claim in d.monitors)]),
        )
        for d in state.devices
    ]
    held = sum(1 for d in state.devices if d.holders)
    return "".join(
        [
            f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>{escape(title)}</title>',
            f"<style>{_STYLE}</style><h1>{escape(title)}</h1>",
            _list("Not ready", state.not_ready) or "<p>ready</p>",
            _list("Claims that cannot be prepared", state.failing),
            _list("Notes", state.notes),
            _table(
                f"Devices: {held} of {len(devices)} held", ("pool", "device", "health", "taints", "held by"), devices
            ),
            _table("Last calls of the kubelet", ("when", "call", "claims", "took", "result"), calls),
            "</html>",
        ]
    )


def _list(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}" for line in lines)
    return f'<h2 class="bad">{title}</h2><ul>{items}</ul>' if items else ""


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{column}" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) for row in rows)
    return f"<h2>{title}</h2>" + (f"<table><tr>{head}{body}</table>" if rows else "<p>none</p>")
