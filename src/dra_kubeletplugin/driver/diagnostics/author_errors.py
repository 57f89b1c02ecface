"""Explains a fault in an author's code: the line in that code, the nearest known name, and the author's frames only."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any, TypeVar

from ...errors import (  # fmt: skip
    BadAnswerError,
    DraError,
    DriverError,
    HostPathMissingError,
    InvalidObjectError,
    InvalidSpecError,
    describe,
    is_a,
    printable,
)
from .hints import hint

E = TypeVar("E", bound=BaseException)
_FRAMEWORK = str(Path(__file__).parents[2]) + os.sep
_PYTHON = str(Path(os.__file__).parent) + os.sep  # the standard library
# Folders of libraries, also in an environment inside the driver's folder.
_INSTALLED = {"site-packages", "dist-packages"}
# Errors of the framework's classes about an author's arguments.
_ARGUMENT_ERRORS = (DriverError, InvalidObjectError, InvalidSpecError)


def without_frames(e: E) -> E:
    """Deletes the tracebacks of an exception, its causes and its contexts, and returns the exception.

    Frames keep every local variable of the failed work, such as a decoded claim, often in a cycle that only a garbage collection frees.
    """
    seen: set[int] = set()
    below: BaseException | None = e
    while below is not None and id(below) not in seen:
        seen.add(id(below))
        BaseException.with_traceback(below, None)
        cause, context = (vars(BaseException)[name].__get__(below) for name in ("__cause__", "__context__"))
        below = cause if cause is not None else context
    return e


def explained(e: BaseException) -> str:
    """Returns ``TypeName: message, did you mean ...? (folder/file.py:14)`` on one line. Never raises."""
    text, suffix = describe(e), _hint(e)
    return f"{text.rstrip('.') if suffix else text}{suffix}{_bracketed(place(e))}"


def located(e: DraError) -> DraError:
    """Adds the author's line to an error of the framework's classes about an author's arguments.

    Any other exception is returned unchanged. If it cannot be logged, an equal error of the framework's class is returned.
    """
    if type(e) in _ARGUMENT_ERRORS and _raised_by(e, _is_framework) and (where := place(e)):
        return type(e)(f"{printable(e)} ({where})")
    return e if _can_be_logged(e) else _as_own_class(e)


def _can_be_logged(e: BaseException) -> bool:
    """Whether an exception of an author's class can be printed and hashed, as Python and the framework do."""
    try:
        return not isinstance(e, SyntaxError | BaseExceptionGroup) and bool(repr(e)) and isinstance(hash(e), int)
    except BaseException:  # an author's object may raise anything
        return False


def _as_own_class(e: DraError) -> DraError:
    """Returns the same error as an instance of the framework's class."""
    kind = next(k for k in type(e).__mro__ if k.__module__ == DraError.__module__)
    made: DraError = kind(printable(e)).with_traceback(_slot(e, "__traceback__"))
    return made


def place(e: BaseException) -> str:
    """Returns ``folder/file.py:14``: the author's innermost line, before the code entered libraries.

    Empty if there is none, and for a SyntaxError, which contains its place.
    """
    if is_a(e, SyntaxError):
        return ""
    lines = next((found for one in _chain(e) if (found := list(_own_lines(one)))), [])
    if not lines:
        return ""
    code, line = lines[-1][0].f_code, lines[-1][1]
    return _shown(code.co_filename, line)


def at_work(frame: FrameType | None) -> str:
    """Returns the author's line that an event loop or thread runs now: ``folder/file.py:14 in Card.prepare``."""
    stack = []
    while frame is not None and frame.f_code is not asyncio.BaseEventLoop.run_forever.__code__:
        stack.append((frame, frame.f_lineno))
        frame = frame.f_back
    found = list(_own(reversed(stack)))
    if not found:
        return ""
    code, line = found[-1][0].f_code, found[-1][1]
    return f"{_shown(code.co_filename, line)} in {printable(code.co_qualname)}"


