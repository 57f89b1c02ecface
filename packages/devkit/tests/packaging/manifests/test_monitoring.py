"""Tests deploy/monitoring: rules and dashboard use only existing metrics, and each alert fires for its fault only."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from dra_devkit.testing import node_with
from dra_kubeletplugin import Health, RetryableError
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.claims.store.records import file_name
from packages.devkit.tests.packaging.manifests.prometheus import (
    FOLDER,
    PROMTOOL,
    becomes,
    needs_prometheus,
    needs_promtool,
    prometheus,
    rules,
    scraping,
    selects,
)
from tests.helpers.drivers import HealthReportingDriver, Toy
from tests.helpers.ports import free_port

METRICS = Path(__file__).parents[5] / "docs" / "metrics.md"
# Labels that a scrape adds, by Prometheus itself or by relabel_configs of scrape.yaml.
SCRAPED = {"job", "instance", "node", "driver", "namespace", "pod"}
_WORDS = {
    "sum", "by", "rate", "increase", "max", "min", "min_over_time", "absent", "and", "or", "on", "without", "count", "time",
    "histogram_quantile", "label_values", "vector", "unless", "ignoring",
}  # fmt: skip
_RANGE = re.compile(r"\[[^\]]*\]")
_SELECTOR = re.compile(r"([a-z_]+)\{([^}]*)\}")
_GROUP = re.compile(r"\bby \(([^)]*)\)")


def measured() -> dict[str, set[str]]:
    """Returns the labels of each series that the code exports."""
    out: dict[str, set[str]] = {"up": set()}
    for line in METRICS.read_text().splitlines():
        if match := re.match(r"\| `(dra_\w+)` \| (\w+) \| (.*?) \|", line):
            name, kind, labels = match[1], match[2], set(re.findall(r"`(\w+)`", match[3]))
            if kind == "histogram":
                out |= {f"{name}_bucket": {*labels, "le"}, f"{name}_sum": labels, f"{name}_count": labels}
            else:
                out[name] = labels
    return out


def unknown(expression: str) -> list[str]:
    """Returns names and labels of an expression that do not exist."""
    known, wrong = measured(), []
    text = _RANGE.sub("", expression)
    labels_of = {name: labels | SCRAPED for name, labels in known.items()}
    for name, inside in _SELECTOR.findall(text):
        for label in re.findall(r"(\w+)\s*[=!]~?", re.sub(r'"[^"]*"', '""', inside)):
            if label not in labels_of.get(name, set()):
                wrong.append(f"{label} of {name}")
    bare = re.sub(r'"[^"]*"', "", re.sub(r"\{[^}]*\}", "", text))
    named = {w for w in re.findall(r"[a-z_]{2,}", bare) if w.startswith("dra_") or w == "up"}
    wrong += sorted(named - known.keys())
    has = set().union(*(labels_of[n] for n in named & known.keys()))
    grouped = {label.strip() for group in _GROUP.findall(bare) for label in group.split(",")}
    if "label_values" in bare:
        grouped |= set(re.findall(r", (\w+)\)", bare))
    wrong += sorted(grouped - has)
    wrong += sorted(set(re.findall(r"[a-z_]{2,}", bare)) - named - grouped - _WORDS)
    return wrong


def dashboard() -> JSON:
    found: JSON = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    """Yields the title and the expression of each query of the dashboard."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r["alert"])
def test_a_rule_uses_existing_metrics_and_has_a_complete_description(rule: JSON) -> None:
    assert unknown(rule["expr"]) == []
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    notes = rule["annotations"]
    assert notes.keys() == {"summary", "description", "runbook_url"}
    # The expression must keep the labels that the summary uses.
    if groups := _GROUP.findall(rule["expr"]):
        kept = {label.strip() for label in groups[-1].split(",")}
        assert set(re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"])) <= kept


def test_the_check_finds_metrics_and_labels_that_do_not_exist() -> None:
    assert unknown("dra_device > 0") == ["dra_device"]
    assert unknown('dra_devices{healthy="x"}') == ["healthy of dra_devices"]
    assert unknown("sum by (operation) (dra_devices)") == ["operation"]
    assert unknown("sun(dra_devices)") == ["sun"]


@pytest.mark.parametrize("expression", [pytest.param(e, id=title) for title, e in dashboard_expressions()])
def test_the_dashboard_uses_existing_metrics(expression: str) -> None:
    assert unknown(expression.replace("$__rate_interval", "5m")) == []


def test_the_dashboard_shows_every_metric_and_filters_with_variables() -> None:
    expressions = " ".join(e for _, e in dashboard_expressions())
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in measured()} - {"up"}
    # These are details of dra_publish_failing and dra_feature_gate_disabled, which are shown.
    hidden = {"dra_discovery_hanging", "dra_publisher", "dra_dropped_fields_total", "dra_records_damaged_total"}
    assert {f for f in families if f not in expressions} == hidden
    board = dashboard()
    assert board["schemaVersion"] >= 39
    assert [v["name"] for v in board["templating"]["list"]] == ["datasource", "driver", "node"]
    for variable in board["templating"]["list"][1:]:
        assert unknown(variable["definition"]) == []
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(set(places)) == len(places)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in board["panels"])
    assert len({p["id"] for p in board["panels"]}) == len(places)


