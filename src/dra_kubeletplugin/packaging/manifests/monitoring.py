"""What a Prometheus and a Grafana need of any driver: rules, what to scrape, and a dashboard."""

from __future__ import annotations

from collections.abc import Iterator

from .kustomize import HEADER
from .source import SOURCE

FOLDER = SOURCE / "monitoring"
_OPERATORS = """apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: dra-drivers
  namespace: monitoring
spec:
"""


def files() -> Iterator[tuple[str, str]]:
    """Path below ``deploy/monitoring``, and content. The rules are there twice: the operator takes them as an object."""
    for path in sorted(FOLDER.glob("*.yaml")):
        yield path.name, HEADER + path.read_text()
    rules = (FOLDER / "alerts.yaml").read_text()
    indented = "".join(f"  {line}" for line in rules[rules.index("groups:") :].splitlines(keepends=True))
    yield "prometheusrule.yaml", HEADER + _OPERATORS + indented
    # Its description has the mark: JSON has no comments.
    yield "dashboard.json", (FOLDER / "dashboard.json").read_text()
