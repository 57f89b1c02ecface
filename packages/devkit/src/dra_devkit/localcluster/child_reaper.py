"""Kills the child processes of this process when this process ends, for any reason.

A shell script, the guard, starts before the guarded processes. It reads from a pipe that the kernel closes when this
process ends, and then kills the guarded processes, which have a mark in their environment. A child that is just being
started has no mark yet, but it still holds the pipe open, so the guard waits for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

_POLL_INTERVAL = 0.1  # seconds between two searches for remaining processes
_KILLING = 20.0  # seconds for killed processes to end; only a call into the kernel that hangs can take longer
_MARK = "DRA_REAPER_ID"
_NOW = b"now\n"
# During exec, the environment of a process cannot be read for some microseconds. So the guard ends only after two searches without a match.
_SCRIPT = """
trap "" INT TERM HUP
read -r line
mark=$1 looks=$2 most=$3 none=0
shift 3
[ "$line" != now ] || most=$((most - looks)) looks=0
tidy() { :; }
%s
while [ $none -lt 2 ] && [ $most -gt 0 ]; do
  [ $none -eq 0 ] || sleep "$LOOK"
  tidied=$(tidy "$@")
  left=$(grep -slzxF -e "$mark" /proc/[0-9]*/environ | cut -d / -f 3)
  [ $looks -gt 0 ] || [ -z "$left" ] || kill -KILL $left
  if [ -z "$left$tidied" ]; then none=$((none + 1)); else none=0; sleep "$LOOK"; fi
  looks=$((looks - 1)) most=$((most - 1))
done
"""


class Guard:
    """A guard. Create it with :meth:`start` before the processes that it guards.

    The guard kills all processes with :attr:`mark` in their environment, which their children inherit. When this process
    has ended, they first get ``timeout`` seconds to end by themselves.
    """

    def __init__(self, process: asyncio.subprocess.Process, mark: Mapping[str, str]) -> None:
        self._process = process
        self.mark = mark

    @classmethod
    async def start(cls, timeout: float, tidy: str = "", *arguments: str) -> Guard:
        """Starts the guard.

        Args:
            timeout: seconds that guarded processes have to end by themselves.
            tidy: the body of a shell function that runs at each search. It must print a text until its work is done.
            arguments: arguments of that function.
        """
        identity = secrets.token_hex(16)
        looks = round(timeout / _POLL_INTERVAL)
        most = looks + round(_KILLING / _POLL_INTERVAL)
        process = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            _SCRIPT.replace("$LOOK", str(_POLL_INTERVAL)) % (f"tidy() {{ {tidy}; }}" if tidy else ""),
            "dra-guard",
            f"{_MARK}={identity}",
            str(looks),
            str(most),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(process, {_MARK: identity})

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def close(self) -> None:
        """Kills the remaining processes now."""
        assert self._process.stdin
        if self.alive:
            self._process.stdin.write(_NOW)
        self._process.stdin.close()
        await self._process.wait()