def defined(method: Callable[..., Any]) -> str:
    """Returns ``folder/file.py:14``, where a function is defined; empty if it is not a Python function."""
    try:
        while isinstance(method, functools.partial):
            method = method.func
        code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
    except Exception:  # an author's object may raise anything
        return ""
    return _shown(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else ""


@contextlib.contextmanager
def reading_result(method: Callable[..., Any]) -> Iterator[None]:
    """Adds the line where ``method`` is defined to errors about its result, also to errors that the result's objects raise."""
    try:
        yield
    except (DriverError, BadAnswerError, HostPathMissingError) as e:
        # the framework's class, not an author's subclass
        own_class = next(k for k in (BadAnswerError, HostPathMissingError, DriverError) if is_a(e, k))
        raise own_class(f"{printable(e)}{_bracketed(defined(method))}") from _slot(e, "__cause__")
    except (DraError, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as e:
        raise DriverError(f"the result of {_named(method)}() cannot be read: {explained(e)}") from e


@contextlib.contextmanager
def looking_at(what: str) -> Iterator[None]:
    """Converts exceptions of an author's objects to :class:`DriverError`. The block must not await."""
    try:
        yield
    except (DraError, KeyboardInterrupt):
        raise
    except BaseException as e:
        if _raised_by(e, _is_framework):
            raise
        raise DriverError(f"{what} cannot be read: {explained(e)}") from e


def own_traceback(e: BaseException) -> BaseException | None:
    """Removes the framework's frames from the traceback. Returns the exception if the rest shows more than :func:`place`; else None.

    If only one function of the author is involved, the message already contains its line.
    """
    chain = _chain(e)
    codes = [f.f_code for one in chain for f, _ in _frames(_slot(one, "__traceback__"))]
    functions = {
        c
        for c in codes
        if not (_is_framework(c.co_filename) or _is_standard_library(c.co_filename) or c.co_name.startswith("<"))
    }
    if len(functions) < 2 and not is_a(e, BaseExceptionGroup) and len(chain) == 1 + _is_stop(e):
        return None
    try:
        traceback.TracebackException(type(e), e, _slot(e, "__traceback__"))
    except BaseException:  # an author's object may raise anything; the log could not write it
        return None
    for one in chain:
        BaseException.with_traceback(one, _without_framework_frames(_slot(one, "__traceback__")))
    return e


def _without_framework_frames(tb: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the framework's frames, also without those between frames of the author."""
    own_links = [t for t in _links(tb) if not _is_framework(t.tb_frame.f_code.co_filename)]
    for one, following in itertools.zip_longest(own_links, own_links[1:]):
        one.tb_next = following
    return own_links[0] if own_links else None


def _chain(e: BaseException) -> list[BaseException]:
    """Returns an exception with its causes and contexts."""
    out: dict[int, BaseException] = {}
    below: BaseException | None = e
    # by identity: objects of an author's class may be equal or refuse the comparison
    while below is not None and id(below) not in out:
        out[id(below)] = below
        cause = _slot(below, "__cause__")
        hidden = _slot(below, "__suppress_context__")  # by `from None`
        below = cause if cause is not None or hidden else _slot(below, "__context__")
    return list(out.values())


def _is_stop(e: BaseException) -> bool:
    """Whether Python raised ``e`` instead of a StopIteration, which no coroutine can raise."""
    return is_a(e, RuntimeError) and is_a(_slot(e, "__cause__"), StopIteration)


def replacement_message(value: object, wanted: str, *, of: str = "", returned: bool = True) -> str:
    """Returns a hint for ``value``, which an author supplied instead of a list of ``wanted``.

    ``returned`` is True if a method returned it.
    """
    if value is None and returned:
        return ": is a `return` missing?"
    if is_a(value, AsyncIterator):
        return ": collect it, `[x async for x in found]`"
    if is_a(value, Mapping):
        return ": return its values, `list(found.values())`"
    if type(value).__name__ == wanted:
        return f": put it into a list, `[{of or wanted.lower()}]`"
    return forgotten(value)


def instead_of_item(value: object, wanted: str) -> str:
    """Returns a hint for a wrong item of a list."""
    if is_a(value, (list, tuple)):
        return ": put its items into the outer list"
    if is_a(value, type) and value.__name__ == wanted:
        return f": create an instance, `{wanted}(...)`"
    return forgotten(value)


def forgotten(value: object) -> str:
    """Returns a hint if an ``await`` or a call is missing; else empty."""
    if is_a(value, Awaitable):
        return ": is an `await` missing?"
    if is_a(value, (FunctionType, MethodType)):
        return ": is `()` missing?"
    return ""


def _bracketed(where: str) -> str:
    return f" ({where})" if where else ""


def _shown(filename: str, line: int) -> str:
    path = Path(filename)
    return printable(f"{path.parent.name}/{path.name}:{line}" if path.parent.name else f"{path.name}:{line}")


def _own_lines(e: BaseException) -> Iterator[tuple[FrameType, int]]:
    return _own(_frames(_slot(e, "__traceback__")))


def _own(stack: Iterable[tuple[FrameType, int]]) -> Iterator[tuple[FrameType, int]]:
    """Yields the driver's own frames: those in the folder of the first frame that is neither the framework's nor Python's."""
    home = ""
    for frame, line in stack:
        name = frame.f_code.co_filename
        if _is_framework(name) or _is_standard_library(name):
            continue
        folder = str(Path(name).parent) + os.sep
        home = home or folder
        if folder.startswith(home) and not _INSTALLED.intersection(Path(folder[len(home) :]).parts):
            yield frame, line


def _slot(e: BaseException, name: str) -> Any:
    """Reads a slot of BaseException, bypassing attributes that an author's class may define."""
    return vars(BaseException)[name].__get__(e)


def _links(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _frames(tb: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    return ((t.tb_frame, t.tb_lineno) for t in _links(tb))


def _is_framework(filename: str) -> bool:
    return filename.startswith(_FRAMEWORK)


def _is_standard_library(filename: str) -> bool:
    return filename.startswith("<") or (
        filename.startswith(_PYTHON) and not filename.startswith(tuple(_PYTHON + p for p in _INSTALLED))
    )


def _raised_by(e: BaseException, who: Callable[[str], bool]) -> bool:
    frames = list(_frames(_slot(e, "__traceback__")))
    return bool(frames) and who(frames[-1][0].f_code.co_filename)


def _named(method: Callable[..., Any]) -> str:
    return printable(getattr(method, "__name__", "a method"))


def _hint(e: BaseException) -> str:
    try:
        return hint(e, next(iter(reversed([f for f, _ in _own_lines(e)])), None))
    except BaseException:  # an author's object may raise anything
        return ""
