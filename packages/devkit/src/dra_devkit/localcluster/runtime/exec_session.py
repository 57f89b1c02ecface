"""Runs a command in a running container, with pipes or a pseudo-terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from .console import end_input, open_terminal, resize
from .runc import Runc, Started

_CHUNK = 64 * 1024
_MAX_CHUNKS = 16  # chunks in the queue at which reading pauses, so that the command waits until the client has read


class RuncExec:
    """A running command. Create it with :meth:`start`. Only one task may read, and only one task may write, at a time."""

    def __init__(
        self, started: Started, pid: int, outputs: dict[int, int], stdin: int | None, *, terminal: bool
    ) -> None:
        self._started = started
        self._pid = pid
        self._stdin = stdin
        self._terminal = terminal
        self._outputs = outputs  # file descriptor → stream number
        self._chunks: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        for descriptor in outputs:
            os.set_blocking(descriptor, False)
            self._listen(descriptor)
        if stdin is not None:
            os.set_blocking(stdin, False)

    @classmethod
    async def start(
        cls, runc: Runc, container: str, scratch: Path, command: Sequence[str], *, stdin: bool, tty: bool
    ) -> RuncExec:
        """Starts the command.

        Args:
            scratch: the path of a temporary directory, which must not exist. It is removed before the call returns.

        Raises:
            ContainerError: the command cannot be started.
        """
        await asyncio.to_thread(scratch.mkdir, parents=True)
        child_fds: list[int] = []
        own_fds: list[int] = []
        try:
            if tty:
                master, slave = open_terminal()
                own_fds, child_fds = [master], [slave]
                streams, outputs, writes = (slave, slave, slave), {master: 1}, master if stdin else None
            else:
                pipes = [os.pipe() for _ in range(3)]
                (in_r, in_w), (out_r, out_w), (err_r, err_w) = pipes
                own_fds, child_fds = [in_w, out_r, err_r], [in_r, out_w, err_w]
                streams, outputs, writes = (in_r, out_w, err_w), {out_r: 1, err_r: 2}, in_w
                if not stdin:
                    os.close(in_w)
                    own_fds.remove(in_w)
                    writes = None
            started = await runc.exec(container, scratch, command, streams, tty=tty)
            pid = int(await asyncio.to_thread((scratch / "pid").read_text))
        except BaseException:
            for descriptor in own_fds:
                os.close(descriptor)
            raise
        finally:
            for descriptor in child_fds:
                os.close(descriptor)
            shutil.rmtree(scratch, ignore_errors=True)
        return cls(started, pid, outputs, writes, terminal=tty)

    def _listen(self, descriptor: int) -> None:
        asyncio.get_running_loop().add_reader(descriptor, self._readable, descriptor)

    def _readable(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # EIO: the command's side of the terminal is closed
            data = b""
        if data:
            self._chunks.put_nowait((self._outputs[descriptor], data))
            if self._chunks.qsize() >= _MAX_CHUNKS:
                asyncio.get_running_loop().remove_reader(descriptor)
            return
        self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        del self._outputs[descriptor]
        if descriptor != self._stdin:
            os.close(descriptor)
        if not self._outputs:
            self._chunks.put_nowait(None)

    async def read(self) -> tuple[int, bytes] | None:
        found = await self._chunks.get()
        if found is None:
            self._chunks.put_nowait(None)  # also end the next read
        elif self._chunks.qsize() < _MAX_CHUNKS:
            for descriptor in self._outputs:
                self._listen(descriptor)
        return found

    async def write(self, data: bytes) -> None:
        if self._stdin is None:
            return
        if not data:
            self._close_stdin()
            return
        view = memoryview(data)
        while view and self._stdin is not None:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await self._writable(self._stdin)
            except OSError:  # the command no longer reads its input
                return

    def _close_stdin(self) -> None:
        if self._stdin is None:
            return
        if self._terminal:
            end_input(self._stdin)
            return
        os.close(self._stdin)
        self._stdin = None

    async def _writable(self, descriptor: int) -> None:
        loop, free = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(descriptor, free.set)
        try:
            await free.wait()
        finally:
            loop.remove_writer(descriptor)

    async def resize(self, width: int, height: int) -> None:
        if self._terminal:
            for descriptor in self._outputs:
                resize(descriptor, self._started.process, width, height)

    async def wait(self) -> int:
        return await self._started.process.wait()

    async def close(self) -> None:
        if self._started.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            await self._started.process.wait()
        for descriptor in list(self._outputs):
            self._end(descriptor)
        if self._stdin is not None:
            with contextlib.suppress(OSError):
                os.close(self._stdin)
            self._stdin = None
