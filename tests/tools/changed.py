"""``make check``: runs the tests of what changed since the last commit, and ends a minute after its begin.

Changed test files run first, then the tests of a changed module (``tests/claims/test_rollback.py`` and ``test_rollback_*.py``
for ``claims/rollback.py``), then test files that import it, then the other tests of its package, then test files that import
the package. For a file that is no module, the tests of its folder and those that name it run. Tests that would start too late
are skipped. What was left out is printed: ``make test`` runs it.
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
_SECONDS = 48.0  # from the begin of `make check` until the last test may start
_LEAST = 20.0  # seconds for tests where lint and types took long, as without a cache
_FILES = 25  # test files in one run: each worker imports them all
_BEGUN = "MAKE_CHECK_BEGUN"  # the environment variable with the time at which `make check` began
_ENDS = pytest.StashKey[float]()


def pytest_collection_finish(session: pytest.Session) -> None:
    now = time.time()
    session.config.stash[_ENDS] = max(float(os.environ.get(_BEGUN, now)) + _SECONDS, now + _LEAST)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > item.config.stash[_ENDS]:
        pytest.skip("the minute of `make check` has passed: `make test` runs it")


def changed() -> list[Path]:
    """Files that differ from the last commit, and new ones, relative to the root."""
    commands = (["git", "diff", "--name-only", "HEAD"], ["git", "ls-files", "--others", "--exclude-standard"])
    names = "".join(subprocess.run(c, cwd=ROOT, capture_output=True, text=True, check=True).stdout for c in commands)
    return [p for p in map(Path, sorted(names.splitlines())) if (ROOT / p).is_file()]


def module(path: Path) -> str:
    """The name by which a file of this tree is imported."""
    parts = path.with_suffix("").parts
    if "src" in parts:
        parts = parts[parts.index("src") + 1 :]
    return ".".join(parts).removesuffix(".__init__")


def imports(path: Path, text: str) -> Iterator[str]:
    """The modules, and names in modules, that a file imports."""
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
    """The folder with the tests of a file, by the convention that tests/ mirrors the package and the other folders."""
    parts = path.parts
    if parts[0] == "drivers":
        return Path(*parts[:2], "tests")
    if parts[0] == "src":
        return Path("tests", *parts[2:-1])
    return Path(*parts[:-1]) if parts[0] == "tests" else Path("tests", parts[0])


def tests_of(files: list[Path]) -> dict[Path, int]:
    """The test files of changed files, the nearest first, each with its distance."""
    tests = [p.relative_to(ROOT) for folder in ("tests", "drivers") for p in (ROOT / folder).rglob("test_*.py")]
    texts = {test: (ROOT / test).read_text() for test in sorted(tests)}
    found: dict[Path, int] = {}
    for file in files:
        for test, text in texts.items():
            distance = 0 if test == file else _distance(file, test, text)
            if distance is not None:
                found[test] = min(distance, found.get(test, distance))
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def _distance(file: Path, test: Path, text: str) -> int | None:
    """How far a test file is from a changed file; None if it has nothing to do with it."""
    if file.name.startswith("test_") and file.suffix == ".py":
        return None  # a test file has no tests
    folder = folder_of_tests(file)
    if file.suffix != ".py":
        return 3 if file.name in text else 4 if folder in test.parents else None
    beside = test.parent == folder
    if beside and ("drivers" in file.parts or test.stem == f"test_{file.stem}" or file.stem == "conftest"):
        return 1
    if beside and test.stem.startswith(f"test_{file.stem}_"):
        return 2
    name = module(file)
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    imported = set(imports(test, text)) if name.rpartition(".")[2] in text or package in text else set()
    distances = {3: name in imported, 4: beside and file.parts[0] == "src", 5: package in imported}
    return next((distance for distance, true in distances.items() if true), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--leave-out", required=True, help="markers of tests that are too long for a minute")
    args, given = parser.parse_known_args()
    files = changed()
    tests = list(tests_of(files))
    if not tests:
        print("no file changed since the last commit" if not files else "no tests of what changed: see `make test`")
        return 0
    if further := tests[_FILES:]:
        print(f"left to `make test`: {len(further)} test files that import what changed: {' '.join(map(str, further))}")
    tests = tests[:_FILES]
    argv = [
        "-q",
        "-n",
        str(min(args.workers, len(tests))),
        "-m",
        f"not ({args.leave_out})",
        "-p",
        __spec__.name,
        *given,
    ]
    code = subprocess.run([sys.executable, "-m", "pytest", *argv, *map(str, tests)], cwd=ROOT, check=False).returncode
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


if __name__ == "__main__":
    sys.exit(main())
