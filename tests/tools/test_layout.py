"""The map in CONTRIBUTING.md equals the tree, the tests of each package have its structure, and cluster processes load no other package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools import structure
from tests.tools.tree import PACKAGES, ROOT, SOURCES, Package

NAMED_FOLDERS = {"docs", "helpers", "release", "system", "tools", "vectors"}
"""Folders of the framework's tests for what belongs to no folder of one package."""
FIRST_LEVEL = 22
each_package = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
_ENTRY = re.compile(r"^( {6}(?:  )*)([\w.]+/?)(?: |$)")


def block(package: Package) -> list[tuple[str, str]]:
    """Returns the lines of a package's block in the map of CONTRIBUTING, each with the path of its entry below the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found: list[tuple[str, str]] = []
    above: list[str] = []
    for line in text.partition(f"    {package.source.relative_to(ROOT)}/\n")[2].splitlines():
        entry = _ENTRY.match(line)
        if not line.startswith("      "):
            break
        if entry is not None and not line.startswith(" " * 30):
            above = [*above[: (len(entry[1]) - 6) // 2], entry[2]]
        found.append(("".join(above), line))
    return found


@each_package
def test_the_map_of_contributing_equals_the_tree(package: Package) -> None:
    """The map has every folder of a package that contains files, and the files of its first level."""
    folders = {p.parent for p in package.source.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    below = {f"{p.relative_to(package.source)}/" for p in folders if p != package.source and "templates" not in p.parts}
    assert {path for path, _ in block(package)} == below | {p.name for p in package.source.iterdir() if p.is_file()}


def test_the_files_that_the_map_names_exist() -> None:
    named = [
        package.source / path / name
        for package in PACKAGES.values()
        for path, line in block(package)
        for name in re.findall(r"\(`([\w/]+\.py)`\)", line)
    ]
    assert len(named) >= 10
    assert [str(file) for file in named if not file.is_file()] == []


@each_package
def test_the_first_level_of_a_package_has_few_entries(package: Package) -> None:
    assert len([p for p in package.source.iterdir() if p.name != "__pycache__"]) <= FIRST_LEVEL


def folders_with_modules(package: Package) -> set[Path]:
    """Returns every subpackage with modules, as a relative path. Generated stubs and templates do not count."""
    modules = (p.relative_to(package.source) for p in package.source.rglob("*.py") if p.name != "__init__.py")
    return {m.parent for m in modules if not {"_proto", "templates"} & {*m.parts}}


@each_package
def test_each_folder_of_a_package_has_tests_at_its_path(package: Package) -> None:
    without = [str(p) for p in folders_with_modules(package) if not list((package.tests / p).glob("test_*.py"))]
    assert without == [], "each folder needs a test file in the folder of its package's tests with the same path"


@each_package
def test_each_test_file_is_named_after_a_module_of_its_folder_or_after_the_folder(package: Package) -> None:
    wrong = []
    for test in (p.relative_to(package.tests) for p in package.tests.rglob("test_*.py")):
        if test.parts[0] in NAMED_FOLDERS:
            continue
        folder = package.source / test.parent
        names = {p.stem for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/__init__.py")}
        if not any(
            f"{test.stem}_".startswith(f"test_{name}_")
            for name in {*names, folder.name, *([package.name] if folder == package.source else [])}
        ):
            wrong.append(str(test))
    assert wrong == [], "no module with this name at this path: see CONTRIBUTING.md, Tests"


@each_package
def test_each_folder_of_tests_is_the_path_of_a_folder_of_the_package_or_a_named_folder(package: Package) -> None:
    files = (
        p.relative_to(package.tests) for p in package.tests.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    )
    folders = {f.parent for f in files if len(f.parts) > 1 and f.parts[0] not in NAMED_FOLDERS}
    assert [str(f) for f in sorted(folders) if not (package.source / f / "__init__.py").is_file()] == []


def test_cluster_processes_load_neither_another_package_nor_commands() -> None:
    program = (
        "import sys\n"
        "from dra_kubeletplugin.plugin import node, webhook\n"
        "from dra_kubeletplugin.plugin.controller import controller\n"
        "print(*sorted(m for m in sys.modules if m.startswith('dra_')))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert [
        m for m in out.split() if not m.startswith("dra_kubeletplugin") or m.startswith("dra_kubeletplugin.cli")
    ] == []


# --- the lint of class names and constructors -------------------------------------------------------------


def classes_of(source: str, *places: tuple[str, str]) -> Iterator[tuple[Path, ast.ClassDef]]:
    """Yields the classes of ``source`` for each place: a package and a module in it."""
    for package, module in places:
        path = (PACKAGES[package].source / module).relative_to(ROOT)
        yield from ((path, node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))


def test_the_lint_reports_a_duplicate_name_in_one_package_but_not_in_two() -> None:
    source = "class _X: pass"
    (fault,) = structure.faults(classes_of(source, ("tools", "a.py"), ("tools", "b.py"), ("devkit", "a.py")))
    places = "packages/tools/src/dra_tools/a.py:1, packages/tools/src/dra_tools/b.py:1"
    assert fault == f"_X is the name of 2 classes of a package: {places}"
    assert not list(structure.faults(classes_of(source, ("tools", "a.py"), ("devkit", "a.py"))))


def test_the_lint_counts_every_parameter_of_a_constructor_except_self() -> None:
    seven = "class X:\n    def __init__(self, a, b, c, /, d, e, *, f, g): pass"
    assert not list(structure.faults(classes_of(seven, ("tools", "m.py"))))
    (fault,) = structure.faults(classes_of(seven.replace("g)", "g, h)"), ("tools", "m.py")))
    assert fault == "packages/tools/src/dra_tools/m.py:1: the constructor of X has 8 parameters, more than 7"


def test_every_folder_of_sources_exists() -> None:
    assert [str(s) for s in SOURCES if not (s / "__init__.py").is_file()] == []
