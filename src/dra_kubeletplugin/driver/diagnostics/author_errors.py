"""A fault in an author's code in words for him: where it stands, the nearest name that there is, and his own lines of it."""

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
_OURS = str(Path(__file__).parents[2]) + os.sep
_PYTHON = str(Path(os.__file__).parent) + os.sep  # its own library
_INSTALLED = {"site-packages", "dist-packages"}  # also where an environment is within the driver's folder
_OUR_WORDS = (DriverError, InvalidObjectError, InvalidSpecError)  # what our classes say of an author's arguments


def without_frames(e: E) -> E:
    """The exception itself, without its traceback and those of what it was raised from, or while.

    Frames keep every local variable of the work that failed, such as a decoded claim, often in a cycle that only a collection frees.
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
    """``TypeName: message, did you mean ...? (folder/file.py:14)`` on one line. Never raises, as nothing here does."""
    said, help = describe(e), _hint(e)
    return f"{said.rstrip('.') if help else said}{help}{_bracketed(place(e))}"


def located(e: DraError) -> DraError:
    """What our classes said of an author's arguments, with the line in which he gave them; anything else as it is, but for what
    nobody could tell further."""
    if type(e) in _OUR_WORDS and _raised_by(e, _is_ours) and (where := place(e)):
        return type(e)(f"{printable(e)} ({where})")
    return e if _can_be_told(e) else _told_as(e)


def _can_be_told(e: BaseException) -> bool:
    """Whether an exception of an author's class can be looked at as Python and our own code do."""
    try:
        return not isinstance(e, SyntaxError | BaseExceptionGroup) and bool(repr(e)) and isinstance(hash(e), int)
    except BaseException:  # an author's object may be anything inside
        return False


def _told_as(e: DraError) -> DraError:
    """The same of our own class."""
    kind = next(k for k in type(e).__mro__ if k.__module__ == DraError.__module__)
    made: DraError = kind(printable(e)).with_traceback(_slot(e, "__traceback__"))
    return made


def place(e: BaseException) -> str:
    """``folder/file.py:14`` of the author's innermost line, before it went into libraries; empty where there is none, and
    for a SyntaxError, which says so itself."""
    if is_a(e, SyntaxError):
        return ""
    lines = next((found for one in _chain(e) if (found := list(_own_lines(one)))), [])
    if not lines:
        return ""
    code, line = lines[-1][0].f_code, lines[-1][1]
    return _shown(code.co_filename, line)


