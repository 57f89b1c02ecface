"""``make check``: runs the tests of the files that changed since the last commit, for at most a minute in total.

Changed test files run first. Then the tests of a changed module run: ``tests/claims/test_rollback.py`` and ``test_rollback_*.py``
for ``claims/rollback.py``. After them run test files that import the module, other tests of its package, and test files that
import the package. For a file that is no module, tests that name it and the tests of its folder run. Tests that would start too
late are skipped. The command prints the omitted test files, and ``make test`` runs them.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SECONDS = 48.0  # from the start of `make check` until the last test may start
_MIN_SECONDS = (
    20.0  # The minimum of seconds for tests. Lint and types may take most of the minute, for example without a cache.
)
_MAX_FILES = 25  # The maximum of test files in one run, because each worker imports all of them.
_START_VARIABLE = "MAKE_CHECK_BEGUN"  # the environment variable with the start time of `make check`
DEADLINE = pytest.StashKey[float]()
"""In the configuration of pytest: the time after which no test starts."""


def pytest_collection_finish(session: pytest.Session) -> None:
    now = time.time()
    session.config.stash[DEADLINE] = max(float(os.environ.get(_START_VARIABLE, now)) + _SECONDS, now + _MIN_SECONDS)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > item.config.stash[DEADLINE]:
        pytest.skip("the minute of `make check` has passed; `make test` runs this test")


def changed(root: Path = ROOT) -> list[Path]:
    """Returns new files and files that differ from the last commit, relative to the root."""
    commands = (["git", "diff", "--name-only", "HEAD"], ["git", "ls-files", "--others", "--exclude-standard"])
    names = "".join(subprocess.run(c, cwd=root, capture_output=True, text=True, check=True).stdout for c in commands)
    return [p for p in map(Path, sorted(names.splitlines())) if (root / p).is_file()]


def module(path: Path) -> str:
    """Returns the import name of a file of this tree."""
    parts = path.with_suffix("").parts
    if "src" in parts:
        parts = parts[parts.index("src") + 1 :]
    return ".".join(parts).removesuffix(".__init__")


def imports(path: Path, text: str) -> Iterator[str]:
    """Yields the modules, and the names in modules, that a file imports."""
    package = module(path).split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parts, *filter(None, [node.module])])
            yield source
            yield from (f"{source}.{name.name}" for name in node.names)


def folder_of_tests(path: Path) -> Path:
    """Returns the folder with the tests of a file. tests/ has the same structure as the package and the other folders."""
    parts = path.parts
    if parts[0] == "drivers":
        return Path(*parts[:2], "tests")
    if parts[0] == "src":
        return Path("tests", *parts[2:-1])
    return Path(*parts[:-1]) if parts[0] == "tests" else Path("tests", parts[0])


def tests_of(files: list[Path], root: Path = ROOT) -> dict[Path, int]:
    """Returns the test files of changed files with their distances, the smallest distance first."""
    tests = [p.relative_to(root) for folder in ("tests", "drivers") for p in (root / folder).rglob("test_*.py")]
    texts = {test: (root / test).read_text() for test in sorted(tests)}
    found: dict[Path, int] = {}
    for file in files:
        for test, text in texts.items():
            distance = 0 if test == file else _distance(file, test, text)
            if distance is not None:
                found[test] = min(distance, found.get(test, distance))
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def _distance(file: Path, test: Path, text: str) -> int | None:
    """Returns the distance between a test file and a changed file, or None if they are unrelated."""
    if file.name.startswith("test_") and file.suffix == ".py":
        return None  # a test file has no tests
    folder = folder_of_tests(file)
    if file.suffix != ".py":
        return 3 if file.name in text else 4 if folder in test.parents else None
    same_folder = test.parent == folder
    if same_folder and ("drivers" in file.parts or test.stem == f"test_{file.stem}" or file.stem == "conftest"):
        return 1
    if same_folder and test.stem.startswith(f"test_{file.stem}_"):
        return 2
    name = module(file)
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    imported = set(imports(test, text)) if name.rpartition(".")[2] in text or package in text else set()
    distances = {3: name in imported, 4: same_folder and file.parts[0] == "src", 5: package in imported}
    return next((distance for distance, applies in distances.items() if applies), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--leave-out", required=True, help="markers of tests to exclude because they take too long")
    args, pytest_arguments = parser.parse_known_args()
    files = changed()
    tests = list(tests_of(files))
    if not tests:
        print(
            "no file changed since the last commit" if not files else "the changed files have no tests: run `make test`"
        )
        return 0
    if further := tests[_MAX_FILES:]:
        print(f"only `make test` runs {len(further)} further test files of the changes: {' '.join(map(str, further))}")
    tests = tests[:_MAX_FILES]
    argv = [
        "-q",
        "-n",
        str(min(args.workers, len(tests))),
        "-m",
        f"not ({args.leave_out})",
        "-p",
        __spec__.name,
        *pytest_arguments,
    ]
    code = subprocess.run([sys.executable, "-m", "pytest", *argv, *map(str, tests)], cwd=ROOT, check=False).returncode
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


if __name__ == "__main__":
    sys.exit(main())
