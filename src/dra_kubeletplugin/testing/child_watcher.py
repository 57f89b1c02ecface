"""Processes that we start end with us, also where we are killed and cannot say so, whenever that is.

A process starts behind a gate (:func:`gated`), its standard input; once a :class:`Watcher` is there, which would end it, a line opens
the gate. Whoever is killed before that opens nothing: a gate that is closed ends.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

_GATE = 'read -r _ && exec "$@" </dev/null'
OPEN = b"\n"
"""What opens a gate."""
# `cat` ends when our end of the pipe is closed, which the kernel does whatever happened to us. A process that is another's by then
# has another command line; one whose gate opens at that moment shows none for some microseconds, hence more than one look.
_SCRIPT = """
cat >/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do
  grep -qszxF -e "$2" "/proc/$1/cmdline" && kill -KILL "$1" && exit
  sleep 0.1
done
"""


def gated(command: Sequence[str]) -> list[str]:
    """``command`` once standard input, which has to be a pipe, says :data:`OPEN`; it gets an empty one. At its end before: nothing."""
    return ["/bin/sh", "-c", _GATE, "sh", *command]


class Watcher:
    """Kills process ``pid``, one of whose arguments is ``argument``, once this process has ended; until :meth:`close`."""

    def __init__(self, pid: int, argument: str) -> None:
        command = ["/bin/sh", "-c", _SCRIPT, "sh", str(pid), argument]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)  # noqa: S603 - ours

    def close(self) -> None:
        """The process has ended, or may go on without us."""
        self._process.kill()
        self._process.communicate()


__all__ = ["OPEN", "Watcher", "gated"]
