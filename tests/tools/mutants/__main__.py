"""`make mutants`: changes the code a little, many times, and tells which changes no test noticed.

``make mutants ARGS="--seed 7 --count 200 --only claims,kube"``. The sample is drawn by the names of the changes, so it stays
nearly the same while the code around them changes. Exit code 1 when fewer than ``--aim`` per cent are noticed.
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
from .runs import PACKAGE, ROOT, Baseline, Memory, Result, Tree, copy, judge

ROOMS = ("claims", "plugin", "devices", "cdi", "kube")
REVIEWED = Path(__file__).with_name("reviewed.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="mut-") as folder:
        tree = Path(folder) / "tree"
        copy(ROOT, tree)  # so that the tree may be worked on meanwhile
        return _judge_tree(tree, options)


def _judge_tree(tree: Path, options: argparse.Namespace) -> int:
    wanted = options.only.replace(".py", "").split(",") if options.only else [r.removesuffix(".py") for r in ROOMS]
    every = [m for room in ROOMS for m in changes_of(tree, room)]
    equivalent, accepted = reviewed(REVIEWED)
    stale = (equivalent.keys() | accepted.keys()) - {m.key for m in every}
    for key in sorted(stale):
        print(f"{REVIEWED.name} names a change that is not in the code any more: {key}", file=sys.stderr)
    changes = [m for m in every if m.room.removesuffix(".py") in wanted and m.key not in equivalent]
    sample = draw(changes, options.seed, options.count)
    print(f"{len(sample)} of {len(changes)} changes that could be noticed, seed {options.seed}", flush=True)
    memory = Memory(ROOT / ".mutants", tree, options.tests.split(",") if options.tests else ())
    baseline = memory.baseline(options.workers)
    for test, outcome in sorted(baseline.left_out.items()):
        if outcome == "failed":
            print(f"not asked, it fails on the tree as it is: {test}")
    results = _run(tree, sample, baseline, memory, options)
    print(report(sample, results, accepted))
    noticed = sum(r.noticed for r in results.values())
    return int(bool(stale) or noticed * 100 < options.aim * len(results))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", default="", help=f"rooms, with commas between them, of {', '.join(ROOMS)}")
    parser.add_argument("--tests", default="", help="run only tests below these paths, with commas between them")
    parser.add_argument("--aim", type=float, default=90, help="per cent that must be noticed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="of tests for one change, at most")
    parser.add_argument("--minutes", type=float, default=90, help="for all; the changes that are left are not counted")
    return parser


def changes_of(tree: Path, room: str) -> list[Mutation]:
    """All changes of a room: a folder of the package, or one module."""
    top = tree / PACKAGE / room
    files = [top] if top.is_file() else sorted(top.rglob("*.py"))
    return [m for f in files for m in mutations(f.read_text(), str(f.relative_to(tree / PACKAGE)))]


def draw(changes: Sequence[Mutation], seed: int, count: int) -> list[Mutation]:
    """``count`` of them, always the same for a seed."""
    return sorted(changes, key=lambda m: hashlib.sha256(f"{seed} {m.key}".encode()).digest())[:count]


def reviewed(file: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Key → reason: of changes that change nothing anyone could see, and of those that are seen but not worth a test."""
    doc = tomllib.loads(file.read_text())
    both = [{e["change"]: e["why"] for e in doc.get(kind, [])} for kind in ("equivalent", "accepted")]
    return both[0], both[1]


def _run(
    tree: Path, sample: Sequence[Mutation], baseline: Baseline, memory: Memory, options: argparse.Namespace
) -> dict[str, Result]:
    known = memory.known()
    results = {m.key: known[m.key] for m in sample if m.key in known}
    todo = [m for m in sample if m.key not in results]
    deadline = time.monotonic() + options.minutes * 60
    lock, stopped = threading.Lock(), threading.Event()
    free: SimpleQueue[Tree] = SimpleQueue()
    trees = [Tree(tree) for _ in range(min(options.workers, len(todo)))]
    for t in trees:
        free.put(t)

    def one(change: Mutation) -> None:
        if stopped.is_set() or time.monotonic() > deadline:
            return
        mine = free.get()
        started = time.monotonic()
        try:
            result = judge(mine, change, baseline, options.seconds)
        finally:
            free.put(mine)
        with lock:
            if stopped.is_set():
                return
            results[change.key] = result
            memory.remember(change, result)
            took = f"{time.monotonic() - started:3.0f} s"
            print(f"{len(results):3}/{len(sample)} {took} {result.fate.value:9} {change.key[:110]}", flush=True)

    try:
        with ThreadPoolExecutor(max(1, len(trees))) as pool:
            try:
                for done in [pool.submit(one, change) for change in todo]:
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
    """The table by room, then every survivor with its place, its change and the reason that is on file."""
    out = []
    counts: dict[str, collections.Counter[bool]] = collections.defaultdict(collections.Counter)
    for m in sample:
        if m.key in results:
            counts[m.room][results[m.key].noticed] += 1
    for m in sorted(sample, key=lambda m: (m.path, m.line)):
        result = results.get(m.key)
        if result is not None and not result.noticed:
            asked = f"{result.tests} of {result.of} tests" if result.of else result.fate.value
            why = f"\n    {accepted[m.key]}" if m.key in accepted else ""
            out.append(
                f"{PACKAGE / m.path}:{m.line} {m.function} ({m.operator.value}; {asked})\n    {m.before} -> {m.after}{why}"
            )
    out.append(f"\n{'room':14} noticed  of   per cent")
    total: collections.Counter[bool] = collections.Counter()
    for room in sorted(counts):
        total += counts[room]
        out.append(_row(room, counts[room]))
    out.append(_row("all", total))
    if len(results) < len(sample):
        out.append(f"{len(sample) - len(results)} were not run: the time was up (--minutes)")
    return "\n".join(out)


def _row(name: str, count: collections.Counter[bool]) -> str:
    return f"{name:14} {count[True]:7} {count.total():4} {100 * count[True] / max(1, count.total()):8.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
