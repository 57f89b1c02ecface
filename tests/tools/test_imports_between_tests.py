"""No module imports from a test module: what several test modules use is in ``tests/helpers``, or in a module beside the tests."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.tools.tree import ROOT

FOLDERS = ("tests", "packages/*/tests", "drivers", "examples", "bench")
REMAINING = {
    "packages.tools.tests.explanation.test_explain": 1,
    "packages.tools.tests.explanation.test_explain_waiting_cluster": 1,
    "packages.tools.tests.explanation.test_what_if": 2,
    "packages.tools.tests.page.test_usage_page": 1,
    "packages.tools.tests.usage.test_usage": 4,
}
"""The test modules from which other modules still import, each with the number of these modules. The numbers only fall."""


def imported_test_modules(path: Path, source: str) -> set[str]:
    """Returns the test modules from which a module imports. ``path`` is relative to the root."""

    def modules() -> Iterator[str]:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                package = [*path.parts[: -node.level]] if node.level else []
                module = ".".join([*package, *([node.module] if node.module else [])])
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)

    is_test = {name for name in modules() if name.rpartition(".")[2].startswith("test_")}
    return {name for name in is_test if name.rpartition(".")[0] not in is_test}


def test_each_form_of_an_import_from_a_test_module_is_found() -> None:
    path = Path("tests/plugin/test_a.py")
    forms = ["import tests.plugin.test_b as b", "from tests.plugin import test_b", "from tests.plugin.test_b import c"]
    for source in [*forms, "from . import test_b", "from .test_b import test_c", "def f():\n    from .test_b import c"]:
        assert imported_test_modules(path, source) == {"tests.plugin.test_b"}, source
    assert imported_test_modules(path, "from tests.helpers.drivers import Toy\nfrom .fabric import NAME") == set()


def test_no_module_imports_from_a_test_module_except_the_remaining_ones() -> None:
    files = [p for folder in FOLDERS for f in ROOT.glob(folder) for p in f.rglob("*.py") if ".venv" not in p.parts]
    assert len(files) > 500
    found = Counter(module for p in files for module in imported_test_modules(p.relative_to(ROOT), p.read_text()))
    assert found == REMAINING, "move shared code as CONTRIBUTING.md, Tests, says, and lower the number in REMAINING"