def at_work(frame: FrameType | None) -> str:
    """The same of what an event loop runs now: ``folder/file.py:14 in Card.prepare``."""
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
    """``folder/file.py:14`` where a function is written; empty where it is no function of Python's."""
    try:
        while isinstance(method, functools.partial):
            method = method.func
        code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
    except Exception:  # an author's object may be anything inside
        return ""
    return _shown(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else ""


@contextlib.contextmanager
def judging(method: Callable[..., Any]) -> Iterator[None]:
    """What is wrong with an answer is told with the line in which the method is written that gave it; and so is what its objects raise
    when they are looked at."""
    try:
        yield
    except (DriverError, BadAnswerError, HostPathMissingError) as e:
        told = next(k for k in (BadAnswerError, HostPathMissingError, DriverError) if is_a(e, k))  # not an author's own
        raise told(f"{printable(e)}{_bracketed(defined(method))}") from _slot(e, "__cause__")
    except (DraError, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as e:
        raise DriverError(f"what {_named(method)}() answered cannot be read: {explained(e)}") from e


@contextlib.contextmanager
def looking_at(what: str) -> Iterator[None]:
    """What an author's objects raise when they are looked at is told as a fault of his: there is no await within."""
    try:
        yield
    except (DraError, KeyboardInterrupt):
        raise
    except BaseException as e:
        if _raised_by(e, _is_ours):
            raise
        raise DriverError(f"{what} cannot be read: {explained(e)}") from e


def own_traceback(e: BaseException) -> BaseException | None:
    """The exception, its traceback without our frames, where that tells more than :func:`place` does; else None.

    An author's one function is in the message already; what it called, his own or a vendor's, is not.
    """
    chain = _chain(e)
    codes = [f.f_code for one in chain for f, _ in _frames(_slot(one, "__traceback__"))]
    functions = {
        c for c in codes if not (_is_ours(c.co_filename) or _is_python_s(c.co_filename) or c.co_name.startswith("<"))
    }
    if len(functions) < 2 and not is_a(e, BaseExceptionGroup) and len(chain) == 1 + _is_stop(e):
        return None
    try:
        traceback.TracebackException(type(e), e, _slot(e, "__traceback__"))
    except BaseException:  # an author's object may be anything inside: a log could not write it
        return None
    for one in chain:
        BaseException.with_traceback(one, _without_ours(_slot(one, "__traceback__")))
    return e


def _without_ours(tb: TracebackType | None) -> TracebackType | None:
    """An author's lines, also where he is called by us who were called by him."""
    his = [t for t in _links(tb) if not _is_ours(t.tb_frame.f_code.co_filename)]
    for one, following in itertools.zip_longest(his, his[1:]):
        one.tb_next = following
    return his[0] if his else None


def _chain(e: BaseException) -> list[BaseException]:
    """An exception and what it was raised from, or while."""
    out: dict[int, BaseException] = {}
    below: BaseException | None = e
    while below is not None and id(below) not in out:  # two of an author's class may be equal, or refuse to say
        out[id(below)] = below
        cause = _slot(below, "__cause__")
        hidden = _slot(below, "__suppress_context__")  # by `from None`
        below = cause if cause is not None or hidden else _slot(below, "__context__")
    return list(out.values())


def _is_stop(e: BaseException) -> bool:
    """Whether Python put it in the place of a StopIteration, which no coroutine can raise."""
    return is_a(e, RuntimeError) and is_a(_slot(e, "__cause__"), StopIteration)


def replacement_message(value: object, wanted: str, *, of: str = "", answered: bool = True) -> str:
    """What an author may have forgotten where he gave ``value`` in place of a list of ``wanted``; ``answered``: by a method."""
    if value is None and answered:
        return ": is a `return` missing?"
    if is_a(value, AsyncIterator):
        return ": collect it, `[x async for x in found]`"
    if is_a(value, Mapping):
        return ": give its values, `list(found.values())`"
    if type(value).__name__ == wanted:
        return f": put it into a list, `[{of or wanted.lower()}]`"
    return forgotten(value)


def instead_of_item(value: object, wanted: str) -> str:
    """The same for one item of a list."""
    if is_a(value, (list, tuple)):
        return ": put what is in it into the one list"
    if is_a(value, type) and value.__name__ == wanted:
        return f": make one, `{wanted}(...)`"
    return forgotten(value)


def forgotten(value: object) -> str:
    """What is missing where a value is one that nobody gives on purpose."""
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
    """Frames in the folder of the first one that is neither ours nor Python's: the driver's own code, not what it calls."""
    home = ""
    for frame, line in stack:
        name = frame.f_code.co_filename
        if _is_ours(name) or _is_python_s(name):
            continue
        folder = str(Path(name).parent) + os.sep
        home = home or folder
        if folder.startswith(home) and not _INSTALLED.intersection(Path(folder[len(home) :]).parts):
            yield frame, line


def _slot(e: BaseException, name: str) -> Any:
    """Past whatever an author's class makes of attributes."""
    return vars(BaseException)[name].__get__(e)


def _links(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _frames(tb: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    return ((t.tb_frame, t.tb_lineno) for t in _links(tb))


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OURS)


def _is_python_s(filename: str) -> bool:
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
    except BaseException:  # an author's object may be anything inside
        return ""
