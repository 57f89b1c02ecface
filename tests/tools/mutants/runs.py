"""Running tests in copies of the tree: once to see what each test runs, then against one change at a time."""

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
_SUITE = 1800  # seconds that the measured run may take
_MARKERS = "not full and not crash"  # tests that start processes see no change that was made for another


class Fate(enum.Enum):
    """What the tests made of a change. A run that hangs, or cannot import the package, noticed it."""

    NOTICED = "noticed"
    HUNG = "hung"
    SURVIVED = "survived"
    UNTESTED = "no test runs it"


@dataclasses.dataclass(frozen=True)
class Result:
    """``test`` is the one that failed; ``tests`` are how many were asked, ``of`` how many run the line."""

    fate: Fate
    test: str
    tests: int
    of: int

    @property
    def noticed(self) -> bool:
        return self.fate in {Fate.NOTICED, Fate.HUNG}


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Tests that pass on the tree as it is, with their seconds, and ``path:line`` → those that run it."""

    seconds: dict[str, float]
    ran: dict[str, list[str]]
    left_out: dict[str, str]  # test → failed or skipped

    def tests(self, change: Mutation) -> list[str]:
        """Those that have a chance to notice: first those of the module itself, quickest first."""
        if change.lines:
            found = {t for n in change.lines for t in self.ran.get(f"{change.path}:{n}", ())}
        else:
            folder = str(Path(change.path).parent)
            found = {t for at, tests in self.ran.items() if at.startswith(f"{folder}/") for t in tests}
        module = Path(change.path)
        own = f"tests/{module.parent}/test_{module.stem}"
        return sorted(found, key=lambda t: (not t.startswith(own), self.seconds[t], t))


def copy(source: Path, target: Path) -> None:
    """Copies what tests need of a tree."""
    shutil.copytree(source, target, ignore=_left_out)


def _left_out(_: str, names: list[str]) -> set[str]:
    hidden = {name for name in names if name.startswith(".") and name not in _HIDDEN}
    return hidden | {name for name in names if name == "__pycache__" or name.endswith(".egg-info")}


class Tree:
    """A copy of ``source`` in a temporary folder, with temporary files of its own. Tests in it touch nothing of another's."""

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
        """Ends the run that is under way, which then answers nothing that counts."""
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
        """Compiled files are told apart by second and size only, and changes follow each other faster."""
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
        """The exit code, None when it had to be killed after ``seconds``, and what became of each test.

        Without ``tests`` it runs the share ``(i, n)`` of all tests, or of those below ``paths``. ``first`` ends it with the first failure.
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
            # Importing is half of a short run. An empty value is none.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self._compiled),
        }
        generator = ROOT / ".venv-proto/bin/python"
        if generator.exists():
            env["PROTO_PYTHON"] = str(generator)  # else each copy installs its own
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

    def said(self) -> str:
        """The end of the last run's output."""
        return self._log.read_text(errors="replace")[-3000:]

    def _sweep(self) -> None:
        """What a killed run left: mounts, then files."""
        below = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in sorted((m for m in below if m.startswith(str(self.folder))), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.temporary, ignore_errors=True)


def fingerprint(tree: Path) -> str:
    """Of all that decides what tests do: the tree without this tool, and the interpreter."""
    digest = hashlib.sha256(sys.version.encode())
    for folder in ("src", "tests", "drivers", "bench", "deploy", "pyproject.toml"):
        top = tree / folder
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            name = file.relative_to(tree)
            if file.is_file() and "__pycache__" not in name.parts and not name.is_relative_to(_HERE):
                digest.update(f"{name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def measure(trees: Sequence[Tree], paths: Sequence[str] = ()) -> Baseline:
    """Runs each test below ``paths`` once, shared among the trees. By default all tests that `make test` runs in one process."""

    def share(i: int) -> list[dict[str, Any]]:
        code, done = trees[i].pytest({}, _SUITE, (i, len(trees)), first=False, paths=paths)
        if code not in {0, 1}:
            raise SystemExit(f"the tests do not run on the tree as it is (exit code {code}):\n{trees[i].said()}")
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
    left_out = {d["test"]: d["outcome"] for d in done if d["outcome"] != "passed"}
    return Baseline(passed, {at: sorted(tests) for at, tests in ran.items()}, left_out)


def judge(tree: Tree, change: Mutation, baseline: Baseline, limit: float) -> Result:
    """Runs the tests that run the changed line, for at most ``limit`` seconds of them.

    A failure counts when it repeats, so that a test that fails now and then by itself notices nothing.
    """
    all_tests = baseline.tests(change)
    left = list(_within(all_tests, baseline.seconds, limit))
    asked = len(left)
    if not left:
        return Result(Fate.UNTESTED, "", 0, 0)
    with tree.changed(change):
        while left:
            code, done = tree.pytest({t: baseline.seconds[t] for t in left}, _patience(left, baseline))
            failed = [d["test"] for d in done if d["outcome"] == "failed"]
            if code is None:
                return Result(Fate.HUNG, left[len(done)] if len(done) < len(left) else left[-1], asked, len(all_tests))
            if code == 0:
                break
            if code != 1 or not failed:
                return Result(Fate.NOTICED, "the tests do not start", asked, len(all_tests))
            again, _ = tree.pytest({failed[0]: baseline.seconds[failed[0]]}, _patience(failed, baseline))
            if again != 0:
                return Result(Fate.NOTICED, failed[0], asked, len(all_tests))
            left = left[left.index(failed[0]) + 1 :]
    return Result(Fate.SURVIVED, "", asked, len(all_tests))


def _within(tests: Iterable[str], seconds: dict[str, float], limit: float) -> Iterator[str]:
    """At least one, then as many as fit."""
    total = 0.0
    for i, test in enumerate(tests):
        total += seconds[test]
        if i and total > limit:
            return
        yield test


def _patience(tests: Sequence[str], baseline: Baseline) -> float:
    return 60 + 4 * sum(baseline.seconds[t] for t in tests)


class Memory:
    """What is known of this very tree: the measured run, and the fate of changes. Kept until the tree is another."""

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

    def known(self) -> dict[str, Result]:
        if not self._results.exists():
            return {}
        lines = [json.loads(line) for line in self._results.read_text().splitlines()]
        return {d.pop("key"): Result(Fate(d.pop("fate")), **d) for d in lines}

    def remember(self, change: Mutation, result: Result) -> None:
        line = {"key": change.key} | dataclasses.asdict(result) | {"fate": result.fate.value}
        with self._results.open("a") as f:
            f.write(json.dumps(line) + "\n")
