"""Signal handling of servers: the first signal requests a stop, a second signal exits at once, and a stop that hangs is ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Collection
from types import CoroutineType, FrameType
from typing import Any

from ...base.threads import current_frames
from ...errors import clip
from .exit_codes import Exit

log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # SIGHUP is sent when a terminal is closed
MARGIN = 5.0  # additional seconds after the grace period: for the rest of the stop, after the calls in flight
_LOG_TIMEOUT = 0.2  # seconds that logging a line about a stop may take
_LINE = 2048  # maximum bytes of such a line; a writable pipe accepts 4,096 bytes without blocking


class StopSignal:
    """Receives signals that request a stop.

    Call :meth:`handle` before all other work: in the first process of a container, a signal has no effect until a handler is installed.
    ``end`` is the function that exits the process at once with a code.
    """

    def __init__(self, end: Callable[[int], object] = os._exit) -> None:
        self.requested = False
        self.grace = 0.0
        """Seconds that a stop may take, not counting :data:`MARGIN`."""
        self._end = end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._body: asyncio.Task[Any] | None = None
        self._deadline: threading.Timer | None = None
        self._written = -1

    def handle(self) -> None:
        """Installs the signal handlers; call it in the main thread.

        A thread receives the signals, because Python's own handlers run in the main thread, which may never leave a call of C code.
        """
        reader, self._written = os.pipe()
        os.set_blocking(self._written, False)
        signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # nohup sets SIG_IGN
        taken = set(SIGNALS) - kept
        for number in taken:
            signal.signal(number, self._python_handler)
        forking = _ForkHandlers(taken)
        os.register_at_fork(
            before=forking.block_signals, after_in_parent=forking.unblock_signals, after_in_child=forking.reset_handlers
        )
        threading.Thread(target=self._listen, args=(reader,), name="signals", daemon=True).start()

    def _python_handler(self, number: int, frame: FrameType | None) -> None:
        """Python's own handler. Usually the thread has already received the signal from the wakeup descriptor.

        If a driver registered signals with an event loop, the loop has replaced the wakeup descriptor. Then this handler writes
        the signal to the thread's pipe.
        """
        watched = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        if watched not in {self._written, -1}:
            signal.set_wakeup_fd(watched, warn_on_full_buffer=False)
        if watched != self._written:
            with contextlib.suppress(BlockingIOError):
                os.write(self._written, bytes([number]))

    def _listen(self, reader: int) -> None:
        while number := os.read(reader, 1):
            if number[0] in SIGNALS:
                self._signalled(signal.Signals(number[0]).name)

    def _signalled(self, name: str) -> None:
        if self.requested:
            _log_line(f"{name} again: the process ends at once; {self.hanging()}")
            self._end(Exit.UNKNOWN)
        self.requested = True
        if self._loop is None or self._event is None:
            # Nothing has been started yet: the import of a driver's module may hang.
            self._end(Exit.SUCCESS)
            return
        self._start_deadline(self.grace + MARGIN)
        _log_line(f"{name}: stopping")
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop is closed: the process is already ending
            self._end(Exit.SUCCESS)

    def _start_deadline(self, seconds: float) -> None:
        """Exits the process after ``seconds``. Uses a thread, because the event loop itself may hang."""
        self._deadline = threading.Timer(seconds, self._exit_at_deadline, (seconds,))
        self._deadline.daemon = True
        self._deadline.start()

    def _exit_at_deadline(self, seconds: float) -> None:
        _log_line(f"the stop has taken {seconds:g} s, so the process ends now; {self.hanging()}")
        self._end(Exit.UNKNOWN)

    def exit_after(self, seconds: float, code: int) -> None:
        """Exits the process with ``code`` after ``seconds``, even if tasks or threads still run."""
        timer = threading.Timer(seconds, self._end, (code,))
        timer.daemon = True
        timer.start()

    def attach(self) -> None:
        """From now on, a signal sets an event of the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def wait(self, body: asyncio.Task[Any]) -> None:
        """Waits for a stop signal. Call :meth:`attach` before. ``body`` is the task that :meth:`hanging` examines."""
        assert self._event is not None
        self._body = body
        await self._event.wait()

    def leave(self) -> None:
        """Limits the time of a stop, whether a signal or a failure caused it."""
        if self._deadline is None:
            self._start_deadline(self.grace + MARGIN)

    def hanging(self) -> str:
        """Describes where the process hangs: in its main task, in threads of the driver, or in a call that blocks the event loop."""
        out = []
        if self._body is not None and not self._body.done():
            out.append(f"the main task waits in {_innermost(self._body)}")
        frames = current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is not None and thread.name == "driver":
                out.append(f"a thread of the driver is in {_place(frame)}")
            elif frame is not None and thread is threading.main_thread() and not _in_loop(frame):
                out.append(f"the event loop is blocked by {_place(frame)}")
        return "; ".join(dict.fromkeys(out)) or "no task or thread hangs"


class _ForkHandlers:
    """Restores the default signal handlers in a child that a driver forks.

    The child inherits the pipe to the parent's thread, so the parent would stop at a signal for the child. Signals are blocked during
    the fork, because a signal may arrive before the child has reset its handlers.
    """

    def __init__(self, taken: Collection[signal.Signals]) -> None:
        self._taken = taken
        self._of_thread = threading.local()

    def block_signals(self) -> None:
        self._of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)

    def unblock_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._of_thread.mask)

    def reset_handlers(self) -> None:
        for number in self._taken:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self.unblock_signals()


def _innermost(task: asyncio.Task[Any]) -> str:
    """Returns the chain of coroutines in which a task waits, the innermost last."""
    names = []
    at: Any = task.get_coro()
    while isinstance(at, CoroutineType):
        names.append(at.__qualname__)
        at = at.cr_await
    return " > ".join(names[-4:]) or task.get_name()


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _in_loop(frame: FrameType) -> bool:
    """Whether a thread only waits for events."""
    return frame.f_code.co_filename.endswith(("selectors.py", "base_events.py"))


def _log_line(text: str) -> None:
    """Logs one line from a thread.

    The stop must not hang here: neither on a lock of the logging module, nor on a full pipe without a reader.
    """
    text = clip(text, _LINE)
    handler = logging.getLogger().handlers
    lock = handler[0].lock if handler else None
    locked = lock is not None and lock.acquire(timeout=_LOG_TIMEOUT)
    try:
        if not _writable():
            return
        if locked:
            log.warning("shutdown: %s", text)
        else:
            os.write(2, f"{text}\n".encode(errors="replace"))
    except OSError:  # the reader of standard error is gone
        pass
    finally:
        if lock is not None and locked:
            lock.release()


def _writable() -> bool:
    """Whether standard error accepts a line without blocking."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(_LOG_TIMEOUT * 1000))
