"""Sets the signal handlers that child processes of a test inherit, independently of how pytest was started."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def inherit_signals(numbers: Iterable[int], handler: signal.Handlers = signal.SIG_DFL) -> Iterator[None]:
    """Sets ``handler`` inside the context.

    ``SIG_DFL`` is the state of a process in a terminal. ``SIG_IGN`` is its state under nohup or in a shell's background job.
    """
    old_handlers = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old_handler in old_handlers.items():
            signal.signal(number, old_handler)
