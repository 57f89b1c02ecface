"""What pytest does differently here: runs the tests of a plan in its order, and writes down what became of each at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_plan = json.loads(Path(os.environ["MUTANTS_PLAN"]).read_text())
_seconds: dict[str, float] = {}
_outcome: dict[str, str] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests: dict[str, float] = _plan["tests"]
    if tests:
        wanted = sorted((i for i in items if i.nodeid in tests), key=lambda i: list(tests).index(i.nodeid))
        for item in wanted:
            item.add_marker(pytest.mark.timeout(15 + 4 * tests[item.nodeid]))
    else:
        first, of = _plan["share"]
        wanted = items[first::of]
    config.hook.pytest_deselected(items=[i for i in items if i not in set(wanted)])
    items[:] = wanted


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if _plan["trace"]:
        sys.modules["sitecustomize"].begin(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = report.nodeid
    _seconds[test] = _seconds.get(test, 0.0) + report.duration
    if report.outcome != "passed" or test not in _outcome:
        _outcome[test] = report.outcome
    if report.when == "teardown":
        with Path(_plan["out"]).open("a") as f:
            print(json.dumps({"test": test, "outcome": _outcome[test], "seconds": round(_seconds[test], 3)}), file=f)
