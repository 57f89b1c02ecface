"""Counts the sync calls of a process with strace, if it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

CALLS = "fsync,fdatasync,sync_file_range,syncfs,sync,msync"
_LINE = re.compile(r"(\w+)\((?:\d+<([^>]*)>)?")


def can_count() -> bool:
    return shutil.which("strace") is not None


@contextlib.asynccontextmanager
async def counted(pid: int) -> AsyncIterator[list[str]]:
    """Yields a list, which at the end has a line for each sync of the process: the call and the file's name."""
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trace"
        strace = await asyncio.create_subprocess_exec(
            *("strace", "-f", "-y", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(out), "-p", str(pid)),
            stderr=asyncio.subprocess.PIPE,
        )
        assert strace.stderr
        output = b""
        async with asyncio.timeout(10):
            while b"attached" not in output:
                line = await strace.stderr.readline()
                output += line
                if not line:
                    raise RuntimeError(f"strace cannot trace process {pid}: {output.decode(errors='replace')}")
        try:
            yield found
        finally:
            strace.send_signal(signal.SIGINT)
            await strace.wait()
        for line in out.read_text(errors="replace").splitlines():
            if (match := _LINE.search(line)) and "resumed" not in line:
                found.append(f"{match[1]} {Path(match[2] or '').name}".strip())
