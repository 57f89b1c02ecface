"""A pytest plugin that runs the tests of a plan in the plan's order and writes the result of each test immediately."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .tracing import Tracer

_plan = json.loads(Path(os.environ["MUTANTS_PLAN"]).read_text())
_seconds: dict[str, float] = {}
_outcome: dict[str, str] = {}
_tracer = Tracer(_plan["trace"]) if _plan["trace"] else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests: dict[str, float] = _plan["tests"]
    if tests:
        order = {test: i for i, test in enumerate(tests)}
        wanted = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])
        for item in wanted:
            item.add_marker(pytest.mark.timeout(15 + 4 * tests[item.nodeid]))
    else:
        first, of = _plan["share"]
        wanted = items[first::of]
    config.hook.pytest_deselected(items=[i for i in items if i not in set(wanted)])
    items[:] = wanted


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _tracer:
        _tracer.restart()
    result = yield
    test = item.nodeid
    known = {"test": test, "outcome": _outcome[test], "seconds": round(_seconds[test], 3)}
    with Path(_plan["out"]).open("a") as f:
        print(json.dumps(known | ({"lines": _tracer.lines()} if _tracer else {})), file=f)
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = report.nodeid
    _seconds[test] = _seconds.get(test, 0.0) + report.duration
    if report.outcome != "passed" or test not in _outcome:
        _outcome[test] = report.outcome
