"""Processes that we start end with us, also where we are killed and cannot say so."""

from __future__ import annotations

import subprocess

# `cat` ends when our end of the pipe is closed, which the kernel does whatever happened to us. A process that is another's by then
# has another command line.
_SCRIPT = 'cat >/dev/null; grep -qzxF -e "$2" "/proc/$1/cmdline" && kill -KILL "$1"'


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
