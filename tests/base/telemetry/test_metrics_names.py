"""Every counted metric is declared. An undeclared name raises an error in the task that counts it."""

from __future__ import annotations

import re

from dra_kubeletplugin.base.telemetry import metrics
from tests.helpers.crash.harness import ROOT

USED = re.compile(r"metrics\.(?:inc|set|observe|timed)\(\s*\"([a-z_]+)\"")


def test_every_metric_that_the_code_names_is_declared() -> None:
    declared = re.findall(
        r"^    \"([a-z_]+)\":", (ROOT / "src/dra_kubeletplugin/base/telemetry/metrics.py").read_text(), re.M
    )
    sources = (p.read_text() for p in (ROOT / "src/dra_kubeletplugin").rglob("*.py"))
    used = {name for text in sources for name in USED.findall(text)}
    assert len(used) > 10
    assert used <= set(declared), used - set(declared)
    assert metrics.Metrics()
