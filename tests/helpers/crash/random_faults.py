"""Injects random faults from one seed: disk, locks, API server, the driver's methods, a stopped plugin process."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

from dra_kubeletplugin.claims.store.folder import LOCK
from tests.helpers.crash.faulty_proxy import Mode
from tests.helpers.crash.harness import NodeHarness

# Names of files that the test driver reads. The driver removes the file, so each of these faults happens once.
ONCE = (
    "prepare-hangs",
    "prepare-raises",
    "prepare-stops-iteration",
    "prepare-exits",
    "prepare-cancels",
    "prepare-answers-nothing",
    "prepare-returns-anything",
    "unprepare-hangs",
    "unprepare-raises",
    "undo-raises",
    "setup-raises",
    "teardown-raises",
    "recover-raises",
    "devices-hangs",
    "devices-raises",
    "devices-returns-anything",
    "health-raises",
    "health-returns-anything",
    "eio",
)
LASTING = ("device-gone", "device-unhealthy", "recover-fails")  # faults that last while their file exists
SERVER = (Mode.SLOW, Mode.SILENT, Mode.HTML, Mode.RESET)
# Takes the lock of the records and stops itself with SIGSTOP. After SIGCONT it releases the lock.
HOLDER = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("locked", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
fcntl.flock(fd, fcntl.LOCK_UN)
"""


class Faults:
    """Injects faults between :meth:`begin` and :meth:`clear`. Some faults overlap.

    ``happened`` counts the faults that took effect, by kind.
    """

    def __init__(self, harness: NodeHarness, rng: random.Random, *, pause: float = 0.4) -> None:
        self.harness = harness
        self.rng = rng
        self.pause = pause
        self.happened: Counter[str] = Counter()
        self._placed: set[str] = set()
        self._schedule: asyncio.Task[None] | None = None
        self._lasting: dict[str, asyncio.Task[None]] = {}  # at most one of a kind at a time

    def begin(self) -> None:
        if self._schedule is None:
            self._schedule = asyncio.create_task(self._run(), name="faults")

    async def clear(self) -> None:
        """Ends every fault and withdraws those that have not happened.

        Raises the exception of a fault's task, if it has one.
        """
        tasks = [t for t in (self._schedule, *self._lasting.values()) if t]
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        self._schedule = None
        self._lasting.clear()
        for name in self._placed:
            path = self.harness.faults / name
            if not path.exists():
                self.happened[name] += 1
            path.unlink(missing_ok=True)
        self._placed.clear()
        for error in results:
            if isinstance(error, Exception):
                raise error

    async def _run(self) -> None:
        kinds: list[tuple[str, Callable[[float], Awaitable[None]]]] = [
            ("CDI folder full", self._full),
            ("lock held by a stopped process", self._locked),
            ("records lost", self._lost),
            ("plugin stopped", self._stopped),
        ]
        kinds += [(f"API server {m.name.lower()}", lambda s, m=m: self._server(m, s)) for m in SERVER]  # type: ignore[misc]
        kinds += [(name, lambda s, name=name: self._keep_file(name, s)) for name in LASTING]  # type: ignore[misc]
        while True:
            await asyncio.sleep(self.rng.uniform(0, 2 * self.pause))
            seconds = self.rng.uniform(1, 4)
            if self.rng.random() < 0.65:
                self._place_file(self.rng.choice(ONCE))
                continue
            kind, fault = self.rng.choice(kinds)
            slot = "API server" if kind.startswith("API server") else kind
            previous = self._lasting.get(slot)
            if previous and previous.done():
                previous.result()
            if previous is None or previous.done():
                self.happened[kind] += 1
                self._lasting[slot] = asyncio.create_task(fault(seconds), name=kind)  # type: ignore[arg-type]

    # --- the kinds ------------------------------------------------------------------------------

    def _place_file(self, name: str) -> None:
        path = self.harness.faults / name
        if name in self._placed and not path.exists():
            self.happened[name] += 1
        self._placed.add(name)
        path.touch()
        if name == "eio" and self.rng.random() < 0.5:
            (self.harness.faults / "eio-again").touch()
            self._placed.add("eio-again")

    async def _keep_file(self, name: str, seconds: float) -> None:
        path = self.harness.faults / name
        path.touch()
        try:
            await asyncio.sleep(seconds)
        finally:
            path.unlink()

    async def _server(self, mode: Mode, seconds: float) -> None:
        proxy = self.harness.proxy
        assert proxy
        proxy.set_mode(mode)
        try:
            await asyncio.sleep(seconds / 3)
        finally:
            proxy.set_mode(Mode.PASS)

    async def _full(self, seconds: float) -> None:
        with self.harness.full_cdi():
            await asyncio.sleep(seconds / 3)

    async def _locked(self, seconds: float) -> None:
        holder = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", HOLDER, str(self.harness.records_path / LOCK),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert holder.stdout
        continues = self.rng.random() < 0.5
        try:
            await holder.stdout.readline()  # empty if the lock file does not exist
            await asyncio.sleep(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                holder.send_signal(signal.SIGCONT if continues else signal.SIGKILL)
            await holder.wait()

    async def _lost(self, seconds: float) -> None:
        """Removes the folder of the records, or overwrites one of its files."""
        path = self.harness.records_path
        with contextlib.suppress(OSError, IndexError):  # the plugin changes the folder meanwhile
            if self.rng.random() < 0.5:
                shutil.rmtree(path)
            else:
                self.rng.choice(sorted(path.glob("*.json"))).write_bytes(b"no record")
        await asyncio.sleep(seconds)  # keeps this fault in progress, so that it does not repeat at once

    async def _stopped(self, seconds: float) -> None:
        running = [p for p in self.harness.plugins.values() if p.returncode is None]
        if not running:
            return
        process = self.rng.choice(running)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(min(seconds, 3))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
