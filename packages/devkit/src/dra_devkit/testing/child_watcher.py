"""Ends the child processes of a test run when the test process ends, even if it is killed with SIGKILL.

A child starts behind a gate (:func:`gated`): a shell that waits for a line on standard input. The test process first
starts a :class:`Watcher` for the child and then opens the gate. If the test process is killed before it opens the gate, the
shell reads the end of its input and exits.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

_GATE = 'read -r _ && exec "$@" </dev/null'
OPEN = b"\n"
"""The line that opens a gate."""
# `cat` ends when the parent's end of the pipe closes; the kernel closes it however the parent ends. The command line of process $1
# is compared, because the pid may belong to another process by then. It is read several times, because it is empty for some
# microseconds during exec.
_SCRIPT = """
cat >/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do
  grep -qszxF -e "$2" "/proc/$1/cmdline" && kill -KILL "$1" && exit
  sleep 0.1
done
"""


def gated(command: Sequence[str]) -> list[str]:
    """Wraps ``command`` so that it starts only after standard input, a pipe, delivers :data:`OPEN`.

    The command itself gets an empty standard input. If the pipe closes first, the command never starts.
    """
    return ["/bin/sh", "-c", _GATE, "sh", *command]


class Watcher:
    """Kills process ``pid`` after this process has ended, unless :meth:`close` was called first.

    Args:
        argument: one of the process's arguments. It proves that ``pid`` was not reused by another process.
    """

    def __init__(self, pid: int, argument: str) -> None:
        command = ["/bin/sh", "-c", _SCRIPT, "sh", str(pid), argument]
        devnull = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=devnull, stderr=devnull)  # noqa: S603 - fixed script

    def close(self) -> None:
        """Stops watching. Call this when the watched process has ended, or if it may run longer than this process."""
        self._process.kill()
        self._process.communicate()
