"""The rows of `dra top` and of the pages: made of slices and claims, arranged, and served."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import CounterSet, Device, Pool, Taint
from dra_kubeletplugin import Health as Report
from dra_kubeletplugin.analysis import Snapshot
from dra_kubeletplugin.analysis.explanation.background import BackgroundExplainer, _Found
from dra_kubeletplugin.analysis.top.arranging import Grouping, Order, arranged, matching, natural
from dra_kubeletplugin.analysis.top.overview import overview
from dra_kubeletplugin.analysis.watcher import ClusterWatcher
from dra_kubeletplugin.base.http_server.origin import is_from_here
from dra_kubeletplugin.base.http_server.server import Request
from dra_kubeletplugin.claims import ClaimSnapshot, Record, State
from dra_kubeletplugin.claims.summary import summarize
from dra_kubeletplugin.cli.shell.style import Style
from dra_kubeletplugin.cli.top import details
from dra_kubeletplugin.cli.top.table import table
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.plugin import usage_page
from dra_kubeletplugin.plugin.status_page import overview as own_overview
from dra_kubeletplugin.plugin.status_page import render_page
from dra_kubeletplugin.resourceapi.usage.rows import DeviceUse, HealthRow, NodeRow, Overview
from dra_kubeletplugin.resourceapi.usage.usage import UsageCounter, count_usage

JSON = dict[str, Any]
DRIVER = "toy.example.com"
A = "resource.kubernetes.io/"


def slice_of(node: str, devices: list[JSON], *, pool: str = "", generation: int = 1, of: int = 1, **spec: Any) -> JSON:
    listed = {"driver": DRIVER, "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": of}}
    where = {"nodeName": node} if node else {}
    meta = {"name": f"s-{pool or node}-{generation}-{len(devices)}"}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta,
        "spec": {**listed, **where, "devices": devices, **spec},
    }  # fmt: skip


def claim(name: str, *devices: tuple[str, str], pods: tuple[str, ...] = (), **result: Any) -> JSON:
    results = [{"driver": DRIVER, "pool": p, "device": d, "request": "r", **result} for p, d in devices]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": p, "uid": p} for p in pods],
    }
    meta = {"name": name, "namespace": "ml"}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": {}, "status": status,
    }  # fmt: skip


def counters(counter_set: str, **amounts: str) -> list[JSON]:
    return [{"counterSet": counter_set, "counters": {n: {"value": v} for n, v in amounts.items()}}]


NAMES = st.sampled_from([f"d{i}" for i in range(5)])
SLICES = st.lists(
    st.builds(
        lambda node, pool, generation, names: slice_of(
            node, [{"name": n} for n in names], pool=pool, generation=generation
        ),
        st.sampled_from(["n1", "n2"]),
        st.sampled_from(["p1", "p2", "p3"]),
        st.integers(0, 2),
        st.lists(NAMES, max_size=4),
    ),
    max_size=8,
)
CLAIMS = st.lists(st.lists(st.tuples(st.sampled_from(["p1", "p2", "p9"]), NAMES), max_size=3), max_size=6)


@given(slices=SLICES, allocated=CLAIMS)
def test_each_device_of_each_pools_newest_slices_stands_once_and_holders_are_the_allocations(
    slices: list[JSON], allocated: list[list[tuple[str, str]]]
) -> None:
    claims = [claim(f"c{i}", *devices, pods=(f"pod-{i}",)) for i, devices in enumerate(allocated)]
    found = count_usage(slices, claims)
    newest = {s["spec"]["pool"]["name"]: 0 for s in slices}
    for s in slices:
        newest[s["spec"]["pool"]["name"]] = max(newest[s["spec"]["pool"]["name"]], s["spec"]["pool"]["generation"])
    published = {
        (s["spec"]["pool"]["name"], d["name"])
        for s in slices
        if s["spec"]["pool"]["generation"] == newest[s["spec"]["pool"]["name"]]
        for d in s["spec"]["devices"]
    }
    held = [(f"ml/c{i}", pool, device) for i, devices in enumerate(allocated) for pool, device in devices]
    rows = Counter((r.pool, r.name) for r in found.devices)
    assert rows == Counter(published | {(pool, device) for _, pool, device in held})
    assert Counter((h.claim, r.pool, r.name) for r in found.devices for h in r.holders) == Counter(held)
    for row in found.devices:
        published_now = (row.pool, row.name) in published
        assert row.use is (
            DeviceUse.VANISHED if not published_now else DeviceUse.HELD if row.holders else DeviceUse.FREE
        )


@given(before=SLICES, after=SLICES, first=CLAIMS, then=CLAIMS)
def test_a_tally_made_after_another_is_what_it_would_be_alone(
    before: list[JSON], after: list[JSON], first: list[list[tuple[str, str]]], then: list[list[tuple[str, str]]]
) -> None:
    tallier = UsageCounter()
    tallier.tally(before, [claim(f"c{i}", *d) for i, d in enumerate(first)])
    slices, claims = [*before[:2], *after], [claim(f"c{i}", *d) for i, d in enumerate(then)]
    assert tallier.tally(slices, claims) == count_usage(slices, claims)


def test_a_partition_is_blocked_while_others_hold_the_counters_that_it_draws_from() -> None:
    shared = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    parts = [{"name": f"half-{i}", "consumesCounters": counters("gpu-0", memory="40Gi")} for i in range(2)]
    whole = {"name": "whole", "consumesCounters": counters("gpu-0", memory="80Gi")}
    slices = [slice_of("n1", [*parts, whole], of=2), slice_of("", [], pool="n1", of=2, sharedCounters=shared)]
    found = count_usage(slices, [claim("c", ("n1", "half-0"))])
    assert {r.name: r.use for r in found.devices} == {
        "half-0": DeviceUse.HELD,
        "half-1": DeviceUse.FREE,
        "whole": DeviceUse.BLOCKED,
    }
    (counted,) = found.sets
    assert (counted.node, counted.meters[0].used, counted.meters[0].total, counted.meters[0].share) == (
        "n1", "40Gi", "80Gi", 0.5,
    )  # fmt: skip
    admin = count_usage(slices, [claim("c", ("n1", "half-0"), adminAccess=True)])
    assert {r.name: r.use for r in admin.devices}["whole"] is DeviceUse.FREE
    assert admin.devices[0].holders[0].admin


def test_a_shared_device_shows_how_much_of_its_capacity_is_taken() -> None:
    device = {"name": "d", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    claims = [claim(f"c{i}", ("n1", "d"), shareID=str(i), consumedCapacity={"memory": "20Gi"}) for i in range(3)]
    (row,) = count_usage([slice_of("n1", [device])], claims).devices
    assert (row.use, row.meters[0].used, row.meters[0].share) == (DeviceUse.SHARED, "60Gi", 0.75)
    assert row.holders[0].amounts == {"memory": "20Gi"}


def test_root_and_numa_node_are_found_by_the_standard_names_and_by_a_drivers_own() -> None:
    standard = {A + "pcieRoot": {"string": "pci0000:17"}, A + "numaNode": {"int": 1}}
    listed = {A + "numaNode": {"ints": [0, 1]}}
    own = {"gpu.example.com/pcie_root": {"string": "r"}, "numa": {"int": 0}}
    rows = count_usage(
        [slice_of("n", [{"name": str(i), "attributes": a} for i, a in enumerate((standard, listed, own))])], []
    )
    assert [(r.root, r.numa) for r in rows.devices] == [("pci0000:17", "1"), ("", "0, 1"), ("r", "0")]


def test_taints_and_what_drivers_state_in_the_claims_status_are_reported() -> None:
    taints = [{"key": "a.example.com/sick", "value": "ecc", "effect": "NoExecute"}, {"key": "b", "effect": "None"}]
    held = claim("c", ("n1", "d"), bindingConditions=["Ready"], pods=("p",))
    held["status"]["devices"] = [
        {
            "driver": DRIVER, "pool": "n1", "device": "d", "networkData": {"interfaceName": "eth1", "ips": ["10.0.0.1/24"]},
            "conditions": [{"type": "Link", "status": "False", "reason": "Down", "message": "no\ncarrier"}],
        }
    ]  # fmt: skip
    (row,) = count_usage([slice_of("n1", [{"name": "d", "taints": taints}])], [held]).devices
    assert (row.health, row.taints) == (HealthRow.TAINTED, ("a.example.com/sick=ecc:NoExecute", "b:None"))
    assert row.holders[0].conditions == ("Link is False: Down: no carrier", "Ready is awaited")
    assert (row.holders[0].network, row.holders[0].pods) == ("eth1 10.0.0.1/24", ("ml/p",))


@pytest.mark.parametrize("spoil", [
    lambda s: s["spec"].pop("pool"), lambda s: s["spec"].update(devices=[{"name": "d", "capacity": {"m": {"value": "lots"}}}]),
    lambda s: s["spec"].update(devices=["d"]), lambda s: s.update(spec=None),
])  # fmt: skip
def test_a_slice_without_a_slices_form_is_named_and_left_out_alone(spoil: Any) -> None:
    odd = slice_of("n2", [{"name": "d"}])
    spoil(odd)
    found = count_usage([odd, slice_of("n1", [{"name": "d"}])], [{"metadata": {"name": "c"}, "status": "odd"}])
    assert [r.node for r in found.devices] == ["n1"]
    assert [n.partition(", cannot be read, and is left out: ")[0] for n in found.notes] == [
        "a claim, c",
        "a slice, s-n2-1-1",
    ]


def test_a_pool_that_is_not_complete_is_named() -> None:
    assert "has 1 of 2 slices" in count_usage([slice_of("n1", [{"name": "d"}], of=2)], []).notes[0]


def test_a_held_device_is_not_gone_while_slices_of_its_pool_are_still_to_come() -> None:
    old = slice_of("n1", [{"name": "d0"}, {"name": "d1"}], pool="p")
    half = slice_of("n1", [{"name": "d0"}], pool="p", generation=2, of=2)
    claims = [claim("c", ("p", "d1"))]
    uses = {d.name: d.use for d in count_usage([old, half], claims).devices}
    assert uses == {"d0": DeviceUse.FREE, "d1": DeviceUse.HELD}
    whole = slice_of("n1", [{"name": "d0"}], pool="p", generation=2)
    assert {d.name: d.use for d in count_usage([whole], claims).devices} == {
        "d0": DeviceUse.FREE,
        "d1": DeviceUse.VANISHED,
    }


def test_a_claim_that_a_group_of_pods_has_is_reserved_for_the_group() -> None:
    given = claim("c", ("n1", "d0"))
    given["status"]["reservedFor"] = [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "g"}
    ]
    (row,) = count_usage([slice_of("n1", [{"name": "d0"}])], [given]).devices
    assert row.holders[0].pods == ("podgroups ml/train",)
    assert "reserved for podgroups ml/train" in "\n".join(details.device(row, []))


async def test_a_taint_of_the_drivers_own_is_counted_by_its_page_though_the_device_is_well() -> None:
    inventory = Inventory("n1")
    await inventory.update(
        [Pool("n1", [Device("d0", taints=[Taint(key="toy.example.com/reserved", effect="NoSchedule")]), Device("d1")])]
    )
    await inventory.set_health({}, inventory._clock())
    found = own_overview("n1", DRIVER, inventory, ClaimSnapshot())
    assert {d.name: d.health for d in found.devices} == {"d0": HealthRow.TAINTED, "d1": HealthRow.HEALTHY}
    assert found.count.bad == 1


def test_the_table_reports_which_nodes_are_away() -> None:
    found = Overview("cluster", nodes=(NodeRow("n1", unschedulable="not ready"), NodeRow("n2")))
    assert [line for line in table(found, Style(coloured=False)) if line.startswith("note")] == [
        "note: n1 is not ready"
    ]


def test_a_node_has_the_devices_that_reach_it_by_name_label_or_all() -> None:
    term = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}]}
    slices = [
        slice_of("n1", [{"name": "own"}]),
        slice_of("n2", [{"name": "other"}]),
        slice_of("", [{"name": "all"}], pool="all", allNodes=True),
        slice_of("", [{"name": "rack"}], pool="rack", nodeSelector=term),
        slice_of(
            "",
            [{"name": "x", "nodeName": "n1"}, {"name": "y", "nodeName": "n2"}],
            pool="per",
            perDeviceNodeSelection=True,
        ),
    ]
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": n, "labels": {"rack": r}},
            "spec": {"unschedulable": n == "n2"},
        }
        for n, r in (("n1", "a"), ("n2", "b"))
    ]
    snapshot = Snapshot.of([*slices, *nodes])
    assert {d.name for d in overview(snapshot, "n1").devices} == {"own", "all", "rack", "x"}
    assert {d.name for d in overview(snapshot, "n2").devices} == {"other", "all", "y"}
    assert overview(snapshot, "n3").notes == ("there is no node n3",)
    whole = overview(snapshot)
    assert whole.count.devices == 6
    assert [(n.name, n.devices, n.unschedulable) for n in whole.nodes] == [("n1", 2, ""), ("n2", 2, "cordoned")]


def test_pods_that_want_devices_and_do_not_run_wait_the_oldest_first() -> None:
    def pod(name: str, made: str, phase: str = "Pending", **spec: Any) -> JSON:
        spec = {"containers": [{"name": "c"}], "resourceClaims": [{"name": "x", "resourceClaimName": "c"}], **spec}
        said = [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]
        meta = {"name": name, "namespace": "ml", "creationTimestamp": made}
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase, "conditions": said},
        }  # fmt: skip

    pods = [
        pod("new", "2026-02-01T00:00:00Z"), pod("old", "2026-01-01T00:00:00Z"), pod("runs", "2026-01-01T00:00:00Z", "Running"),
        pod("plain", "2026-01-01T00:00:00Z", resourceClaims=[]), pod("there", "2026-03-01T00:00:00Z", nodeName="n2"),
    ]  # fmt: skip
    snapshot = Snapshot.of(pods)
    old = snapshot.pods[1]["metadata"]["uid"]
    found = overview(snapshot, reasons={old: "because"}).waiting
    assert [(p.name, p.requests, p.message, p.reason) for p in found] == [
        ("old", ("c",), "0/1 nodes are available", "because"),
        ("new", ("c",), "0/1 nodes are available", ""),
        ("there", ("c",), "0/1 nodes are available", ""),
    ]
    assert [p.name for p in overview(snapshot, "n1").waiting] == ["old", "new"]


def rows_of(number: int) -> Overview:
    devices = [
        {"name": f"gpu-{i}", "attributes": {A + "numaNode": {"int": i % 2}, "model": {"string": "H100"}}}
        | ({"taints": [{"key": "sick", "effect": "NoSchedule"}]} if i == 3 else {})
        for i in range(number)
    ]
    return Overview(
        "cluster", count_usage([slice_of("n1", devices)], [claim("c", ("n1", "gpu-2"), pods=("p",))]).devices
    )


def test_groups_and_orders_count_as_people_do() -> None:
    rows = rows_of(12).devices
    (group,) = arranged(rows)
    assert [r.name for r in group.devices] == [f"gpu-{i}" for i in range(12)]
    assert (group.held, group.bad) == (1, 1)
    assert [g.title for g in arranged(rows, Grouping.NUMA)] == ["n1  NUMA 0", "n1  NUMA 1"]
    firsts = {o: arranged(rows, Grouping.NODE, o)[0].devices[0].name for o in Order}
    assert firsts == {"name": "gpu-0", "use": "gpu-2", "health": "gpu-3", "holder": "gpu-2"}
    assert arranged(rows, backwards=True)[0].devices[0].name == "gpu-11"
    for names in (
        ["a", "a9", "a10", "b"],
        ["p-03", "p-07", "p-0b", "p-13", "p-8b", "p-c3", "p-cb", "p-d3"],
        ["", "n-1", "n-1-x"],
    ):
        assert sorted([*reversed(names)], key=natural) == names


@pytest.mark.parametrize(("words", "names"), [
    ("", 12), ("GPU-1", 3), ("numa=1", 6), ("numa=1 gpu-1", 2), ("!numa=1", 6), ("model=h100 held", 1), ("ml/p", 1), ("nobody", 0),
    ("tainted", 1), ("!", 12),
])  # fmt: skip
def test_a_filter_is_words_that_must_all_be_there(words: str, names: int) -> None:
    assert len(matching(rows_of(12).devices, words)) == names


# --- the page -----------------------------------------------------------------------------------


def request(path: str = "/overview.json", method: str = "GET", **headers: str) -> Request:
    given = {"host": "127.0.0.1:80"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return Request(method, path, {}, given, b"")


def test_the_page_may_run_its_own_script_and_style_alone_and_has_nothing_from_elsewhere() -> None:
    found = usage_page.page()
    policy = found.headers["Content-Security-Policy"]
    text = found.body.decode()
    for kind in ("script", "style"):
        (inline,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|\son\w+=|style=", text)


def test_rows_that_the_page_has_are_not_sent_again() -> None:
    found = rows_of(3)
    first = usage_page.rows(request(), found)
    assert msgspec.json.decode(first.body)["devices"][2]["holders"][0]["claim"] == "ml/c"
    again = usage_page.rows(request(if_none_match=first.headers["ETag"]), replace(found, at=9.0))
    assert (again.status, again.body) == (304, b"")
    assert usage_page.rows(request(if_none_match=first.headers["ETag"]), rows_of(4)).status == 200


@pytest.mark.parametrize(("asked", "status"), [
    (request(), 0),
    (request(host="localhost:8080"), 0),
    (request(host="[::1]:8080"), 0),
    (request(host="node-1:8080"), 0),
    (request(host="evil.example.com"), 403),
    (request(host=""), 403),
    (request(origin="http://127.0.0.1:80"), 0),
    (request(origin="http://127.0.0.1:81"), 403),
    (request(origin="null"), 403),
    (request(sec_fetch_site="same-origin"), 0),
    (request(sec_fetch_site="cross-site"), 403),
    (request(sec_fetch_site="same-site"), 403),
    (request("/", sec_fetch_site="cross-site"), 0),  # a link from a dashboard: the page holds no data
    (request(method="POST"), 405),
    (request(method="DELETE"), 405),
])  # fmt: skip
def test_only_this_servers_page_is_answered_and_only_reads(asked: Request, status: int) -> None:
    refused = usage_page.refusal(asked, {"node-1"})
    assert (refused.status if refused else 0) == status


async def no_claims() -> ClaimSnapshot:
    return ClaimSnapshot()


@pytest.mark.parametrize(("peer", "here"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.7", False),
    ("::ffff:10.0.0.7", False), ("fe80::1%eth0", False), ("", False),
])  # fmt: skip
async def test_a_plugins_page_is_for_its_own_machine_and_port_forwarding(peer: str, here: bool) -> None:
    asked = replace(request("/"), peer=peer)
    assert is_from_here(asked) is here
    found = await render_page(asked, "n1", DRIVER, Inventory("n1"), no_claims, [])
    assert found.status == (200 if here else 403)
    assert here or b"kubectl port-forward" in found.body


@pytest.mark.parametrize("headers", [
    {"x_forwarded_for": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}, {"via": "1.1 envoy"}, {"host": "10.244.1.7:8080"},
])  # fmt: skip
async def test_what_a_sidecar_passes_on_is_not_from_here_though_it_comes_over_the_loopback(
    headers: dict[str, str],
) -> None:
    asked = replace(request("/overview.json", **headers), peer="127.0.0.6")
    found = await render_page(asked, "n1", DRIVER, Inventory("n1"), no_claims, [])
    assert found.status == 403


# --- what a plugin knows ------------------------------------------------------------------------


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
    encoded = msgspec.json.encode(found)
    assert b"s3cret" not in encoded
    keys = set(msgspec.json.decode(encoded))
    assert keys == set(msgspec.json.decode(msgspec.json.encode(overview(Snapshot()))))


async def test_reasons_do_not_grow_with_the_changes_of_a_pod_that_waits_for_ever() -> None:
    reasons = BackgroundExplainer(cast(ClusterWatcher, None))
    for i in range(3000):
        reasons._found[f"likeness {i}"] = _Found("why", i, 0.0)
        reasons._update_lines({"u1": f"likeness {i}"})
    assert reasons.lines == {"u1": "why"}
    assert len(reasons._found) <= 1001
