"""The plugin's status page: its content, and from which addresses it may be read."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from dra_kubeletplugin import CounterSet, Device, Pool, Taint
from dra_kubeletplugin import Health as Report
from dra_kubeletplugin.analysis import Snapshot
from dra_kubeletplugin.analysis.top.overview import overview
from dra_kubeletplugin.base.http_server.origin import is_from_loopback
from dra_kubeletplugin.claims import ClaimSnapshot, Record, State
from dra_kubeletplugin.claims.summary import summarize
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.plugin.lifecycle import PAGES
from dra_kubeletplugin.plugin.status_page import overview as own_overview
from dra_kubeletplugin.plugin.status_page import render_page
from dra_kubeletplugin.resourceapi.usage.rows import DeviceUse, HealthRow
from tests.analysis.top.test_overview import no_claims
from tests.plugin.test_usage_page import request
from tests.resourceapi.usage.test_usage import DRIVER


async def test_the_page_counts_a_device_with_a_taint_of_the_driver_as_unhealthy() -> None:
    inventory = Inventory("n1")
    await inventory.update(
        [Pool("n1", [Device("d0", taints=[Taint(key="toy.example.com/reserved", effect="NoSchedule")]), Device("d1")])]
    )
    await inventory.set_health({}, inventory._clock())
    page_model = own_overview("n1", DRIVER, inventory, ClaimSnapshot())
    assert {d.name: d.health for d in page_model.devices} == {"d0": HealthRow.TAINTED, "d1": HealthRow.HEALTHY}
    assert page_model.count.bad == 1


@pytest.mark.parametrize(("peer", "is_local"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.7", False),
    ("::ffff:10.0.0.7", False), ("fe80::1%eth0", False), ("", False),
])  # fmt: skip
async def test_a_plugins_page_is_for_its_own_machine_and_port_forwarding(peer: str, is_local: bool) -> None:
    page_request = replace(request("/"), peer=peer)
    assert is_from_loopback(page_request) is is_local
    response = await render_page(page_request, "n1", DRIVER, Inventory("n1"), no_claims, [])
    assert response.status == (200 if is_local else 403)
    assert is_local or b"kubectl port-forward" in response.body


@pytest.mark.parametrize("headers", [
    {"x_forwarded_for": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}, {"via": "1.1 envoy"}, {"host": "10.244.1.7:8080"},
])  # fmt: skip
async def test_requests_forwarded_by_a_sidecar_are_rejected_also_over_loopback(
    headers: dict[str, str],
) -> None:
    for path in PAGES:
        page_request = replace(request(path, **headers), peer="127.0.0.6")
        response = await render_page(page_request, "n1", DRIVER, Inventory("n1"), no_claims, [])
        assert response.status == 403


async def test_a_plugin_reports_devices_health_and_claims_in_the_shape_of_the_overview_and_without_secrets() -> None:
    inventory = Inventory("n1")
    sets = [CounterSet("gpu-0", {"memory": 80})]
    devices = [Device(f"d{i}", attributes={"index": i}) for i in range(3)]
    await inventory.update([Pool("n1", devices, sets)])
    await inventory.set_health({"d1": Report(False, "ECC errors")}, inventory._clock())
    doc = {
        "devices": [{"pool": "n1", "device": "d0", "request": "r", "data": {"password": "s3cret"}}],
        "cdi": {"containerEdits": {"env": ["TOKEN=s3cret"]}},
    }
    record = Record("u1", "ml", "c", State.PREPARED, "boot", doc=doc, error="s3cret")
    page_model = own_overview("n1", DRIVER, inventory, summarize([record], DRIVER), ["a note"])
    assert {d.name: (d.use, d.health, d.message) for d in page_model.devices} == {
        "d0": (DeviceUse.HELD, HealthRow.HEALTHY, ""), "d1": (DeviceUse.FREE, HealthRow.UNHEALTHY, "ECC errors"),
        "d2": (DeviceUse.FREE, HealthRow.HEALTHY, ""),
    }  # fmt: skip
    assert [h.claim + " " + h.state for d in page_model.devices for h in d.holders] == ["ml/c prepared"]
    assert page_model.notes[0] == "a note"
    assert page_model.count.waiting is None, "the plugin has no information about pods"
    encoded = msgspec.json.encode(page_model, enc_hook=dict)
    assert b"s3cret" not in encoded
    keys = set(msgspec.json.decode(encoded))
    assert keys == set(msgspec.json.decode(msgspec.json.encode(overview(Snapshot()))))
