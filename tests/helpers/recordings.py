"""Recorded results of Kubernetes, from the folder in DRA_VECTORS or from the copy in the project."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.base.json_types import JSON

FOLDER = Path(os.environ.get("DRA_VECTORS") or Path(__file__).parents[1] / "vectors" / "data")
PARTS = 3  # tests that share the lines of a file: a test for each line would take longer than the line itself


def recorded_lines(name: str) -> list[JSON]:
    """Returns the objects of a file, one of each line."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


def cases(name: str) -> list[Any]:
    """Returns the lines of a file as parameters, for tests that take longer than one report line."""
    loaded = recorded_lines(name) if (FOLDER / f"{name}.jsonl").exists() else []
    return [pytest.param(c, id=str(c.get("id", i))) for i, c in enumerate(loaded)]


def every_case(name: str) -> Callable[[Callable[[JSON], None]], Any]:
    """Returns a decorator for a test of every line of a file. The error lists each failed line with the reason."""
    path = FOLDER / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []

    def decorate(check: Callable[[JSON], None]) -> Any:
        @pytest.mark.parametrize("part", range(PARTS) if lines else [])
        @functools.wraps(check)
        def test(part: int) -> None:
            failed = []
            for number in range(part, len(lines), PARTS):
                case = json.loads(lines[number])
                try:
                    check(case)
                except Exception as e:  # every exception is reported with its case, and the other cases still run
                    failed.append(f"{case.get('id', number)}: {type(e).__name__} {str(e)[:800]}")
            assert not failed, f"{len(failed)} of {len(lines)} lines\n" + "\n".join(failed)

        del test.__wrapped__  # pytest would treat its arguments as fixtures
        return test

    return decorate
