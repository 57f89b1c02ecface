"""A pytest plugin that runs chosen tests in the chosen order, and writes the result, the duration and the lines of each test.

It records the lines of the package that a test runs in the process of the tests, but not in child processes. Source: PEP 669.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

_TOOL = 4  # an id that neither debuggers nor coverage tools use
_plan = json.loads(Path(os.environ["MUTANTS_PLAN"]).read_text())
_package: str = _plan["package"]
_lines: set[str] = set()
_seconds: dict[str, float] = {}
_failed: set[str] = set()


def _reached(code: CodeType, line: int) -> object:
    if code.co_filename.startswith(_package):
        _lines.add(f"{code.co_filename[len(_package) :]}:{line}")
    return sys.monitoring.DISABLE  # until the next test


def pytest_configure() -> None:
    if _plan["record"]:
        sys.monitoring.use_tool_id(_TOOL, "mutants")
        sys.monitoring.register_callback(_TOOL, sys.monitoring.events.LINE, _reached)
        sys.monitoring.set_events(_TOOL, sys.monitoring.events.LINE)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if tests := _plan["tests"]:
        order = {test: i for i, test in enumerate(tests)}
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])
    else:
        first, of = _plan["share"]
        items[:] = items[first::of]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _plan["record"]:
        _lines.clear()
        sys.monitoring.restart_events()
    result = yield
    found = {"test": item.nodeid, "failed": item.nodeid in _failed, "seconds": _seconds[item.nodeid]}
    with Path(_plan["out"]).open("a") as f:
        print(json.dumps(found | {"lines": sorted(_lines)}), file=f)
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed":  # a test that is skipped detects nothing
        _failed.add(report.nodeid)
