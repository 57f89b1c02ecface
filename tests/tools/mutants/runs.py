"""Runs tests in copies of the tree: once to record the lines that each test runs, and then for one change at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .mutation import Mutation

ROOT = Path(__file__).parents[3]
PACKAGE = Path("src/dra_kubeletplugin")
_HERE = Path("tests/tools/mutants")
_HIDDEN = {".ci", ".github"}  # hidden folders that tests read
_SUITE = 1800  # the time limit of the recorded run, in seconds
_MARKERS = "not full and not crash"  # Crash tests start processes, whose lines the tracer does not record.


class Outcome(enum.Enum):
    """The result of the tests for a change. A run that hangs or cannot import the package has detected the change."""

    DETECTED = "detected"
    HUNG = "hung"
    SURVIVED = "survived"
    UNTESTED = "no test runs it"


@dataclasses.dataclass(frozen=True)
class Result:
    """``test`` is the failed test, ``tests`` the number of selected tests, and ``covering`` the number of tests that run the line."""

    outcome: Outcome
    test: str
    tests: int
    covering: int

    @property
    def detected(self) -> bool:
        return self.outcome in {Outcome.DETECTED, Outcome.HUNG}


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The tests that pass without a change, with their seconds, and the tests that run each ``path:line``."""

    seconds: dict[str, float]
    ran: dict[str, list[str]]
    excluded: dict[str, str]  # test → failed or skipped

    def tests(self, change: Mutation) -> list[str]:
        """Returns the tests that may detect a change, fastest first. Tests of the changed module come before all others."""
        if change.lines:
            found = {t for n in change.lines for t in self.ran.get(f"{change.path}:{n}", ())}
        else:
            folder = str(Path(change.path).parent)
            found = {t for at, tests in self.ran.items() if at.startswith(f"{folder}/") for t in tests}
        module = Path(change.path)
        own = f"tests/{module.parent}/test_{module.stem}"
        return sorted(found, key=lambda t: (not t.startswith(own), self.seconds[t], t))


def copy(source: Path, target: Path) -> None:
    """Copies the files of a tree that tests need."""
    shutil.copytree(source, target, ignore=_ignored_names)


def _ignored_names(_: str, names: list[str]) -> set[str]:
    hidden = {name for name in names if name.startswith(".") and name not in _HIDDEN}
    return hidden | {name for name in names if name == "__pycache__" or name.endswith(".egg-info")}


