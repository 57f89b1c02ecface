"""The map in CONTRIBUTING.md equals the tree, tests/ has the structure of the package, and cluster processes load no upper rings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.tools import structure

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/dra_kubeletplugin"
TESTS = ROOT / "tests"
NAMED_FOLDERS = {"docs", "helpers", "release", "system", "tools", "vectors"}
FIRST_LEVEL = 22


def mapped_paths() -> set[str]:
    """Returns every path below the package that the map of CONTRIBUTING names."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lines = text.partition("    src/dra_kubeletplugin/\n")[2].partition("Beside the package:")[0].splitlines()
    found: set[str] = set()
    above: list[str] = []
    for line in lines:
        entry = re.match(r"^( {6}(?:  )*)([\w.]+/?)(?: |$)", line)
        if entry is None or line.startswith(" " * 30):
            continue
        depth = (len(entry[1]) - 6) // 2
        above = [*above[:depth], entry[2]]
        found.add("".join(above))
    return found


def existing_paths() -> set[str]:
    """Returns every folder of the package that contains files, and the files of its first level."""
    folders = {p.parent for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    below = {f"{p.relative_to(PACKAGE)}/" for p in folders if p != PACKAGE and "templates" not in p.parts}
    return below | {p.name for p in PACKAGE.iterdir() if p.is_file()}


def test_the_map_of_contributing_equals_the_tree() -> None:
    assert mapped_paths() == existing_paths()


def named_files() -> list[Path]:
    """Returns the files that the map names in parentheses, in the package of their entry."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lines = text.partition("    src/dra_kubeletplugin/\n")[2].partition("Beside the package:")[0].splitlines()
    found: list[Path] = []
    above: list[str] = []
    for line in lines:
        entry = re.match(r"^( {6}(?:  )*)([\w.]+/?)(?: |$)", line)
        if entry is not None and not line.startswith(" " * 30):
            depth = (len(entry[1]) - 6) // 2
            above = [*above[:depth], entry[2]]
        found += [PACKAGE.joinpath(*above, name) for name in re.findall(r"\(`([\w/]+\.py)`\)", line)]
    return found


def test_the_files_that_the_map_names_exist() -> None:
    files = named_files()
    assert len(files) >= 10
    assert [str(file.relative_to(PACKAGE)) for file in files if not file.is_file()] == []


def test_the_first_level_of_the_package_has_few_entries() -> None:
    assert len([p for p in PACKAGE.iterdir() if p.name != "__pycache__"]) <= FIRST_LEVEL


def packages() -> set[Path]:
    """Returns every subpackage with modules, as a relative path. Generated stubs and templates do not count."""
    modules = (p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py") if p.name != "__init__.py")
    return {m.parent for m in modules if not {"_proto", "templates"} & {*m.parts}}


def test_each_package_has_tests_at_its_path() -> None:
    without = [str(p) for p in packages() if not list((TESTS / p).glob("test_*.py"))]
    assert without == [], "each package needs a test file in the folder of tests/ with the same path"


def test_each_test_file_is_named_after_a_module_of_its_package_or_after_the_package() -> None:
    wrong = []
    for test in (p.relative_to(TESTS) for p in TESTS.rglob("test_*.py")):
        if test.parts[0] in NAMED_FOLDERS:
            continue
        package = PACKAGE / test.parent
        names = {p.stem for p in package.glob("*.py")} | {p.parent.name for p in package.glob("*/__init__.py")}
        if not any(f"{test.stem}_".startswith(f"test_{name}_") for name in {*names, package.name}):
            wrong.append(str(test))
    assert wrong == [], "no module with this name at this path: see CONTRIBUTING.md, Tests"


def test_each_folder_of_tests_is_the_path_of_a_package_or_a_named_folder() -> None:
    files = (p.relative_to(TESTS) for p in TESTS.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    folders = {f.parent for f in files if len(f.parts) > 1 and f.parts[0] not in NAMED_FOLDERS}
    assert [str(f) for f in sorted(folders) if not (PACKAGE / f / "__init__.py").is_file()] == []
    assert {p.name for p in TESTS.iterdir()} >= NAMED_FOLDERS


def test_cluster_processes_load_no_development_or_operations_packages() -> None:
    program = (
        "import sys\n"
        "from dra_kubeletplugin.plugin import node, webhook\n"
        "from dra_kubeletplugin.plugin.controller import controller\n"
        "print(*sorted(m for m in sys.modules if m.startswith('dra_kubeletplugin.')))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = {name.split(".")[1] for name in out.split()}
    assert loaded.isdisjoint({"testing", "localcluster", "analysis", "scheduling", "packaging", "cli"})


# --- the lint of class names and constructors -------------------------------------------------------------


def classes_of(**sources: str) -> list[tuple[Path, ast.ClassDef]]:
    trees = [(Path(name.replace("_", "/") + ".py"), ast.parse(source)) for name, source in sources.items()]
    return [(path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_the_lint_reports_a_duplicate_name_in_one_ring_but_not_in_two_rings() -> None:
    rings = [frozenset({"upper"}), frozenset({"a", "b"})]
    source = "class _X: pass"
    (fault,) = structure.faults(classes_of(a_m=source, b_m=source, upper_m=source), rings)
    assert fault == "_X is the name of 2 classes of one ring: a/m.py:1, b/m.py:1"
    assert not list(structure.faults(classes_of(a_m=source, upper_m=source), rings))


def test_the_lint_counts_every_parameter_of_a_constructor_except_self() -> None:
    seven = "class X:\n    def __init__(self, a, b, c, /, d, e, *, f, g): pass"
    assert not list(structure.faults(classes_of(a_m=seven), []))
    (fault,) = structure.faults(classes_of(a_m=seven.replace("g)", "g, h)")), [])
    assert fault == "a/m.py:1: the constructor of X has 8 parameters, more than 7"


def test_the_rings_are_read_from_the_import_contract() -> None:
    found = structure.rings()
    assert [sorted(packages) for packages in found[:1]] == [["cli", "packaging"]]
    folders = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file()} - {"_proto"}
    assert frozenset().union(*found) - {"errors"} == folders