def test_the_files_of_the_prometheus_operator_match_the_plain_files() -> None:
    rule = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())
    assert rule["spec"] == yaml.safe_load((FOLDER / "alerts.yaml").read_text()), "run `make docs`"

    def plain(relabeling: JSON) -> JSON:
        return {"source_labels": relabeling["sourceLabels"], "target_label": relabeling["targetLabel"]} | {
            k: v for k, v in relabeling.items() if k in {"regex", "replacement"}
        }

    monitor = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    of_operator = [plain(r) for r in endpoint["relabelings"]]
    # The operator itself selects pods and ports, and adds the labels for their namespace and name.
    of_scrape = [
        r
        for r in scraping()["relabel_configs"]
        if r.get("action") != "keep" and r["target_label"] not in {"namespace", "pod"}
    ]
    assert of_operator == of_scrape


# --- promtool ---------------------------------------------------------------------------------------


def tool(*arguments: str | Path) -> None:
    assert PROMTOOL
    done = subprocess.run([PROMTOOL, *arguments], check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    tool("check", "rules", FOLDER / "alerts.yaml")


@needs_promtool
def test_each_alert_fires_in_one_case_and_does_not_fire_in_another(tmp_path: Path) -> None:
    cases = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())
    fires, quiet = set(), set()
    for group in cases["tests"]:
        for case in group["alert_rule_test"]:
            (fires if case["exp_alerts"] else quiet).add(case["alertname"])
    assert fires == quiet == {r["alert"] for r in rules()}
    source = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    for group in source["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]  # otherwise each case would have to repeat them
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(source))
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({**cases, "rule_files": ["rules.yaml"]}))
    tool("test", "rules", tmp_path / "test.yaml")


# --- a real Prometheus and a plugin with faults -----------------------------------------------------


@needs_prometheus
@pytest.mark.timeout(400)
async def test_alerts_fire_and_end_with_faults_of_a_scraped_plugin(tmp_path: Path) -> None:
    class Broken(HealthReportingDriver):
        report: ClassVar[dict[str, Health]] = {}

    async with node_with(Broken, http_address="127.0.0.1:0", rescan_interval=0.3, health_interval=0.2) as node:
        cluster = node.cluster
        async with prometheus(tmp_path, [(node.plugin.http_url, {})]) as server:
            # scrape.yaml adds the labels that the rules use
            registered = 'dra_registered{job="dra-plugin", driver="npu", node="node-1", pod="npu-x"} == 1'
            await selects(cluster, server, registered)
            for _, expression in dashboard_expressions():
                text = expression.replace("$__rate_interval", "1m").replace("$driver", ".*").replace("$node", ".*")
                await server.ask(text)  # raises an error if it does not parse
            await selects(cluster, server, 'sum(dra_prepared_claims{job="dra-plugin", driver=~".*", node=~".*"})')

            async def none_fires() -> bool:
                return not [r["alert"] for r in rules() if await server.ask(r["expr"])]

            await cluster.wait("no alert of a healthy plugin", none_fires, timeout=60)

            Broken.report = {"toy-3": Health(False, "hot")}
            await becomes(cluster, server, "DraDevicesUnhealthy")
            Broken.report = {}
            await becomes(cluster, server, "DraDevicesUnhealthy", true=False)

            Broken.fail = RetryableError("the board is busy")
            await node.apply_pod()
            (found,) = await becomes(cluster, server, "DraPrepareErrors")
            assert (found["node"], found["result"]) == ("node-1", "RETRYABLE")
            Broken.fail, Broken.fail_unprepare = None, RetryableError("stuck")
            await node.api.wait_running("pod")
            deleting = asyncio.create_task(node.api.delete_pod("pod", timeout=100))
            (found,) = await becomes(cluster, server, "DraUnprepareErrors")
            assert found["result"] == "UNDO_FAILED"
            Broken.fail_unprepare = None
            await deleting

            async with node.api.outage():
                Broken.report = {"toy-2": Health(False, "hot")}  # something to publish
                await becomes(cluster, server, "DraSlicesNotPublished")
                await becomes(cluster, server, "DraApiUnavailable")
            Broken.report = {}
            await becomes(cluster, server, "DraSlicesNotPublished", true=False)

            (node.settings.records_path / file_name("damaged")).write_bytes(b"nonsense" * 1000)
            await becomes(cluster, server, "DraRecordsDamaged")

            await node.kubelet.stop()
            node.plugin.paths.registration.unlink()
            await becomes(cluster, server, "DraPluginNotRegistered")
            await node.kubelet.start()
            await becomes(cluster, server, "DraPluginNotRegistered", true=False)

            await node.stop()
            await becomes(cluster, server, "DraPluginDown")


@needs_prometheus
async def test_an_alert_fires_for_a_killed_plugin_until_the_next_one_runs(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with (
        node_with(Toy, process=True, http_address=address) as node,
        prometheus(tmp_path, [(f"http://{address}", {})]) as server,
    ):
        await becomes(node.cluster, server, "DraPluginDown", true=False)
        await node.kill()
        (found,) = await becomes(node.cluster, server, "DraPluginDown")
        assert (found["driver"], found["node"]) == ("npu", "node-1")
        await node.start()
        await becomes(node.cluster, server, "DraPluginDown", true=False)
