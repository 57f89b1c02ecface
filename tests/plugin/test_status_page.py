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


async def test_a_taint_of_the_drivers_own_is_counted_by_its_page_though_the_device_is_well() -> None:
    inventory = Inventory("n1")
    await inventory.update(
        [Pool("n1", [Device("d0", taints=[Taint(key="toy.example.com/reserved", effect="NoSchedule")]), Device("d1")])]
    )
    await inventory.set_health({}, inventory._clock())
    found = own_overview("n1", DRIVER, inventory, ClaimSnapshot())
    assert {d.name: d.health for d in found.devices} == {"d0": HealthRow.TAINTED, "d1": HealthRow.HEALTHY}
    assert found.count.bad == 1


@pytest.mark.parametrize(("peer", "here"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.7", False),
    ("::ffff:10.0.0.7", False), ("fe80::1%eth0", False), ("", False),
])  # fmt: skip
async def test_a_plugins_page_is_for_its_own_machine_and_port_forwarding(peer: str, here: bool) -> None:
    asked = replace(request("/"), peer=peer)
    assert is_from_loopback(asked) is here
    found = await render_page(asked, "n1", DRIVER, Inventory("n1"), no_claims, [])
    assert found.status == (200 if here else 403)
    assert here or b"kubectl port-forward" in found.body


@pytest.mark.parametrize("headers", [
    {"x_forwarded_for": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}, {"via": "1.1 envoy"}, {"host": "10.244.1.7:8080"},
])  # fmt: skip
async def test_what_a_sidecar_passes_on_is_not_from_here_though_it_comes_over_the_loopback(
    headers: dict[str, str],
) -> None:
    for path in PAGES:
        asked = replace(request(path, **headers), peer="127.0.0.6")
        found = await render_page(asked, "n1", DRIVER, Inventory("n1"), no_claims, [])
        assert found.status == 403


async def test_a_plugin_reports_its_devices_health_and_claims_in_the_same_shape_and_of_no_secret() -> None:
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
    found = own_overview("n1", DRIVER, inventory, summarize([record], DRIVER), ["a note"])
    assert {d.name: (d.use, d.health, d.message) for d in found.devices} == {
        "d0": (DeviceUse.HELD, HealthRow.HEALTHY, ""), "d1": (DeviceUse.FREE, HealthRow.UNHEALTHY, "ECC errors"),
        "d2": (DeviceUse.FREE, HealthRow.HEALTHY, ""),
    }  # fmt: skip
    assert [h.claim + " " + h.state for d in found.devices for h in d.holders] == ["ml/c prepared"]
    assert found.notes[0] == "a note"
    assert found.count.waiting is None, "pods are not the plugin's to know"
    encoded = msgspec.json.encode(found, enc_hook=dict)
    assert b"s3cret" not in encoded
    keys = set(msgspec.json.decode(encoded))
    assert keys == set(msgspec.json.decode(msgspec.json.encode(overview(Snapshot()))))
