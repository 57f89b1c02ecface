"""Renders monitoring files that work for any driver: Prometheus rules, scrape configuration, and a Grafana dashboard."""

from __future__ import annotations

from collections.abc import Iterator

from .source_reader import HEADER, SOURCE

FOLDER = SOURCE / "monitoring"
_OPERATORS = """apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: dra-drivers
  namespace: monitoring
spec:
"""


def monitoring_files() -> Iterator[tuple[str, str]]:
    """Yields each file's path below ``deploy/monitoring`` and its content.

    The rules are also rendered as a PrometheusRule object for the Prometheus operator.
    """
    for path in sorted(FOLDER.glob("*.yaml")):
        yield path.name, HEADER + path.read_text()
    rules = (FOLDER / "alerts.yaml").read_text()
    indented = "".join(f"  {line}" for line in rules[rules.index("groups:") :].splitlines(keepends=True))
    yield "prometheusrule.yaml", HEADER + _OPERATORS + indented
    # The mark of rendered files is in the dashboard's description, because JSON has no comments.
    yield "dashboard.json", (FOLDER / "dashboard.json").read_text()
