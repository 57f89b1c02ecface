"""``make check``: runs the tests of what changed since the last commit, for at most a minute.

A changed test file is run itself. For another changed module, the test files that import it or its package are run. Tests that start after the minute are skipped: ``make test`` runs them.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SECONDS = 40.0  # a minute, less the time of lint, types and collection
_FILES = 25  # test files in one run: with more, a minute does not suffice


_ENDS = pytest.StashKey[float]()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_ENDS] = time.monotonic() + _SECONDS


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[_ENDS]:
        pytest.skip("the minute of `make check` has passed: `make test` runs it")


def changed() -> list[Path]:
    """Python files that differ from the last commit, and new ones, relative to the root."""
    commands = (["git", "diff", "--name-only", "HEAD"], ["git", "ls-files", "--others", "--exclude-standard"])
    names = "".join(subprocess.run(c, cwd=ROOT, capture_output=True, text=True, check=True).stdout for c in commands)
    return [p for p in map(Path, sorted(names.split())) if p.suffix == ".py" and (ROOT / p).is_file()]


def module(path: Path) -> str:
    """The name by which a file of this tree is imported."""
    parts = path.with_suffix("").parts
    if "src" in parts:
        parts = parts[parts.index("src") + 1 :]
    return ".".join(parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """The modules, and names in modules, that a file imports."""
    package = module(path).split(".")[:-1]
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parts, *filter(None, [node.module])])
            yield source
            yield from (f"{source}.{name.name}" for name in node.names)


def tests_of(files: list[Path]) -> list[Path]:
    """The test files to run, the changed ones first, then those that import the most of what changed."""
    tests = [p.relative_to(ROOT) for folder in ("tests", "drivers") for p in (ROOT / folder).rglob("test_*.py")]
    imported = {test: set(imports(test)) for test in tests}
    found = dict.fromkeys((f for f in files if f in imported), sys.maxsize)
    for name in (module(f) for f in files if f not in imported):
        for sought, weight in ((name, 100), (name.rpartition(".")[0], 1)):
            for test in (t for t in tests if sought in imported[t]):
                found[test] = found.get(test, 0) + weight
    return sorted(found, key=lambda test: (-found[test], "unit" not in test.parts, test))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", required=True)
    parser.add_argument("--leave-out", required=True, help="markers of tests that are too long for a minute")
    args, given = parser.parse_known_args()
    tests = tests_of(changed())
    if not tests:
        print("no module changed since the last commit")
        return 0
    for test in tests[_FILES:]:
        print(f"left to `make test`: {test}")
    argv = ["-q", "-n", args.workers, "-m", f"not ({args.leave_out})", "-p", __spec__.name, *given]
    code = subprocess.run(
        [sys.executable, "-m", "pytest", *argv, *map(str, tests[:_FILES])], cwd=ROOT, check=False
    ).returncode
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


if __name__ == "__main__":
    sys.exit(main())
