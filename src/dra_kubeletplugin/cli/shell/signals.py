"""Signals, from the first moment of a process to its last: one asks it to stop, a second ends it, and a stop that hangs is cut."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Collection
from types import CoroutineType, FrameType
from typing import Any

from ...errors import clip
from .exit_codes import Exit

log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the last when a terminal is closed
MARGIN = 5.0  # seconds beyond the grace, for what follows the calls in flight
_SAID = 0.2  # seconds that a line about a stop may take to leave
_LINE = 2048  # bytes of it; a pipe that can be written takes 4,096 without waiting


class StopSignal:
    """Whether somebody asked the process to stop.

    Made before anything else, because a process that is the first of its container ignores signals that it does not handle.
    ``end`` ends the process at once with a code.
    """

    def __init__(self, end: Callable[[int], object] = os._exit) -> None:
        self.asked = False
        self.grace = 0.0
        """Seconds that a stop may take, before :data:`MARGIN`."""
        self._end = end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._body: asyncio.Task[Any] | None = None
        self._cut: threading.Timer | None = None
        self._written = -1

    def handle(self) -> None:
        """Takes the signals over; main thread only.

        A thread hears of them: Python's own handlers run when the main thread comes back, which may be never.
        """
        heard, self._written = os.pipe()
        os.set_blocking(self._written, False)
        signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # as nohup has it
        taken = set(SIGNALS) - kept
        for number in taken:
            signal.signal(number, self._late)
        forking = _Forking(taken)
        os.register_at_fork(before=forking.hold, after_in_parent=forking.go_on, after_in_child=forking.let_go)
        threading.Thread(target=self._listen, args=(heard,), name="signals", daemon=True).start()

    def _late(self, number: int, frame: FrameType | None) -> None:
        """Python's own handler. The thread knows already, unless a driver has its event loop watch signals, which takes them."""
        watched = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        if watched not in {self._written, -1}:
            signal.set_wakeup_fd(watched, warn_on_full_buffer=False)
        if watched != self._written:
            with contextlib.suppress(BlockingIOError):
                os.write(self._written, bytes([number]))

    def _listen(self, heard: int) -> None:
        while number := os.read(heard, 1):
            if number[0] in SIGNALS:
                self._signalled(signal.Signals(number[0]).name)

    def _signalled(self, name: str) -> None:
        if self.asked:
            _say(f"{name} again: ended at once, {self.hanging()}")
            self._end(Exit.UNSURE)
        self.asked = True
        if self._loop is None or self._event is None:
            # Nothing has been started yet: a driver's module is being imported, perhaps for ever.
            self._end(Exit.WELL)
            return
        self._cut_after(self.grace + MARGIN)
        _say(f"{name}: stopping")
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop is closed: the process is at its end already
            self._end(Exit.WELL)

    def _cut_after(self, seconds: float) -> None:
        """A thread cuts, because what hangs may be the event loop."""
        self._cut = threading.Timer(seconds, self._cut_now, (seconds,))
        self._cut.daemon = True
        self._cut.start()

    def _cut_now(self, seconds: float) -> None:
        _say(f"the stop has taken {seconds:g} s and is cut, {self.hanging()}")
        self._end(Exit.UNSURE)

    def cut_ending(self, code: int, seconds: float = MARGIN) -> None:
        """The process is to end with ``code`` within ``seconds``, whatever still runs."""
        timer = threading.Timer(seconds, self._end, (code,))
        timer.daemon = True
        timer.start()

    def attach(self) -> None:
        """From now on a signal is told to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def wait(self, body: asyncio.Task[Any]) -> None:
        """Waits until somebody asks, after :meth:`attach`; ``body`` is what :meth:`hanging` looks at."""
        assert self._event is not None
        self._body = body
        await self._event.wait()

    def leave(self) -> None:
        """What runs is being stopped, by a signal or because it failed: that is bounded too."""
        if self._cut is None:
            self._cut_after(self.grace + MARGIN)

    def hanging(self) -> str:
        """Where the process is: the innermost call of its main task, and of threads in a driver's methods."""
        out = []
        if self._body is not None and not self._body.done():
            out.append(f"it waits in {_innermost(self._body)}")
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is not None and thread.name == "driver":
                out.append(f"a thread of the driver is in {_place(frame)}")
            elif frame is not None and thread is threading.main_thread() and not _in_loop(frame):
                out.append(f"the event loop is held by {_place(frame)}")
        return "; ".join(dict.fromkeys(out)) or "nothing of it hangs"


class _Forking:
    """A child that a driver forks ends by its own signals, which must not be told to us, not even those of its first moment."""

    def __init__(self, taken: Collection[signal.Signals]) -> None:
        self._taken = taken
        self._of_thread = threading.local()

    def hold(self) -> None:
        self._of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)

    def go_on(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._of_thread.mask)

    def let_go(self) -> None:
        for number in self._taken:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self.go_on()


def _innermost(task: asyncio.Task[Any]) -> str:
    """The chain of coroutines that a task waits in, the innermost last."""
    names = []
    at: Any = task.get_coro()
    while isinstance(at, CoroutineType):
        names.append(at.__qualname__)
        at = at.cr_await
    return " > ".join(names[-4:]) or task.get_name()


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _in_loop(frame: FrameType) -> bool:
    """Whether a thread does nothing but wait for events."""
    return frame.f_code.co_filename.endswith(("selectors.py", "base_events.py"))


def _say(text: str) -> None:
    """One log line, from a thread. Nothing that nobody reads may hold up a stop: neither a lock of the logging module nor a full
    pipe."""
    text = clip(text, _LINE)
    handler = logging.getLogger().handlers
    lock = handler[0].lock if handler else None
    locked = lock is not None and lock.acquire(timeout=_SAID)
    try:
        if not _writable():
            return
        if locked:
            log.warning("%s", text)
        else:
            os.write(2, f"{text}\n".encode(errors="replace"))
    except OSError:  # who read it is gone
        pass
    finally:
        if lock is not None and locked:
            lock.release()


def _writable() -> bool:
    """Whether standard error takes a line without waiting."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(_SAID * 1000))
