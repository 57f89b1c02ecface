"""`make pauses`: tests with pauses put at random where a busy machine puts them, to find those that count on being quick.

``make pauses ARGS="tests/localcluster/test_localcluster_kubernetes_releases.py --pauses late,children --seed 7"``. A test that fails here read something at a time that
it did not wait for, or the code below it did. What was a fault of a test alone is mended there: wait for the thing that is asserted.

Kinds of pauses:
    late: the test goes on late after each ``await``, while all around it goes on: 0 to 0.4 s, at every third.
    tasks: any task goes on late: 0 to 0.05 s, one time in ten. Wakes in another order than asyncio's, so not each find is a fault.
    loop: the whole event loop stands still: 0.03 to 0.8 s, one time in five hundred.
    children: a process that the test started is stopped for 0.1 to 1 s, about every second.
    steps: this process, and each Python process that the test starts, pauses at random before a step that others see: a process started,
        a file opened or renamed, a connection. What is killed or looked at between two steps is met so. See inside/pausing.py.
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
    group.addoption("--pauses", default="late,tasks", help=f"kinds of pauses, of {', '.join(KINDS)}")
    group.addoption("--seed", type=int, default=None, help="of the pauses; the order of events is the machine's still")


def pytest_configure(config: pytest.Config) -> None:
    kinds = set(config.getoption("--pauses").split(","))
    if wrong := kinds - {*KINDS}:
        raise pytest.UsageError(f"--pauses {','.join(sorted(wrong))}: give some of {', '.join(KINDS)}")
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
    """Pauses of some kinds while a test runs; none while fixtures are made and taken away, but for steps of the processes that they start."""

    def __init__(self, kinds: set[str], seed: int) -> None:
        self.kinds = kinds
        self.seed = seed
        self._random = random.Random(seed)
        self._test = ""

    def install(self) -> None:
        """For the rest of this process: asyncio has no other place to stand in."""
        loop, handle = asyncio.BaseEventLoop, asyncio.Handle
        call_soon, run = loop.call_soon, handle._run

        def soon(self_: Any, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
            if self._test and (delay := self._before(getattr(callback, "__self__", None))):
                later: asyncio.Handle = self_.call_later(delay, callback, *args, context=context)
                return later
            made: asyncio.Handle = call_soon(self_, callback, *args, context=context)
            return made

        def paused(self_: Any) -> None:
            if self._test and self._random.random() < 0.002:
                time.sleep(self._random.uniform(0.03, 0.8))
            run(self_)

        loop.call_soon = soon  # type: ignore[method-assign, assignment]
        if "loop" in self.kinds:
            handle._run = paused  # type: ignore[method-assign, assignment]
        if "steps" in self.kinds:
            self._install_steps()

    def _install_steps(self) -> None:
        pause_at_steps(self._random, lambda: bool(self._test))
        start = subprocess.Popen.__init__

        def started(self_: Any, *args: Any, env: Any = None, **given: Any) -> None:
            env = dict(os.environ if env is None else env)
            path = [str(_INSIDE), *filter(None, [env.get("PYTHONPATH")])]
            env |= {"PYTHONPATH": os.pathsep.join(path), "PAUSES_SEED": str(self.seed)}
            start(self_, *args, env=env, **given)

        subprocess.Popen.__init__ = started  # type: ignore[method-assign]

    def _before(self, owner: object) -> float:
        """Seconds until a task may go on."""
        if not isinstance(owner, asyncio.Task):
            return 0.0
        code = getattr(owner.get_coro(), "cr_code", None)
        if code is None or code.co_filename.endswith((".pyx", ".pyx.pxi")):
            return 0.0  # grpc's own: a call that is cancelled before its first step complains
        if code.co_name == "_accept_connection2":
            return 0.0  # asyncio's own: a server that closes waits for it one step of the loop, which is enough without pauses
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
            pids = [p for p in _descendants(os.getpid()) if _state(p) != "T"]  # a test's own stop is left alone
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