class Tree:
    """A copy of ``source`` in a temporary folder, with its own folder for temporary files. Tests of two copies share no files."""

    def __init__(self, source: Path, *, trace: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mut-"))
        self.trace = trace
        self.root = self.folder / "tree"
        self.temporary = self.folder / "t"
        self._compiled = self.folder / "compiled"
        self._runs = 0
        self._log = self.folder / "log"
        self._running: subprocess.Popen[bytes] | None = None
        copy(source, self.root)

    def stop(self) -> None:
        """Kills the current run. Its result must be ignored."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)

    def close(self) -> None:
        self.stop()
        self._sweep()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def changed(self, change: Mutation) -> Iterator[None]:
        file = self.root / PACKAGE / change.path
        source, stat = file.read_text(), file.stat()
        try:
            file.write_text(change.apply(source))
            self._forget_compiled(file)
            yield
        finally:
            file.write_text(source)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            self._forget_compiled(file)

    def _forget_compiled(self, file: Path) -> None:
        """Deletes compiled files. Python compares only seconds and sizes, and changes follow each other within a second."""
        for compiled in (self._compiled / str(file.parent)[1:]).glob(f"{file.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)

    def pytest(
        self,
        tests: dict[str, float],
        seconds: float,
        share: tuple[int, int] = (0, 1),
        *,
        first: bool = True,
        paths: Sequence[str] = (),
    ) -> tuple[int | None, list[dict[str, Any]]]:
        """Returns the exit code, or None if the run was killed after ``seconds``, and the result of each test.

        Without ``tests``, it runs the share ``(i, n)`` of all tests, or of the tests below ``paths``. With ``first``, the run ends at the
        first failure.
        """
        self._runs += 1
        out, plan = self.folder / f"{self._runs}.jsonl", self.folder / "plan"
        out.touch()
        trace = f"{self.root / PACKAGE}/" if self.trace else ""
        plan.write_text(json.dumps({"tests": tests, "share": share, "trace": trace, "out": str(out)}))
        self.temporary.mkdir(exist_ok=True)
        env = os.environ | {
            "PYTHONPATH": f"{self.root / 'src'}:{self.root}",
            "TMPDIR": str(self.temporary),
            "MUTANTS_PLAN": str(plan),
            # Imports are half of a short run, so Python may write compiled files. An empty value unsets the variable.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self._compiled),
        }
        generator = ROOT / ".venv-proto/bin/python"
        if generator.exists():
            env["PROTO_PYTHON"] = str(generator)  # Without this variable, each copy installs its own generator.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.tools.mutants.pytest_plugin",
            "-p",
            "no:cacheprovider",
            "-m",
            _MARKERS,
        ]
        command += [
            "--hypothesis-seed=0",
            *(["-x"] if first else []),
            *sorted({t.partition("::")[0] for t in tests}),
            *paths,
        ]
        with self._log.open("wb") as log:
            self._running = run = subprocess.Popen(
                command,
                cwd=self.root,
                env=env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code: int | None = run.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            self.stop()
            run.wait()
            self._running = None
        self._sweep()
        return code, [json.loads(line) for line in out.read_text().splitlines()]

    def log_tail(self) -> str:
        """Returns the end of the output of the last run."""
        return self._log.read_text(errors="replace")[-3000:]

    def _sweep(self) -> None:
        """Deletes mounts and temporary files of a killed run."""
        below = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in sorted((m for m in below if m.startswith(str(self.folder))), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.temporary, ignore_errors=True)


def fingerprint(tree: Path) -> str:
    """Returns a digest of the tree without this tool, and of the interpreter. Test results depend on nothing else."""
    digest = hashlib.sha256(sys.version.encode())
    for folder in ("src", "tests", "drivers", "bench", "deploy", "pyproject.toml"):
        top = tree / folder
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            name = file.relative_to(tree)
            if file.is_file() and "__pycache__" not in name.parts and not name.is_relative_to(_HERE):
                digest.update(f"{name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def measure(trees: Sequence[Tree], paths: Sequence[str] = ()) -> Baseline:
    """Runs each test below ``paths`` once, distributed over the trees. By default, runs all tests without the markers full and crash."""

    def share(i: int) -> list[dict[str, Any]]:
        code, done = trees[i].pytest({}, _SUITE, (i, len(trees)), first=False, paths=paths)
        if code not in {0, 1}:
            raise SystemExit(f"the tests do not run without a change (exit code {code}):\n{trees[i].log_tail()}")
        return done

    with ThreadPoolExecutor(len(trees)) as pool:
        try:
            done = [d for part in pool.map(share, range(len(trees))) for d in part]
        finally:
            for tree in trees:
                tree.stop()
    passed = {d["test"]: d["seconds"] for d in done if d["outcome"] == "passed"}
    ran: dict[str, set[str]] = {}
    for d in done:
        for at in d["lines"] if d["test"] in passed else ():
            ran.setdefault(at, set()).add(d["test"])
    excluded = {d["test"]: d["outcome"] for d in done if d["outcome"] != "passed"}
    return Baseline(passed, {at: sorted(tests) for at, tests in ran.items()}, excluded)


def evaluate(tree: Tree, change: Mutation, baseline: Baseline, limit: float) -> Result:
    """Runs the tests of the changed line, as many as fit into ``limit`` seconds.

    A failure counts only if it repeats, so that a flaky test does not count as detection.
    """
    all_tests = baseline.tests(change)
    remaining = list(_within(all_tests, baseline.seconds, limit))
    selected = len(remaining)
    if not remaining:
        return Result(Outcome.UNTESTED, "", 0, 0)
    with tree.changed(change):
        while remaining:
            code, done = tree.pytest({t: baseline.seconds[t] for t in remaining}, _time_limit(remaining, baseline))
            failed = [d["test"] for d in done if d["outcome"] == "failed"]
            if code is None:
                return Result(
                    Outcome.HUNG,
                    remaining[len(done)] if len(done) < len(remaining) else remaining[-1],
                    selected,
                    len(all_tests),
                )
            if code == 0:
                break
            if code != 1 or not failed:
                return Result(Outcome.DETECTED, "the tests do not start", selected, len(all_tests))
            again, _ = tree.pytest({failed[0]: baseline.seconds[failed[0]]}, _time_limit(failed, baseline))
            if again != 0:
                return Result(Outcome.DETECTED, failed[0], selected, len(all_tests))
            remaining = remaining[remaining.index(failed[0]) + 1 :]
    return Result(Outcome.SURVIVED, "", selected, len(all_tests))


def _within(tests: Iterable[str], seconds: dict[str, float], limit: float) -> Iterator[str]:
    """Yields at least one test, then as many tests as fit into ``limit`` seconds."""
    total = 0.0
    for i, test in enumerate(tests):
        total += seconds[test]
        if i and total > limit:
            return
        yield test


def _time_limit(tests: Sequence[str], baseline: Baseline) -> float:
    return 60 + 4 * sum(baseline.seconds[t] for t in tests)


class ResultCache:
    """Stores the recorded run and the results of changes for this state of the tree. Deletes results of other states."""

    def __init__(self, folder: Path, tree: Path, paths: Sequence[str] = ()) -> None:
        self._paths = paths
        mark = "-".join([fingerprint(tree), *(path.replace("/", ".") for path in paths)])
        for old in folder.glob("*"):
            if old.name != mark:
                shutil.rmtree(old)
        self._tree = tree
        self._folder = folder / mark
        self._folder.mkdir(parents=True, exist_ok=True)
        self._results = self._folder / "results.jsonl"

    def baseline(self, workers: int) -> Baseline:
        file = self._folder / "baseline.json"
        if file.exists():
            return Baseline(**json.loads(file.read_text()))
        trees = [Tree(self._tree, trace=True) for _ in range(workers)]
        started = time.monotonic()
        try:
            found = measure(trees, self._paths)
        finally:
            for tree in trees:
                tree.close()
        print(f"measured {len(found.seconds)} tests in {time.monotonic() - started:.0f} s", flush=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(found)))
        part.rename(file)
        return found

    def results(self) -> dict[str, Result]:
        if not self._results.exists():
            return {}
        lines = [json.loads(line) for line in self._results.read_text().splitlines()]
        return {d.pop("key"): Result(Outcome(d.pop("outcome")), **d) for d in lines}

    def add(self, change: Mutation, result: Result) -> None:
        line = {"key": change.key} | dataclasses.asdict(result) | {"outcome": result.outcome.value}
        with self._results.open("a") as f:
            f.write(json.dumps(line) + "\n")
