"""Says what of the recorded answers is not compared yet; nothing of that is counted as passed."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    estimates = sum(
        "test_vectors.py::test_an_expression" in r.nodeid and r.when == "call"
        for r in terminalreporter.stats.get("passed", [])
    )
    if estimates:
        terminalreporter.write_line(
            f"not yet: {estimates} estimated maximum costs (maxCost) of CEL expressions are not compared"
        )
