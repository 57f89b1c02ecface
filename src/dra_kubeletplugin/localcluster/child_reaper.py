"""What this process starts ends with it, whatever ends it: a small shell waits for our end, and for theirs.

The shell is there before what it guards, so there is no moment in between. It sees our end at a pipe, which the kernel closes; a
process that is being started holds the pipe until it runs, and has the mark by which the shell knows it from then on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

_LOOK = 0.1  # seconds between looks
_KILLING = 20.0  # seconds for what is killed to end: all but what a device's driver holds in the kernel
_MARK = "DRA_GUARDED_BY"
_NOW = b"now\n"
# Between its start and its environment a process shows none for some microseconds, hence two looks in a row.
_SCRIPT = """
trap "" INT TERM HUP
read -r said
mark=$1 looks=$2 most=$3 none=0
shift 3
[ "$said" != now ] || most=$((most - looks)) looks=0
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
    """Made by :meth:`start`, before what it guards is. What is started with :attr:`mark` in its environment has until ``patience``
    seconds after our end to end by itself, and so has what it starts; then it is killed."""

    def __init__(self, process: asyncio.subprocess.Process, mark: Mapping[str, str]) -> None:
        self._process = process
        self.mark = mark

    @classmethod
    async def start(cls, patience: float, tidy: str = "", *arguments: str) -> Guard:
        """``tidy`` is what is done at each look besides, as the body of a shell's function with ``arguments``: it prints something
        while there is something left to do."""
        identity = secrets.token_hex(16)
        looks = round(patience / _LOOK)
        most = looks + round(_KILLING / _LOOK)
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", _SCRIPT.replace("$LOOK", str(_LOOK)) % (f"tidy() {{ {tidy}; }}" if tidy else ""), "dra-guard",
            f"{_MARK}={identity}", str(looks), str(most), *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        return cls(process, {_MARK: identity})

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def close(self) -> None:
        """Ends what is left, at once."""
        assert self._process.stdin
        if self.alive:
            self._process.stdin.write(_NOW)
        self._process.stdin.close()
        await self._process.wait()


__all__ = ["Guard"]
