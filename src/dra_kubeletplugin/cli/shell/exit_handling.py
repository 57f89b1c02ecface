"""Ends a command with an exit code and at most one sentence per fault, whatever caused the end."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TextIO

from ...base.signals import Interrupted
from ...base.terminal import indented
from ...errors import DraError
from .exit_codes import Exit

_OUTPUT_ERRORS = frozenset({errno.EBADF, errno.EIO, errno.ENOSPC})  # errno of an output that cannot be written


def ended(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code. Everything that the command opened is closed, whatever ended it."""
    _standard_streams()
    signalled: list[int] = []
    with _signals(signalled):
        try:
            try:
                return command()
            finally:
                sys.stdout.flush()  # flushed here, because the handlers below catch an error of this flush
        except DraError as e:
            return report(e)
        except KeyboardInterrupt:
            return 128 + signalled[0] if signalled else Exit.INTERRUPTED
        except BrokenPipeError:  # the reader closed the pipe early: `dra claims | head`
            _discard(sys.stdout)
            return Exit.BROKEN_PIPE
        except OSError as e:
            if e.filename is not None:  # a file or folder that vanished or became inaccessible during the work
                print_line(f"dra: {indented(e.filename)}: {e.strerror}")
            elif e.errno in _OUTPUT_ERRORS:
                _discard(sys.stdout)
                print_line(f"dra: the output cannot be written: {e.strerror}")
            else:
                raise
            return Exit.USAGE


def report(e: DraError) -> int:
    """Prints the faults on standard error, one sentence each."""
    for fault in e.faults or (e.message,):
        print_line(f"dra: {indented(fault)} [{e.code}]")
    return Exit.USAGE


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Prints on standard error, or on ``stream``. If the stream has no reader any more, discards this text and all later output."""
    stream = stream or sys.stderr
    try:
        print(text, file=stream, flush=True)
    except OSError:
        _discard(stream)


def _standard_streams() -> None:
    """Replaces closed standard streams, so that a file opened later does not get their descriptors.

    Printing to a replaced output fails.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 for the life of the process
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")  # a name outside the terminal's encoding must not fail the command


def _discard(stream: TextIO) -> None:
    """Discards the remaining output of the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _interrupt() -> None:
    raise Interrupted


@contextlib.contextmanager
def _signals(signalled: list[int]) -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise an exception like Ctrl-C, so that temporary files are deleted.

    Appends each received signal to ``signalled``. Ignored signals stay ignored, as under nohup and in background jobs of a shell.
    Servers handle signals with :mod:`.signals`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    taken = {n: h for n, h in handlers.items() if h in {signal.SIG_DFL, signal.default_int_handler}}

    def unwind(number: int, frame: FrameType | None) -> None:
        signalled.append(number)
        running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # not every command imports asyncio
        loop = running() if running else None
        if loop is None or len(signalled) > 1:  # a second signal interrupts, because the loop did not handle the first
            raise Interrupted
        # Interrupts between two steps of the loop: within a step, an incomplete transport would log an error.
        loop.call_soon_threadsafe(_interrupt)

    for number in taken:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
