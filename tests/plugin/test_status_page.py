"""The plugin's status page: its content, and from which addresses it may be read."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Device, Pool, Taint
from dra_kubeletplugin import Health as Report
from dra_kubeletplugin.base.http_server.origin import is_from_loopback
from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.claims import Record, Row, State
from dra_kubeletplugin.claims.record import UnreadableRecord
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.errors import RecordsError
from dra_kubeletplugin.plugin.grpc.node_service import KubeletCall
from dra_kubeletplugin.plugin.lifecycle import PAGES
from dra_kubeletplugin.plugin.status_page import JSON_PATH, PluginState, render_page
from tests.helpers.drivers import HealthReportingDriver, make_toy_class

DRIVER = "toy.example.com"
SCRIPT = "<img src=x onerror=alert(1)>"


def request(
    path: str = "/", method: str = "GET", query: Mapping[str, str] = MappingProxyType({}), **headers: str
) -> Request:
    request_headers = {"host": "127.0.0.1:80"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return Request(method, path, query, request_headers, b"", peer="127.0.0.1")


async def page(
    inventory: Inventory, rows: Sequence[Row] | Exception = (), of: Request | None = None, **fields: Any
) -> Response:
    async def read() -> Sequence[Row]:
        if isinstance(rows, Exception):
            raise rows
        return rows

    none: dict[str, Any] = dict.fromkeys(("not_ready", "notes", "failing", "devices", "calls"), ())
    state = PluginState(DRIVER, "n1", 1000.0, **{**none, **fields})
    return await render_page(of or request(), state, inventory, read)


@pytest.mark.parametrize(("peer", "is_local"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.7", False),
    ("::ffff:10.0.0.7", False), ("fe80::1%eth0", False), ("", False),
])  # fmt: skip
async def test_a_plugins_page_is_for_its_own_machine_and_port_forwarding(peer: str, is_local: bool) -> None:
    page_request = replace(request(), peer=peer)
    assert is_from_loopback(page_request) is is_local
    response = await page(Inventory("n1"), of=page_request)
    assert response.status == (200 if is_local else 403)
    assert is_local or b"kubectl port-forward" in response.body


@pytest.mark.parametrize("headers", [
    {"x_forwarded_for": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}, {"via": "1.1 envoy"}, {"host": "10.244.1.7:8080"},
])  # fmt: skip
async def test_requests_forwarded_by_a_sidecar_are_rejected_also_over_loopback(headers: dict[str, str]) -> None:
    for path in PAGES:
        page_request = replace(request(path, **headers), peer="127.0.0.6")
        assert (await page(Inventory("n1"), of=page_request)).status == 403


async def test_the_state_has_devices_health_taints_and_holders_and_no_secrets() -> None:
    inventory = Inventory("n1")
    taint = Taint(key="toy.example.com/reserved", effect="NoSchedule")
    await inventory.update([Pool("n1", [Device("d0"), Device("d1"), Device("d2", taints=[taint])])])
    await inventory.set_health({"d1": Report(False, "ECC errors")}, time.monotonic())
    held = [{"pool": "n1", "device": "d0", "request": "r", "data": {"password": "s3cret"}}]
    monitored = [{"pool": "n1", "device": "d2", "request": "r", "adminAccess": True}]
    edits = {"containerEdits": {"env": ["TOKEN=s3cret"]}}
    records = [
        Record("u1", "ml", "c", State.PREPARED, "boot", devices=held, cdi=edits, error="s3cret"),
        Record("u2", "ops", "monitor", State.PREPARED, "boot", devices=monitored),
    ]
    response = await page(inventory, records, request(JSON_PATH), notes=["a note"])
    state = msgspec.json.decode(response.body)
    assert [(d["name"], d["health"], d["message"], d["holders"]) for d in state["devices"]] == [
        ("d0", "healthy", "", ["ml/c (prepared)"]),
        ("d1", "unhealthy", "ECC errors", []),
        ("d2", "healthy", "", []),
    ]
    assert [d["monitors"] for d in state["devices"]] == [[], [], ["ops/monitor (prepared)"]]
    assert state["devices"][2]["taints"] == ["toy.example.com/reserved=:NoSchedule"]
    assert state["notes"] == ["a note"]
    document = (await page(inventory, records)).body
    assert b"Devices: 1 of 3 held" in document
    assert b"<td>free, admin access: ops/monitor (prepared)" in document
    assert b"s3cret" not in document + response.body


async def test_texts_are_shown_as_text_and_the_page_may_run_no_script() -> None:
    inventory = Inventory("n1")
    await inventory.update([Pool("n1", [Device("d0")])])
    await inventory.set_health({"d0": Report(False, SCRIPT)}, time.monotonic())
    response = await page(inventory, failing=[SCRIPT], notes=[SCRIPT], not_ready=[SCRIPT])
    assert b"<img" not in response.body
    assert response.body.count(b"&lt;img") == 4
    policy = response.headers["Content-Security-Policy"]
    assert "script-src 'none'" in policy
    assert "unsafe" not in policy


async def test_unreadable_records_are_named_and_the_devices_are_still_shown() -> None:
    inventory = Inventory("n1")
    await inventory.update([Pool("n1", [Device("d0")])])
    body = (await page(inventory, RecordsError("the disk is gone"))).body.decode()
    assert "which claims are prepared is not known: the disk is gone" in body
    assert "d0" in body
    body = (await page(inventory, [UnreadableRecord("u", "damaged", {"namespace": "ml", "name": "c"})])).body.decode()
    assert "the record of claim ml/c (UID u) cannot be read, and its devices stay held" in body


async def test_the_last_calls_are_shown_newest_first() -> None:
    calls = [
        KubeletCall("NodePrepareResources", 900.0, 0.005, 2, 1),
        KubeletCall("NodeUnprepareResources", 990.0, 0.1, 1, 0),
    ]
    body = (await page(Inventory("n1"), calls=calls)).body.decode()
    assert (
        "<tr><td>10s ago<td>NodeUnprepareResources<td>1<td>100 ms<td>ok<tr><td>100s ago<td>NodePrepareResources" in body
    )
    assert "<td>5 ms<td>1 failed" in body


async def test_the_page_of_a_running_plugin_shows_its_claims_calls_and_health() -> None:
    async with node_with(HealthReportingDriver, http_address="127.0.0.1:0") as node:
        await node.run_pod()
        status, body = await fetch(f"{node.plugin.http_url}{JSON_PATH}")
        state = msgspec.json.decode(body)
        assert status == 200
        assert [c["method"] for c in state["calls"]] == ["NodePrepareResources"]
        assert (state["calls"][0]["claims"], state["calls"][0]["failed"]) == (1, 0)
        assert [len(d["holders"]) for d in state["devices"] if d["holders"]] == [1]
        assert state["not_ready"] == []
        status, body = await fetch(f"{node.plugin.http_url}/")
        assert (status, "(prepared)" in body) == (200, True)


async def test_a_claim_that_cannot_be_prepared_is_shown_with_its_reason() -> None:
    cls = make_toy_class()
    cls.fail = OSError("firmware missing")
    async with node_with(cls, http_address="127.0.0.1:0") as node:
        await node.apply_pod()

        async def is_shown() -> bool:
            _, body = await fetch(f"{node.plugin.http_url}{JSON_PATH}")
            return any("firmware missing" in line for line in msgspec.json.decode(body)["failing"])

        await node.cluster.wait("the failing prepare on the page", is_shown)


async def test_the_page_is_read_only_and_rejects_requests_of_other_pages() -> None:
    async with node_with(make_toy_class(), http_address="127.0.0.1:0") as node:
        url = node.plugin.http_url
        assert (await fetch(url + JSON_PATH, Host="evil.example.com"))[0] == 403
        assert (await fetch(url + JSON_PATH, Origin="http://evil.example.com"))[0] == 403
        assert (await fetch(url + JSON_PATH, data=b"{}"))[0] == 405
        assert (await fetch(url + "/metrics", Host="evil.example.com"))[0] == 200, "a scraper may use any host name"


async def fetch(url: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    return await asyncio.to_thread(get)


async def test_devices_of_recorded_claims_are_shown_before_the_driver_reports_them() -> None:
    devices = [{"pool": "n1", "device": "d0", "request": "r"}]
    recorded = [Record("u1", "ml", "c", State.PREPARED, "boot", devices=devices)]
    body = (await page(Inventory("n1"), recorded)).body.decode()
    assert "Devices: 1 of 1 held" in body
    assert "unknown: the driver has not reported it since the start" in body


async def test_records_that_do_not_respond_and_texts_that_are_no_unicode_do_not_stop_the_page() -> None:
    async def hang() -> Sequence[Row]:
        await asyncio.Event().wait()
        raise AssertionError

    none: dict[str, Any] = dict.fromkeys(("not_ready", "failing", "devices", "calls"), ())
    state = PluginState(DRIVER, "n1", 1000.0, notes=["\ud800"], **none)
    for path in PAGES:
        response = await render_page(request(path), state, Inventory("n1"), hang, 0.01)
        assert response.status == 200
        assert b"which claims are prepared is not known: the records do not respond" in response.body


async def test_another_web_page_gets_no_data_but_a_link_opens_the_page() -> None:
    for path in PAGES:
        assert (await page(Inventory("n1"), of=request(path, sec_fetch_site="cross-site"))).status == 403
    headers = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert (await page(Inventory("n1"), of=request("/", **headers))).status == 200
