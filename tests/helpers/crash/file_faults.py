"""Makes single file operations fail with an OSError, in the whole process; and a disk of a small size."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

_BY_PATH = ("open", "rename", "unlink", "mkdir", "rmdir", "symlink", "readlink", "listdir", "scandir", "stat", "lstat")
_BY_DESCRIPTOR = ("write", "pwrite", "fchmod", "ftruncate", "fstat", "close")


Function = Callable[..., Any]


@contextlib.contextmanager
def replaced(names: Iterable[str], replacement: Callable[[str, Function], Function]) -> Iterator[None]:
    """Replaces functions of ``os``, and ``flock``, by what ``replacement`` makes of their name and the real function."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            owner = fcntl if name == "flock" else os
            patch.setattr(owner, name, replacement(name, getattr(owner, name)))
        yield


@contextlib.contextmanager
def failing_calls(
    error: int,
    *names: str,
    text: str = "",
    when: Callable[[int], bool] = lambda number: True,
    takes_effect: bool = False,
    do: Callable[[], object] = lambda: None,
) -> Iterator[list[str]]:
    """Makes functions of ``os`` raise an ``OSError`` with the errno ``error``; with 0, it raises nothing.

    Args:
        text: what the arguments of a call must contain.
        when: whether the call with this number fails; the first call has number 1.
        takes_effect: whether a call takes effect before it fails.
        do: is called before a call that fails.

    Yields the list of the calls, which grows.
    """
    calls: list[str] = []

    def failing(name: str, real: Function) -> Function:
        def call(*args: Any, **options: Any) -> Any:
            if text not in f"{args}":
                return real(*args, **options)
            calls.append(name)
            if not when(len(calls)):
                return real(*args, **options)
            do()
            result = real(*args, **options) if takes_effect or not error else None
            if error:
                raise OSError(error, os.strerror(error), *args[:1])
            return result

        return call

    with replaced(names, failing):
        yield calls


class FileFaults:
    """Numbers the file operations below ``folders``, and makes selected operations fail.

    Operations on a descriptor count if its file was opened below ``folders``. A ``close`` that fails still closes the
    descriptor, as on Linux.
    """

    def __init__(self, *folders: Path) -> None:
        self.folders = tuple(f"{folder}" for folder in folders)
        self.count = 0
        self.failed: list[str] = []
        self._descriptors: set[int] = set()
        self._lock = threading.Lock()
        self._error = 0
        self._should_fail: Callable[[int], bool] = lambda number: False

    @contextlib.contextmanager
    def failing(self, error: int, should_fail: Callable[[int], bool]) -> Iterator[FileFaults]:
        """Restarts the count at 0. Operations for whose number ``fails`` returns true raise ``OSError`` with the errno ``error``."""
        self.count, self.failed, self._error, self._should_fail = 0, [], error, should_fail
        with replaced(_BY_PATH, self._by_path), replaced(_BY_DESCRIPTOR, self._by_descriptor):
            yield self

    def _by_path(self, name: str, real: Function) -> Function:
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and os.fsdecode(path).startswith(self.folders):
                self._count(name, path)
                result = real(path, *args, **kwargs)
                if name == "open":
                    self._descriptors.add(result)
                return result
            return real(path, *args, **kwargs)

        return call

    def _by_descriptor(self, name: str, real: Function) -> Function:
        def call(fd: Any, *args: Any, **kwargs: Any) -> Any:
            is_counted = fd in self._descriptors
            if name == "close":
                self._descriptors.discard(fd)
                real(fd)
            if is_counted:
                self._count(name, None)
            return None if name == "close" else real(fd, *args, **kwargs)

        return call

    def _count(self, name: str, path: Any) -> None:
        with self._lock:
            number, self.count = self.count, self.count + 1
        if self._should_fail(number):
            self.failed.append(name)
            raise OSError(self._error, os.strerror(self._error), path)


@contextlib.contextmanager
def own_disk(folder: Path, size: str) -> Iterator[None]:
    """A tmpfs over ``folder``, which is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
