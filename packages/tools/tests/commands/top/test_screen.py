"""Tests `dra top` against the local API server: table, screen, keys, missing permissions and outages."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dra_devkit.commands.style import Style
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_kubeletplugin.kube.credentials import Token
from dra_kubeletplugin.resourceapi.conversion import VERSIONS
from dra_tools import Snapshot, overview
from dra_tools.commands.top import explained_overview
from dra_tools.commands.top.table import table
from dra_tools.top import live as live_overview
from dra_tools.top.live import LiveOverview
from dra_tools.watcher import ClusterWatcher
from packages.tools.tests.accounts import NAME, RBAC, token_with_rules
from packages.tools.tests.commands.top.static_overview import StaticOverview
from tests.helpers.objects import claim, claim_spec, device_class, pod, slice_of, template
from tests.helpers.usage_examples import CARDS
from tests.helpers.usage_examples import cluster as example_cluster

pytest.importorskip("textual", reason="textual is not installed: pip install 'dra-tools[top]'")
from textual.pilot import Pilot

from dra_kubeletplugin.base.json_types import JSON
from dra_tools.commands.top.rows import Rows
from dra_tools.commands.top.screen import Sheet, Top

A = "resource.kubernetes.io/"


def devices() -> list[JSON]:
    hostile_text = {"model": {"string": "[red]<b>\x1b[31m"}}
    return [
        {
            "name": f"gpu-{i}",
            "attributes": {A + "numaNode": {"int": i % 2}, A + "pcieRoot": {"string": f"pci0000:{i}0"}, **hostile_text},
        }
        for i in range(4)
    ]


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """A node with four devices. One pod holds a device, and another pod needs nine devices."""
    async with LocalCluster() as cluster:
        await cluster.apply(
            device_class(), slice_of("node-1", devices()), template(), claim("nine", claim_spec(count=9))
        )
        await cluster.apply(pod("holds", templates=["t"]), pod("waits", claims=["nine"]))
        await cluster.wait("a claim with a device", lambda: allocated(cluster))
        yield cluster


async def allocated(cluster: LocalCluster) -> bool:
    found = await cluster.client.call("GET", "/apis/resource.k8s.io/v1/resourceclaims")
    return any((c.get("status") or {}).get("allocation") for c in found["items"])


async def dra(cluster: LocalCluster, *words: str) -> int:
    return await asyncio.to_thread(main, ["top", "--kubeconfig", str(cluster.kubeconfig), *words])


@asynccontextmanager
async def screen(
    cluster: LocalCluster, config: ApiConfig | None = None, node: str = ""
) -> AsyncIterator[tuple[Top, Pilot[None]]]:
    async with KubeClient(config or cluster.config) as client:
        live = LiveOverview(client, node, "default")
        async with live.running():
            app = Top(live, "here")
            async with app.run_test(size=(150, 40)) as pilot:
                yield app, pilot


def lines(app: Top, of: str = "#devices") -> list[str]:
    rows = app.query_one(of, Rows)
    return [rows.render_line(y).text.rstrip() for y in range(rows.size.height) if rows.render_line(y).text.strip()]


def head(app: Top) -> str:
    return " ".join(str(app.query_one(f"#{of}").render()) for of in ("head", "notes", "title"))


async def until(pilot: Pilot[None], check: Callable[[], object]) -> None:
    """Waits until the check is true. On a busy machine the screen may handle a key some time after ``press`` returned."""
    async with asyncio.timeout(30):
        while not check():
            await pilot.pause(0.05)


async def wait_for_text(app: Top, pilot: Pilot[None], text: str, read: Callable[[], str]) -> None:
    """Waits until ``read`` returns a part of the screen that contains the text."""
    await until(pilot, lambda: text in read())


async def enter_filter(app: Top, pilot: Pilot[None], text: str) -> None:
    await pilot.press("slash")
    await until(pilot, lambda: app.focused is app.query_one("#filter"))
    await pilot.press(*text, "enter")
    await wait_for_text(app, pilot, f"match {text!r}", lambda: head(app))
    await until(pilot, lambda: app.focused is app.query_one("#devices"))


async def sheet_text(app: Top, pilot: Pilot[None]) -> str:
    """Waits until a sheet is open, and returns its text."""
    await until(pilot, lambda: isinstance(app.screen, Sheet) and app.screen.query("#sheet Static"))
    return str(app.screen.query_one("#sheet Static").render())


def devices_of(app: Top) -> Callable[[], str]:
    return lambda: "\n".join(lines(app))


# --- the table ------------------------------------------------------------------------------------


async def test_once_prints_a_table_with_holders_and_the_reasons_of_waiting_pods(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await dra(cluster, "--once") == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if "default/holds" in line).split()
    assert row[:4] == ["●", "held", "gpu-0", "default/holds"]
    waits = " ".join(out[out.index("default/waits") :].split())
    assert "the node has fewer than 9 devices for request device, on the only node" in waits
    assert "\x1b" not in out


@pytest.mark.parametrize("version", VERSIONS)
async def test_json_output_is_the_same_for_each_served_api_version(
    cluster: LocalCluster, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.api.injected_faults.served = {version}
    assert await dra(cluster, "-o", "json", "--node", "node-1") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(d["name"], d["use"]) for d in found["devices"]] == [
        ("gpu-0", "held"), ("gpu-1", "free"), ("gpu-2", "free"), ("gpu-3", "free"),
    ]  # fmt: skip
    assert {p["name"] for p in found["waiting"]} == {"holds", "waits"}
    assert all(p["reason"] for p in found["waiting"])


async def test_the_filter_applies_to_json_output(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert await dra(cluster, "-o", "json", "--filter", "gpu-2") == 0
    found = json.loads(capsys.readouterr().out)
    assert [d["name"] for d in found["devices"]] == ["gpu-2"]
    assert found["waiting"] == []
    assert found["count"]["devices"] == 4, "the totals include all devices, as in the table"


async def test_without_a_terminal_or_textual_the_error_states_a_remedy(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await dra(cluster) == 2
    assert "needs a terminal: add --once" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "textual", None)
    assert await dra(cluster) == 2
    error = capsys.readouterr().err
    assert "pip install 'dra-tools[top]'" in error
    assert error.count("\n") == 1


async def test_a_cluster_without_dra_is_reported(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.api.injected_faults.served = set()
    assert await dra(cluster, "--once") == 2
    assert "this cluster does not serve resource.k8s.io" in capsys.readouterr().err


# --- the screen -----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 130, 200])
async def test_the_screen_has_the_lines_of_the_table_at_each_width(columns: int) -> None:
    found = explained_overview(example_cluster(), "", lambda text: None)
    app = Top(StaticOverview(found), "here")  # type: ignore[arg-type]
    async with app.run_test(size=(columns, 60)) as pilot:
        await pilot.pause()
        drawn = lines(app)
        printed = list(table(found, Style(coloured=False), app.query_one("#devices", Rows).size.width))
        start, end = (next(i for i, line in enumerate(printed) if line.startswith(s)) for s in ("▾", "2 pods wait"))
        # The table marks a cut line with an ellipsis; the terminal cuts the line of the screen.
        assert [line[: columns - 3] for line in drawn] == [line[: columns - 3] for line in printed[start:end] if line]
        assert "2.75 of 10 cards held" in head(app) and "2 pods wait to start" in head(app)
        await enter_filter(app, pilot, "fan")
        assert "2 pods wait to start, the filter hides 2" in head(app)
        assert lines(app)[1].split()[0] == CARDS[2]
        await pilot.press("down", "down", "enter")
        assert "▲ the fan stands still" in await sheet_text(app, pilot)


async def test_the_screen_shows_changes_of_the_cluster(cluster: LocalCluster) -> None:
    async with screen(cluster) as (app, pilot):
        await wait_for_text(app, pilot, "1 of 4 held", devices_of(app))
        assert "● held  gpu-0  default/holds" in "\n".join(lines(app))
        await cluster.apply(pod("late", templates=["t"]))
        await wait_for_text(app, pilot, "default/late", devices_of(app))
        await cluster.apply(slice_of("node-2", ["nic-0"], name="other"))
        await wait_for_text(app, pilot, "nic-0", devices_of(app))
        await cluster.client.delete(await cluster.client.dra("resourceslices"), "other")
        async with asyncio.timeout(30):
            while "nic-0" in "\n".join(lines(app)):
                await pilot.pause(0.05)


async def test_keys_filter_group_sort_fold_and_open_details(cluster: LocalCluster) -> None:
    async with screen(cluster) as (app, pilot):
        await wait_for_text(app, pilot, "gpu-3", devices_of(app))
        await enter_filter(app, pilot, "numa=1")
        assert [line.split()[2] for line in lines(app)[1:]] == ["gpu-1", "gpu-3"]
        assert "2 match 'numa=1'" in head(app)
        await pilot.press("escape")
        await until(pilot, lambda: len(lines(app)) == 5)
        titles = []
        for _ in range(4):
            before = app.grouping
            await pilot.press("g")
            await until(pilot, lambda before=before: app.grouping is not before)  # type: ignore[misc]
            titles.append(next(line for line in lines(app) if line.startswith("▾")).split("▕")[0].split())
        assert titles == [
            ["▾", "toy.example.com"], ["▾", "node-1", "root", "pci0000:00"], ["▾", "node-1", "NUMA", "0"],
            ["▾", "node-1", "no", "partitions"],
        ]  # fmt: skip
        await pilot.press("g", "s", "r")
        await until(pilot, lambda: app.backwards)
        assert "gpu-0" in lines(app)[-1], "in reverse order of use, the held device is last"
        await pilot.press("r", "s", "s", "s", "c")
        await until(pilot, lambda: len(lines(app)) == 1)
        await pilot.press("enter")
        await until(pilot, lambda: len(lines(app)) == 5)
        await pilot.press("end", "enter")
        text = await sheet_text(app, pilot)
        assert "[red]<b>\ufffd[31m" in text, "text of a driver is shown without effect of markup and control characters"
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, Sheet))
        await pilot.press("question_mark")
        assert "held by a claim" in await sheet_text(app, pilot)


async def test_a_waiting_pod_has_its_reason_and_enter_shows_the_explanation(cluster: LocalCluster) -> None:
    async with screen(cluster) as (app, pilot):
        await wait_for_text(app, pilot, "on the only node", lambda: "\n".join(lines(app, "#pods")))
        await pilot.press("tab")
        rows = app.query_one("#pods", Rows)
        await until(pilot, lambda: app.focused is rows)
        rows.cursor = next(i for i, e in enumerate(rows.entries) if "waits" in str(e.row))
        await pilot.press("enter")
        assert "9 devices of class devices" in await sheet_text(app, pilot)


async def test_a_paused_screen_does_not_change_until_it_continues() -> None:
    overviews = [overview(Snapshot.of([slice_of("node-1", [name])])) for name in ("gpu-0", "nic-0")]
    live = StaticOverview(overviews[0])
    app = Top(live, "here")  # type: ignore[arg-type]
    async with app.run_test(size=(150, 40)) as pilot:
        await wait_for_text(app, pilot, "gpu-0", devices_of(app))
        await pilot.press("p")
        await wait_for_text(app, pilot, "paused at", lambda: head(app))
        live.found = overviews[1]
        app.look()
        assert "gpu-0" in "\n".join(lines(app)) and "paused at" in head(app)
        await pilot.press("p")
        await wait_for_text(app, pilot, "nic-0", devices_of(app))


async def test_an_outage_of_the_api_server_is_shown_with_its_start_time_until_it_ends(cluster: LocalCluster) -> None:
    async with screen(cluster) as (app, pilot):
        await wait_for_text(app, pilot, "● live", lambda: head(app))
        cluster.api.injected_faults.down = True
        cluster.api.drop_connections()
        await wait_for_text(app, pilot, "the API server is unavailable", lambda: head(app))
        assert "(since " in head(app)
        assert "1 of 4 held" in "\n".join(lines(app)), "the last known state is still shown"
        cluster.api.injected_faults.down = False
        await wait_for_text(app, pilot, "● live", lambda: head(app))


async def config_with_rules(cluster: LocalCluster, *rules: JSON) -> ApiConfig:
    """Returns the configuration of an account that has only these rules."""
    return ApiConfig(cluster.config.server, cluster.config.tls, Token(await token_with_rules(cluster.client, rules)))


async def replace_rules(cluster: LocalCluster, *rules: JSON) -> None:
    role = f"{RBAC}/clusterroles/{NAME}"
    found = await cluster.client.call("GET", role)
    await cluster.client.call("PUT", role, {**found, "rules": list(rules)})


EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"]}


async def test_a_lost_permission_is_reported_and_the_last_known_state_stays(
    cluster: LocalCluster,
) -> None:
    async with screen(cluster, await config_with_rules(cluster, EVERYTHING)) as (app, pilot):
        await wait_for_text(app, pilot, "1 of 4 held", devices_of(app))
        slices = {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceslices", "deviceclasses"],
            "verbs": ["list", "watch"],
        }
        core = {"apiGroups": [""], "resources": ["*"], "verbs": ["list", "watch"]}
        await replace_rules(cluster, slices, core)
        cluster.api.drop_connections()
        await wait_for_text(
            app, pilot, "can no longer list resourceclaims: their last known state is shown", lambda: head(app)
        )
        assert "1 of 4 held" in "\n".join(lines(app))
        await replace_rules(cluster, EVERYTHING)
        async with asyncio.timeout(30):
            while "can no longer list" in head(app):
                await pilot.pause(0.05)


async def test_a_kind_whose_list_does_not_end_in_time_is_reported(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the report, the devices of unread claims look free, and the user does not know the reason."""
    monkeypatch.setattr(live_overview, "_FIRST", 2.0)
    wait_for_ever = asyncio.Event().wait

    async def follow(self: ClusterWatcher, kind: Any) -> None:
        await (wait_for_ever() if kind.resource.plural == "resourceclaims" else original(self, kind))

    original = ClusterWatcher._follow
    monkeypatch.setattr(ClusterWatcher, "_follow", follow)
    async with screen(cluster) as (app, pilot):
        text = "resourceclaims are not read yet, because the list has not ended: devices that claims hold look free"
        async with asyncio.timeout(30):  # until all other kinds are read
            while text not in (shown := head(app)) or "pods are not read" in shown:
                await pilot.pause(0.05)


