"""Copies the output of a container's process to its log and to attached clients, and their input to the process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
import tty as tty_modes
from collections.abc import Callable

from dra_devkit.localcluster.child_signals import signal_child

from .container_logs import ContainerLog
from .runc import Streams

_MAX_CHUNKS = 1024  # unread chunks after which an attached client is disconnected
_PIPE = asyncio.subprocess.PIPE


def open_terminal() -> tuple[int, int]:
    """Returns a pseudo-terminal's two sides. It does not echo, because runc adds a second terminal that does."""
    master, slave = pty.openpty()
    tty_modes.setraw(slave)
    return master, slave


def end_input(terminal: int) -> None:
    with contextlib.suppress(OSError):
        os.write(terminal, b"\x04")


def resize(terminal: int, process: asyncio.subprocess.Process, width: int, height: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    signal_child(process, signal.SIGWINCH)


class Console:
    """The input and output of one process.

    Create the console before the process, start the process with ``streams``, then call :meth:`follow` to read the output
    until it ends.
    """

    def __init__(self, log: ContainerLog, *, stdin: bool, once: bool, terminal: bool) -> None:
        self._log = log
        self._takes_input = stdin
        self._once = once
        self._sessions: set[AttachSession] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._master, self._slave = open_terminal() if terminal else (-1, -1)

    @property
    def streams(self) -> Streams:
        if self._slave >= 0:
            return self._slave, self._slave, self._slave
        return _PIPE if self._takes_input else asyncio.subprocess.DEVNULL, _PIPE, _PIPE

    def started(self, process: asyncio.subprocess.Process | None) -> None:
        """Sets the process; None if it could not be started."""
        self._process = process
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1
        if process is None:
            self._close_master()

    async def follow(self) -> int:
        """Copies output until the process has ended and all its output is in the log. Returns the exit code."""
        process = self._process
        assert process is not None
        if self._master >= 0:
            await self._take_terminal()
        else:
            assert process.stdout and process.stderr
            await asyncio.gather(
                self._log.take(process.stdout, "stdout", self._broadcaster(1)),
                self._log.take(process.stderr, "stderr", self._broadcaster(2)),
            )
        code = await process.wait()
        for session in list(self._sessions):
            session.end()
        self._close_master()
        return code

    async def _take_terminal(self) -> None:
        reader = asyncio.StreamReader()
        file = os.fdopen(os.dup(self._master), "rb", buffering=0)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        try:
            await self._log.take(reader, "stdout", self._broadcaster(1))
        except OSError:
            pass  # EIO: all processes on the terminal have ended
        finally:
            transport.close()

    def _broadcaster(self, stream: int) -> Callable[[bytes], None]:
        def broadcast(data: bytes) -> None:
            for session in list(self._sessions):
                session.feed(stream, data)

        return broadcast

    # --- attached clients ---------------------------------------------------------------------------------

    def attach(self) -> AttachSession:
        session = AttachSession(self)
        self._sessions.add(session)
        return session

    def detached(self, session: AttachSession, *, wrote: bool) -> None:
        self._sessions.discard(session)
        if wrote and self._once:
            self.close_input()

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the process no longer reads its input
            if self._master >= 0:
                await asyncio.to_thread(os.write, self._master, data)
            elif self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(data)
                await self._process.stdin.drain()

    def close_input(self) -> None:
        if self._master >= 0:
            end_input(self._master)
        elif self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def resize(self, width: int, height: int) -> None:
        if self._master >= 0 and self._process is not None:
            resize(self._master, self._process, width, height)

    def _close_master(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1


class AttachSession:
    """An :class:`.interface.ExecSession` of a container's main process. Detaching does not stop the process."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._chunks: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._wrote = False

    def feed(self, stream: int, data: bytes) -> None:
        if self._chunks.qsize() >= _MAX_CHUNKS:
            self.end()
        else:
            self._chunks.put_nowait((stream, data))

    def end(self) -> None:
        self._chunks.put_nowait(None)
        self._console.detached(self, wrote=False)

    async def read(self) -> tuple[int, bytes] | None:
        return await self._chunks.get()

    async def write(self, data: bytes) -> None:
        self._wrote = True
        if data:
            await self._console.write(data)
        else:
            self._console.close_input()

    async def resize(self, width: int, height: int) -> None:
        self._console.resize(width, height)

    async def wait(self) -> int:
        """Returns 0: the attachment succeeded, whatever the container's exit code is."""
        return 0

    async def close(self) -> None:
        self._console.detached(self, wrote=self._wrote)
