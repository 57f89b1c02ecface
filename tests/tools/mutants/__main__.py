"""`make mutants`: makes many small changes to the code, one at a time, and lists the changes that no test detected.

Example: ``make mutants ARGS="--seed 7 --count 200 --only claims,kube"``. The sample depends on the names of the changes, so it
stays nearly the same when other code changes. The exit code is 1 if the tests detect less than ``--aim`` per cent of the changes.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import signal
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from .mutation import Mutation, mutations
from .runs import PACKAGE, ROOT, Baseline, Result, ResultCache, Tree, copy, evaluate

SUBPACKAGES = ("claims", "plugin", "devices", "cdi", "kube")
REVIEWED = Path(__file__).with_name("reviewed.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="mut-") as folder:
        tree = Path(folder) / "tree"
        copy(ROOT, tree)  # The copy allows edits of the tree during the run.
        return _evaluate_tree(tree, options)


def _evaluate_tree(tree: Path, options: argparse.Namespace) -> int:
    wanted = (
        options.only.replace(".py", "").split(",") if options.only else [r.removesuffix(".py") for r in SUBPACKAGES]
    )
    all_changes = [m for subpackage in SUBPACKAGES for m in changes_of(tree, subpackage)]
    equivalent, accepted = reviewed(REVIEWED)
    stale = (equivalent.keys() | accepted.keys()) - {m.key for m in all_changes}
    for key in sorted(stale):
        print(f"{REVIEWED.name} names a change that no longer exists in the code: {key}", file=sys.stderr)
    changes = [m for m in all_changes if m.subpackage.removesuffix(".py") in wanted and m.key not in equivalent]
    sample = draw(changes, options.seed, options.count)
    print(f"{len(sample)} of {len(changes)} changes that tests could detect, seed {options.seed}", flush=True)
    cache = ResultCache(ROOT / ".mutants", tree, options.tests.split(",") if options.tests else ())
    baseline = cache.baseline(options.workers)
    for test, outcome in sorted(baseline.excluded.items()):
        if outcome == "failed":
            print(f"not run, because it fails without a change: {test}")
    results = _run(tree, sample, baseline, cache, options)
    print(report(sample, results, accepted))
    detected = sum(r.detected for r in results.values())
    return int(bool(stale) or detected * 100 < options.aim * len(results))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=7, help="the seed of the sample")
    parser.add_argument("--count", type=int, default=200, help="the number of changes")
    parser.add_argument(
        "--only", default="", help=f"change only these subpackages, separated by commas: {', '.join(SUBPACKAGES)}"
    )
    parser.add_argument("--tests", default="", help="run only tests below these paths, separated by commas")
    parser.add_argument("--aim", type=float, default=90, help="the per cent of changes that tests must detect")
    parser.add_argument("--workers", type=int, default=2, help="the number of parallel copies of the tree")
    parser.add_argument("--seconds", type=float, default=20, help="the maximum duration of the tests for one change")
    parser.add_argument(
        "--minutes",
        type=float,
        default=90,
        help="the maximum duration of the command; the remaining changes do not count",
    )
    return parser


def changes_of(tree: Path, subpackage: str) -> list[Mutation]:
    """Returns all possible changes of a subpackage, or of a top-level module."""
    top = tree / PACKAGE / subpackage
    files = [top] if top.is_file() else sorted(top.rglob("*.py"))
    return [m for f in files for m in mutations(f.read_text(), str(f.relative_to(tree / PACKAGE)))]


def draw(changes: Sequence[Mutation], seed: int, count: int) -> list[Mutation]:
    """Returns ``count`` changes, the same ones for each run with a seed."""
    return sorted(changes, key=lambda m: hashlib.sha256(f"{seed} {m.key}".encode()).digest())[:count]


def reviewed(file: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the reviewed changes with their reasons: changes without a visible effect, and changes that are not worth a test."""
    doc = tomllib.loads(file.read_text())
    kinds = [{e["change"]: e["why"] for e in doc.get(kind, [])} for kind in ("equivalent", "accepted")]
    return kinds[0], kinds[1]


def _run(
    tree: Path, sample: Sequence[Mutation], baseline: Baseline, cache: ResultCache, options: argparse.Namespace
) -> dict[str, Result]:
    cached = cache.results()
    results = {m.key: cached[m.key] for m in sample if m.key in cached}
    todo = [m for m in sample if m.key not in results]
    deadline = time.monotonic() + options.minutes * 60
    lock, stopped = threading.Lock(), threading.Event()
    free: SimpleQueue[Tree] = SimpleQueue()
    trees = [Tree(tree) for _ in range(min(options.workers, len(todo)))]
    for t in trees:
        free.put(t)

    def run_change(change: Mutation) -> None:
        if stopped.is_set() or time.monotonic() > deadline:
            return
        copy_of_tree = free.get()
        started = time.monotonic()
        try:
            result = evaluate(copy_of_tree, change, baseline, options.seconds)
        finally:
            free.put(copy_of_tree)
        with lock:
            if stopped.is_set():
                return
            results[change.key] = result
            cache.add(change, result)
            took = f"{time.monotonic() - started:3.0f} s"
            print(f"{len(results):3}/{len(sample)} {took} {result.outcome.value:9} {change.key[:110]}", flush=True)

    try:
        with ThreadPoolExecutor(max(1, len(trees))) as pool:
            try:
                for done in [pool.submit(run_change, change) for change in todo]:
                    done.result()
            finally:
                stopped.set()
                for t in trees:
                    t.stop()
    finally:
        for t in trees:
            t.close()
    return results


def report(sample: Sequence[Mutation], results: dict[str, Result], accepted: dict[str, str]) -> str:
    """Returns each undetected change with its line and its reviewed reason, and a table per subpackage."""
    out = []
    counts: dict[str, collections.Counter[bool]] = collections.defaultdict(collections.Counter)
    for m in sample:
        if m.key in results:
            counts[m.subpackage][results[m.key].detected] += 1
    for m in sorted(sample, key=lambda m: (m.path, m.line)):
        result = results.get(m.key)
        if result is not None and not result.detected:
            tests = f"{result.tests} of {result.covering} tests" if result.covering else result.outcome.value
            why = f"\n    {accepted[m.key]}" if m.key in accepted else ""
            out.append(
                f"{PACKAGE / m.path}:{m.line} {m.function} ({m.operator.value}; {tests})\n    {m.before} -> {m.after}{why}"
            )
    out.append(f"\n{'package':14} detected of   per cent")
    total: collections.Counter[bool] = collections.Counter()
    for subpackage in sorted(counts):
        total += counts[subpackage]
        out.append(_row(subpackage, counts[subpackage]))
    out.append(_row("all", total))
    if len(results) < len(sample):
        out.append(f"{len(sample) - len(results)} were not run because the time limit was reached (--minutes)")
    return "\n".join(out)


def _row(name: str, count: collections.Counter[bool]) -> str:
    return f"{name:14} {count[True]:8} {count.total():4} {100 * count[True] / max(1, count.total()):8.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
