"""Sets the signal handlers that processes of a test inherit: as from a terminal or under nohup, however pytest was started."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def inherit_signals(numbers: Iterable[int], handler: signal.Handlers = signal.SIG_DFL) -> Iterator[None]:
    """``SIG_DFL`` as from a terminal; ``SIG_IGN``, as nohup and a shell's background have it, is rightly kept."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
