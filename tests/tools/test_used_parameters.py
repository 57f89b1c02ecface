"""Each test uses all its parameters: a parametrised test with an unused one repeats the same steps for each value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def unused(source: str) -> Iterator[tuple[str, str]]:
    """Yields each test with each parameter that its body does not use, unless the parameter's name begins with an underscore."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            parameters = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)} - {"self"}
            used = {n.id for statement in node.body for n in ast.walk(statement) if isinstance(n, ast.Name)}
            yield from ((node.name, name) for name in sorted(parameters - used) if not name.startswith("_"))


def test_each_test_uses_its_parameters_and_names_other_fixtures_with_usefixtures() -> None:
    files = [
        p
        for folder in ("tests", "packages", "drivers", "examples")
        for p in (ROOT / folder).rglob("test_*.py")
        if ".venv" not in p.parts
    ]
    assert len(files) > 400
    assert [(str(p.relative_to(ROOT)), *found) for p in files for found in unused(p.read_text())] == []


def test_unused_parameters_and_fixtures_are_found() -> None:
    assert list(unused("async def test_a(x, y, _z): assert x")) == [("test_a", "y")]
    assert list(unused("class TestA:\n    def test_a(self, *, tmp_path): pass")) == [("test_a", "tmp_path")]
    assert list(unused("def helper(x): pass\n@pytest.mark.usefixtures('x')\ndef test_a(y): y()")) == []
