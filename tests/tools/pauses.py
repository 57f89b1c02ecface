"""`make pauses`: runs tests with random pauses, as on a busy machine, to find tests and code that depend on timing.

Example: ``make pauses ARGS="packages/devkit/tests/localcluster/test_localcluster_kubernetes_releases.py --pauses late,children --seed 7"``.
If a test fails here, the test or the code reads a value without waiting for it. If only the test has the fault, change the test:
wait for the same condition that it asserts.

Kinds of pauses:
    late: one in three times, the test continues 0 to 0.4 s late after an ``await``. All other tasks continue in time.
    tasks: one in ten times, any task continues 0 to 0.05 s late. The order of tasks then differs from asyncio's order, so a failure
        is not always a fault.
    loop: one in five hundred times, the event loop stops for 0.03 to 0.8 s.
    children: about once per second, a process that the test started is stopped for 0.1 to 1 s.
    steps: this process, and each Python process that the test starts, pauses at random before steps that other processes can observe.
        Such steps start a process, open or rename a file, or connect. The pauses expose kills and reads between two steps.
        See inside/pausing.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.inside.pausing import pause_at_steps

KINDS = ("late", "tasks", "loop", "children", "steps")
_INSIDE = Path(__file__).parent / "inside"
_PAUSES: pytest.StashKey[Pauses] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pauses")
    group.addoption("--pauses", default="late,tasks", help=f"kinds of pauses, separated by commas: {', '.join(KINDS)}")
    group.addoption(
        "--seed",
        type=int,
        default=None,
        help="seed of the random pauses; the order of events still depends on the machine",
    )


def pytest_configure(config: pytest.Config) -> None:
    kinds = set(config.getoption("--pauses").split(","))
    if wrong := kinds - {*KINDS}:
        raise pytest.UsageError(f"--pauses {','.join(sorted(wrong))}: use kinds of {', '.join(KINDS)}")
    seed = config.getoption("--seed")
    config.stash[_PAUSES] = Pauses(kinds, random.randrange(10**6) if seed is None else seed)
    config.stash[_PAUSES].install()


def pytest_report_header(config: pytest.Config) -> str:
    pauses = config.stash[_PAUSES]
    return f"pauses: {','.join(sorted(pauses.kinds))}, --seed {pauses.seed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with item.config.stash[_PAUSES].during(item):
        return (yield)


class Pauses:
    """Adds pauses while a test runs. Fixtures run without pauses, except for ``steps`` in the processes that they start."""

    def __init__(self, kinds: set[str], seed: int) -> None:
        self.kinds = kinds
        self.seed = seed
        self._random = random.Random(seed)
        self._test = ""

    def install(self) -> None:
        """Replaces methods of asyncio until this process ends, because asyncio has no hook for this purpose."""
        loop, handle = asyncio.BaseEventLoop, asyncio.Handle
        call_soon, run = loop.call_soon, handle._run

        def call_soon_or_later(
            self_: Any, callback: Callable[..., object], *args: Any, context: Any = None
        ) -> asyncio.Handle:
            if self._test and (delay := self._before(getattr(callback, "__self__", None))):
                later: asyncio.Handle = self_.call_later(delay, callback, *args, context=context)
                return later
            immediate: asyncio.Handle = call_soon(self_, callback, *args, context=context)
            return immediate

        def run_after_pause(self_: Any) -> None:
            if self._test and self._random.random() < 0.002:
                time.sleep(self._random.uniform(0.03, 0.8))
            run(self_)

        loop.call_soon = call_soon_or_later  # type: ignore[method-assign, assignment]
        if "loop" in self.kinds:
            handle._run = run_after_pause  # type: ignore[method-assign, assignment]
        if "steps" in self.kinds:
            self._install_steps()

    def _install_steps(self) -> None:
        pause_at_steps(self._random, lambda: bool(self._test))
        start = subprocess.Popen.__init__

        def start_with_pauses(self_: Any, *args: Any, env: Any = None, **options: Any) -> None:
            env = dict(os.environ if env is None else env)
            path = [str(_INSIDE), *filter(None, [env.get("PYTHONPATH")])]
            env |= {"PYTHONPATH": os.pathsep.join(path), "PAUSES_SEED": str(self.seed)}
            start(self_, *args, env=env, **options)

        subprocess.Popen.__init__ = start_with_pauses  # type: ignore[method-assign]

    def _before(self, owner: object) -> float:
        """Returns the delay of a task's next step, in seconds."""
        if not isinstance(owner, asyncio.Task):
            return 0.0
        code = getattr(owner.get_coro(), "cr_code", None)
        if code is None or code.co_filename.endswith((".pyx", ".pyx.pxi")):
            return 0.0  # a task of grpc, which logs an error if a call is cancelled before its first step
        if code.co_name == "_accept_connection2":
            return 0.0  # a task of asyncio, for which a closing server waits only one step of the loop
        if "late" in self.kinds and code.co_name == self._test:
            return self._random.uniform(0, 0.4) if self._random.random() < 0.3 else 0.0
        return self._random.uniform(0, 0.05) if "tasks" in self.kinds and self._random.random() < 0.1 else 0.0

    @contextlib.contextmanager
    def during(self, item: pytest.Item) -> Iterator[None]:
        self._test = getattr(item, "originalname", None) or item.name
        ended = threading.Event()
        stopper = threading.Thread(target=self._stop_children, args=(ended,)) if "children" in self.kinds else None
        if stopper:
            stopper.start()
        try:
            yield
        finally:
            self._test = ""
            ended.set()
            if stopper:
                stopper.join()

    def _stop_children(self, ended: threading.Event) -> None:
        while not ended.wait(self._random.uniform(0.1, 2)):
            pids = [
                p for p in _descendants(os.getpid()) if _state(p) != "T"
            ]  # A test may have stopped the process itself.
            if not pids:
                continue
            pid = self._random.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                ended.wait(self._random.uniform(0.1, 1))
                os.kill(pid, signal.SIGCONT)


def _descendants(pid: int) -> list[int]:
    found, open_ = [], [pid]
    while open_:
        for task in Path(f"/proc/{open_.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(c) for c in task.read_text().split()]
                found += children
                open_ += children
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
