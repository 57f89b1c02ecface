"""How a command ends: with an exit code and at most a sentence, whatever ends it."""

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

_LOST = frozenset({errno.EBADF, errno.EIO, errno.ENOSPC})  # what an output that cannot be written says


def ended(command: Callable[[], int]) -> int:
    """Runs a command and answers its exit code. What the command opened is closed, whatever ended it."""
    _standard_streams()
    signalled: list[int] = []
    with _signals(signalled):
        try:
            try:
                return command()
            finally:
                sys.stdout.flush()  # here, where its fault is caught
        except DraError as e:
            return report(e)
        except KeyboardInterrupt:
            return 128 + signalled[0] if signalled else Exit.INTERRUPTED
        except BrokenPipeError:  # whoever read our output has seen enough: `dra claims | head`
            _discard(sys.stdout)
            return Exit.UNREAD
        except OSError as e:
            if e.filename is not None:  # a file or folder that is gone, or not ours, in the midst of work
                tell(f"dra: {indented(e.filename)}: {e.strerror}")
            elif e.errno in _LOST:
                _discard(sys.stdout)
                tell(f"dra: the output cannot be written: {e.strerror}")
            else:
                raise
            return Exit.WRONG


def report(e: DraError) -> int:
    """Says on standard error what is wrong, one sentence a fault."""
    for fault in e.faults or (e.message,):
        tell(f"dra: {indented(fault)} [{e.code}]")
    return Exit.WRONG


def tell(text: str, stream: TextIO | None = None) -> None:
    """On standard error, or ``stream``. Where that cannot be written, because who read it is gone, neither this nor what follows is."""
    stream = stream or sys.stderr
    try:
        print(text, file=stream, flush=True)
    except OSError:
        _discard(stream)


def _standard_streams() -> None:
    """They exist, closed or not: else a file that is opened next would be taken for one. What is printed to a closed one fails."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 for the life of the process
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")  # a name that this terminal's encoding has not is no reason to fail


def _discard(stream: TextIO) -> None:
    """What is still to be written goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _interrupt() -> None:
    raise Interrupted


@contextlib.contextmanager
def _signals(signalled: list[int]) -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does, so that temporary files go; which it was is ``signalled``. A server has its own way.

    What is ignored, as nohup and a shell's background have it, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    taken = {n: h for n, h in handlers.items() if h in {signal.SIG_DFL, signal.default_int_handler}}

    def unwind(number: int, frame: FrameType | None) -> None:
        signalled.append(number)
        running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # not every command imports it
        loop = running() if running else None
        if loop is None or len(signalled) > 1:  # the second, because the loop did not come to the first
            raise Interrupted
        loop.call_soon_threadsafe(_interrupt)  # between two steps: within one, a transport half made would complain

    for number in taken:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
