"""Writes and reads a container's log file in CRI format: time, stream, tag and text for each line of output.

A line longer than 16 KiB is written in parts. The last part of a line has the tag F (full); the other parts have the tag P (partial).
If the output ends without a newline, its last part has the tag P. Source: k8s.io/cri-client, logs.go.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

from .interface import LogOptions

_PART = 16 * 1024


class ContainerLog:
    """The log of one container in the file ``path``. This class never deletes the file.

    Any number of readers may read the log, while the container runs and after it has ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = path.open("ab", buffering=0)
        self._grown = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._file is None

    async def take(self, reader: asyncio.StreamReader, stream: str, on_data: Callable[[bytes], None]) -> None:
        """Copies a stream to the log until the stream ends. If the task is cancelled, still writes the data that was already read.

        Args:
            on_data: called with each chunk when it arrives.
        """
        rest = b""
        try:
            while data := await reader.read(65536):
                on_data(data)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._line(stream, line)
                while len(rest) > _PART:
                    self._write(stream, b"P", rest[:_PART])
                    rest = rest[_PART:]
        finally:
            if rest:
                self._write(stream, b"P", rest)

    def write(self, stream: str, text: str) -> None:
        """Writes ``text`` as whole lines."""
        for line in text.splitlines():
            self._line(stream, line.encode())

    def _line(self, stream: str, line: bytes) -> None:
        while len(line) > _PART:
            self._write(stream, b"P", line[:_PART])
            line = line[_PART:]
        self._write(stream, b"F", line)

    def _write(self, stream: str, tag: bytes, data: bytes) -> None:
        if self._file:
            self._file.write(b"%s %s %s %s\n" % (_now(), stream.encode(), tag, data))
            self._wake()

    def close(self) -> None:
        """Closes the log after the container has ended. Readers that wait for more output end as well."""
        if self._file:
            self._file.close()
            self._file = None
        self._wake()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def read(self, options: LogOptions) -> AsyncIterator[bytes]:
        """Yields the log as ``kubectl logs`` shows it."""
        remaining = options.limit
        offset = _start(self.path, options.tail)
        held = b""
        fresh = True  # whether the next part begins a line of output
        while True:
            grown, ended = self._grown, self.closed
            data = await asyncio.to_thread(_read, self.path, offset)
            offset += len(data)
            *lines, held = (held + data).split(b"\n")
            out = b""
            for line in lines:
                time, _, rest = line.partition(b" ")
                _, _, rest = rest.partition(b" ")
                tag, _, text = rest.partition(b" ")
                if options.since and _seconds(time) < options.since:
                    continue
                out += (time + b" " if options.timestamps and fresh else b"") + text + (b"\n" if tag == b"F" else b"")
                fresh = tag == b"F"
            if remaining is not None:
                out, remaining = out[:remaining], remaining - len(out[:remaining])
            if out:
                yield out
            if remaining == 0 or (not data and (ended or not options.follow)):
                return
            if not data:
                await grown.wait()


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(1 << 20)
    except FileNotFoundError:  # the pod was removed while a client follows its log
        return b""


def _start(path: Path, tail: int | None) -> int:
    """Returns the offset of the last ``tail`` lines of output in the file."""
    if tail is None:
        return 0
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    if tail <= 0:
        return len(data)
    offset, count = len(data), 0
    end = len(data)
    for line in reversed(data.splitlines(keepends=True)):
        if line.split(b" ", 3)[2] == b"F" or end == len(data):
            count += 1
            if count > tail:
                break
        end -= len(line)
        offset = end
    return offset


def _now() -> bytes:
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z").encode()


def _seconds(time: bytes) -> float:
    return dt.datetime.fromisoformat(time.decode()).timestamp()
