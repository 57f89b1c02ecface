"""`make mutants`: makes many small changes to the code, one at a time, and lists the changes that no test detected.

Example: ``make mutants ARGS="--only kube --tests tests/kube,tests/plugin --seed 8"``. The exit code is 1 if the tests detect less than
nine in ten changes. A change may have no visible effect, so ten in ten is not the aim.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from .changes import Change, changes

ROOT = Path(__file__).parents[3]
PACKAGE = Path("src/dra_kubeletplugin")
_AIM = 0.9
_MARKERS = "not full and not crash"  # crash tests start processes, whose lines are not recorded
_HIDDEN = {".ci", ".github"}  # hidden folders that tests read


@dataclass
class Recorded:
    """The run without a change: the seconds of each test that passed, and the tests that run each ``path:line``."""

    seconds: dict[str, float]
    ran: dict[str, set[str]]

    def tests(self, path: str, change: Change, limit: float) -> list[str]:
        """Returns the tests that may detect a change, the fastest first, as many as take at most ``limit`` seconds."""
        lines = [f"{path}:{change.line}"] if change.line else [at for at in self.ran if at.startswith(f"{path}:")]
        found, total = list[str](), 0.0
        for test in sorted({t for at in lines for t in self.ran.get(at, ())}, key=lambda t: (self.seconds[t], t)):
            total += self.seconds[test]
            if found and total > limit:
                break
            found.append(test)
        return found


class Tree:
    """A copy of the tree with its own folder for temporary files. Tests of two copies share no files."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mut-", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name, "tree")
        self._written = 0
        shutil.copytree(ROOT, self.root, ignore=_ignored)

    def close(self) -> None:
        self._folder.cleanup()

    def pytest(self, paths: Sequence[str], tests: Sequence[str], share: tuple[int, int], seconds: float) -> list[dict]:  # type: ignore[type-arg]
        """Runs tests, at most for ``seconds``, and returns a result for each test that ended.

        With ``tests``, runs them in this order until the first failure. Otherwise, runs the share ``(i, n)`` of the tests below ``paths``
        and records their lines.
        """
        out, plan, temporary = (self.root.with_name(name) for name in ("out", "plan", "t"))
        out.write_text("")
        package = f"{self.root / PACKAGE}/"
        plan.write_text(
            json.dumps({"tests": tests, "share": share, "record": not tests, "package": package, "out": str(out)})
        )
        temporary.mkdir()
        packages = [self.root, *self.root.glob("packages/*/src"), self.root / "src"]
        env = os.environ | {
            "PYTHONPATH": ":".join(map(str, packages)),
            "PYTHONDONTWRITEBYTECODE": "",  # Imports are half of a short run, so Python may write compiled files.
            "TMPDIR": str(temporary),
            "MUTANTS_PLAN": str(plan),
        }
        options = ["-q", "-p", "tests.tools.mutants.recording", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        command = [sys.executable, "-m", "pytest", *options, "-m", _MARKERS, *(["-x"] if tests else []), *paths]
        quiet = subprocess.DEVNULL
        run = subprocess.Popen(
            command, cwd=self.root, env=env, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            shutil.rmtree(temporary, ignore_errors=True)
        return [json.loads(line) for line in out.read_text().splitlines()]

    def detects(self, path: str, change: Change, tests: Sequence[str], recorded: Recorded) -> bool:
        """Returns whether a test fails, hangs or does not start with the change."""
        file = self.root / PACKAGE / path
        source = file.read_text()
        self._write(file, change.apply(source))
        try:
            limit = 60 + 4 * sum(recorded.seconds[t] for t in tests)
            done = self.pytest(sorted({t.partition("::")[0] for t in tests}), tests, (0, 1), limit)
        finally:
            self._write(file, source)
        return len(done) < len(tests) or any(d["failed"] for d in done)

    def _write(self, file: Path, text: str) -> None:
        """Writes a file with a time of its own, because Python compares the seconds and the size with those of the compiled file."""
        file.write_text(text)
        self._written += 1
        os.utime(file, (self._written, self._written))


def _ignored(_: str, names: list[str]) -> set[str]:
    return {
        n for n in names if (n.startswith(".") and n not in _HIDDEN) or n == "__pycache__" or n.endswith(".egg-info")
    }


def record(trees: Sequence[Tree], paths: Sequence[str]) -> Recorded:
    """Runs each test below ``paths`` once without a change, distributed over the trees."""
    with ThreadPoolExecutor(len(trees)) as pool:
        runs = pool.map(lambda i: trees[i].pytest(paths, (), (i, len(trees)), 1800), range(len(trees)))
        done = [d for run in runs for d in run if not d["failed"]]
    ran = defaultdict[str, set[str]](set)
    for d in done:
        for at in d["lines"]:
            ran[at].add(d["test"])
    return Recorded({d["test"]: d["seconds"] for d in done}, ran)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    trees = [Tree() for _ in range(options.workers)]
    try:
        return _evaluate(trees, options)
    finally:
        for tree in trees:
            tree.close()


def _evaluate(trees: Sequence[Tree], options: argparse.Namespace) -> int:
    package = trees[0].root / PACKAGE
    files = [f for name in options.only.split(",") for f in sorted((package / name).rglob("*.py"))]
    found = [(str(f.relative_to(package)), c) for f in files for c in changes(f.read_text())]
    sample = random.Random(options.seed).sample(found, min(options.count, len(found)))
    until = time.monotonic() + options.minutes * 60
    recorded = record(trees, options.tests.split(","))
    print(f"{len(sample)} of {len(found)} changes, {len(recorded.seconds)} tests", flush=True)
    free = SimpleQueue[Tree]()
    for tree in trees:
        free.put(tree)

    def evaluate(path: str, change: Change) -> bool | None:
        if time.monotonic() > until:
            return None
        tests, tree = recorded.tests(path, change, options.seconds), free.get()
        try:
            detected = bool(tests) and tree.detects(path, change, tests, recorded)
        finally:
            free.put(tree)
        if not detected:
            where = f"{PACKAGE / path}:{change.line or 'module'}"
            print(f"not detected by {len(tests)} tests: {where}: {change.before} -> {change.after}", flush=True)
        return detected

    with ThreadPoolExecutor(len(trees)) as pool:
        results = [r for r in pool.map(lambda item: evaluate(*item), sample) if r is not None]
    detected = sum(results)
    print(f"detected {detected} of {len(results)} changes, {100 * detected / max(1, len(results)):.0f} per cent")
    return int(detected < _AIM * len(results))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument(
        "--only", default="claims", help="folders of the framework that are changed, separated by commas"
    )
    parser.add_argument("--tests", default="tests/claims", help="folders and files of tests, separated by commas")
    parser.add_argument("--seed", type=int, default=7, help="the seed of the sample")
    parser.add_argument("--count", type=int, default=100, help="the number of changes")
    parser.add_argument("--workers", type=int, default=2, help="the number of parallel copies of the tree")
    parser.add_argument("--seconds", type=float, default=20, help="the duration of the tests for one change")
    parser.add_argument("--minutes", type=float, default=60, help="after this time, no further change is made")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