async def test_missing_permissions_are_reported_and_other_objects_are_shown(cluster: LocalCluster) -> None:
    some = {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices", "deviceclasses"],
        "verbs": ["list", "watch"],
    }
    async with screen(cluster, await config_with_rules(cluster, some)) as (app, pilot):
        await wait_for_text(app, pilot, "cannot list resourceclaims", lambda: head(app))
        await wait_for_text(app, pilot, 'verb "list" on "pods"', lambda: head(app))
        await wait_for_text(app, pilot, "● live", lambda: head(app))
        await wait_for_text(app, pilot, "gpu-3", devices_of(app))
        await replace_rules(cluster, EVERYTHING)
        await wait_for_text(app, pilot, "1 of 4 held", devices_of(app))


async def test_a_small_terminal_shows_devices_despite_many_notes(cluster: LocalCluster) -> None:
    for i in range(8):
        half = slice_of("node-1", ["d"], name=f"half-{i}")
        half["spec"]["pool"] = {"name": f"half-{i}", "generation": 1, "resourceSliceCount": 2}
        await cluster.apply(half)
    async with screen(cluster) as (app, pilot):
        await pilot.resize_terminal(60, 12)
        await wait_for_text(app, pilot, "half-7", lambda: head(app))
        await pilot.pause()
        assert app.query_one("#devices").size.height >= 3


async def test_many_groups_are_folded_at_first_and_the_cursor_reaches_the_last_device() -> None:
    slices = [slice_of(f"big-{n}", [f"d{i}" for i in range(128)], name=f"big-{n}") for n in range(30)]
    app = Top(StaticOverview(overview(Snapshot.of(slices))), "here")  # type: ignore[arg-type]
    async with app.run_test(size=(150, 40)) as pilot:
        await wait_for_text(app, pilot, "big-1 ", devices_of(app))
        assert all(line.startswith("▸") for line in lines(app))
        await pilot.press("c", "end")
        await wait_for_text(app, pilot, "d127", devices_of(app))
        assert app.query_one("#devices", Rows).cursor == 30 * 129 - 1


async def test_a_refresh_after_the_end_of_the_screen_is_ignored(cluster: LocalCluster) -> None:
    async with screen(cluster) as (app, pilot):
        await wait_for_text(app, pilot, "gpu-3", devices_of(app))
    app.look()
