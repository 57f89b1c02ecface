"""The program of docs/operators.md runs, and the page contains every kind of reason and every required permission."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dra_tools import ReasonKind
from dra_tools.reader import EVERYTHING

PAGE = (Path(__file__).parents[2] / "docs/operators.md").read_text()


def test_the_program_prints_the_shown_output(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "operators.md", "exec"), {})  # noqa: S102 trusted text
    selector = 'device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("40Gi"))'
    assert capsys.readouterr().out.splitlines() == [
        f"1 nodes, 1 devices: its selector is false: {selector} (memory is 16Gi)",
        "1 of 3 pods fit",
    ]


@pytest.mark.parametrize("kind", list(ReasonKind))
def test_every_kind_of_reason_is_in_the_table(kind: ReasonKind) -> None:
    assert f"`{kind}`" in PAGE


@pytest.mark.parametrize("plural", [r.plural for r in EVERYTHING])
def test_the_role_lists_every_resource_that_the_commands_read(plural: str) -> None:
    assert re.search(rf"resources: \[[^\]]*\b{plural}\b", PAGE)
