"""Explains a fault in an author's code: the line in that code, the nearest known name, and the author's frames only."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any, TypeVar

from ...errors import (
    BadAnswerError,
    DraError,
    DriverError,
    HostPathMissingError,
    InvalidObjectError,
    InvalidSpecError,
    describe,
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
_PLACE = re.compile(r" \([^ ()]+:[0-9]+\)$")  # as _bracketed() writes it


def without_frames(e: E) -> E:
    """Deletes the tracebacks of an exception, its causes and its contexts, and returns the exception.

    Frames keep every local variable of the failed work, such as a decoded claim, often in a cycle that only a garbage collection frees.
    """
    for one in _chain(e, hidden=True):
        one.__traceback__ = None
    return e


def explain_exception(e: BaseException) -> str:
    """Returns ``TypeName: message, did you mean ...? (folder/file.py:14)`` on one line. Never raises."""
    text, suffix = describe(e), _hint(e)
    return f"{text.rstrip('.') if suffix else text}{suffix}{_bracketed(place(e))}"


def with_author_place(e: DraError) -> DraError:
    """Adds the author's line to an error of the framework's classes about an author's arguments. Other exceptions do not change.

    An error that already names a line keeps it: ``setup_<step>`` has failed there, and ``shared_step`` raises the error in prepare.
    """
    if _PLACE.search(printable(e)):
        return e
    if type(e) in _ARGUMENT_ERRORS and _raised_by_framework(e) and (where := place(e)):
        return type(e)(f"{printable(e)} ({where})")
    return e


def place(e: BaseException) -> str:
    """Returns ``folder/file.py:14``: the author's innermost line, before the code entered libraries.

    Empty if there is none, and for a SyntaxError, which contains its place.
    """
    if isinstance(e, SyntaxError):
        return ""
    lines = next((found for one in _chain(e) if (found := _own_lines(one))), [])
    return _place_of(*lines[-1]) if lines else ""


def running_line(frame: FrameType | None) -> str:
    """Returns the author's line that an event loop or thread runs now: ``folder/file.py:14 in Card.prepare``."""
    stack = []
    while frame is not None and frame.f_code is not asyncio.BaseEventLoop.run_forever.__code__:
        stack.append((frame, frame.f_lineno))
        frame = frame.f_back
    found = list(_own(reversed(stack)))
    return f"{_place_of(*found[-1])} in {printable(found[-1][0].f_code.co_qualname)}" if found else ""


def definition_place(method: Callable[..., Any]) -> str:
    """Returns ``folder/file.py:14``, where a function is defined; empty if it is not a Python function."""
    while isinstance(method, functools.partial):
        method = method.func
    code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
    return _shown(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else ""


@contextlib.contextmanager
def reading_result(method: Callable[..., Any]) -> Iterator[None]:
    """Adds the line where ``method`` is defined to errors about its result, also to errors that the result's objects raise."""
    try:
        yield
    except (DriverError, BadAnswerError, HostPathMissingError) as e:
        raise type(e)(f"{printable(e)}{_bracketed(definition_place(method))}") from e.__cause__
    except DraError:
        raise
    except Exception as e:
        name = getattr(method, "__name__", "a method")
        raise DriverError(f"the result of {name}() cannot be read: {explain_exception(e)}") from e


@contextlib.contextmanager
def author_code(
    what: str, kind: type[DraError], *passed: type[Exception], hint: Callable[[BaseException], str] = lambda e: ""
) -> Iterator[None]:
    """Converts exceptions of an author's code that the framework calls outside of :class:`Calls`, also ``SystemExit``.

    The block must not await. ``DraError`` and ``KeyboardInterrupt`` pass.

    Args:
        what: the code, for the message.
        kind: the exception to raise.
        passed: more exceptions that pass.
        hint: returns the end of the message.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except passed:
        raise
    except DraError as e:
        raise with_author_place(e) from None
    except BaseException as e:
        raise kind(f"{what} raised {explain_exception(e)}{hint(e)}") from e


def own_traceback(e: BaseException) -> BaseException | None:
    """Removes the framework's frames from the traceback. Returns the exception if the remaining frames show more than :func:`place`; else
    None.

    If only one function of the author is involved, the message already contains its line.
    """
    chain = _chain(e)
    own = [
        link.tb_frame.f_code
        for one in chain
        for link in _links(one)
        if not _is_library(link.tb_frame.f_code.co_filename)
    ]
    functions = {code for code in own if not code.co_name.startswith("<")}
    # Python raises RuntimeError instead of a StopIteration, which no coroutine can raise.
    is_stop = isinstance(e, RuntimeError) and isinstance(e.__cause__, StopIteration)
    if len(functions) < 2 and not isinstance(e, BaseExceptionGroup) and len(chain) == 1 + is_stop:
        return None
    for one in chain:
        links = [link for link in _links(one) if not _is_framework(link.tb_frame.f_code.co_filename)]
        for link, following in itertools.zip_longest(links, links[1:]):
            link.tb_next = following
        one.__traceback__ = links[0] if links else None
    return e


def _chain(e: BaseException, *, hidden: bool = False) -> list[BaseException]:
    """Returns an exception with its causes and contexts; with ``hidden``, also contexts that ``from None`` hides."""
    out: list[BaseException] = []
    below: BaseException | None = e
    while below is not None and below not in out:
        out.append(below)
        below = below.__cause__ or (below.__context__ if hidden or not below.__suppress_context__ else None)
    return out


def replacement_message(value: object, wanted: str, *, of: str = "", returned: bool = True) -> str:
    """Returns a hint for ``value``, which an author supplied instead of a list of ``wanted``.

    ``returned`` is True if a method returned it.
    """
    if value is None and returned:
        return ": is a `return` missing?"
    if isinstance(value, AsyncIterator):
        return ": collect it, `[x async for x in found]`"
    if isinstance(value, Mapping):
        return ": return its values, `list(found.values())`"
    if type(value).__name__ == wanted:
        return f": put it into a list, `[{of or wanted.lower()}]`"
    return missing_await_hint(value)


def instead_of_item(value: object, wanted: str) -> str:
    """Returns a hint for a wrong item of a list."""
    if isinstance(value, (list, tuple)):
        return ": put its items into the outer list"
    if isinstance(value, type) and value.__name__ == wanted:
        return f": create an instance, `{wanted}(...)`"
    return missing_await_hint(value)


def missing_await_hint(value: object) -> str:
    """Returns a hint if an ``await`` or a call is missing; else empty."""
    if isinstance(value, Awaitable):
        return ": is an `await` missing?"
    if isinstance(value, (FunctionType, MethodType)):
        return ": is `()` missing?"
    return ""


def _bracketed(where: str) -> str:
    return f" ({where})" if where else ""


def _place_of(frame: FrameType, line: int) -> str:
    return _shown(frame.f_code.co_filename, line)


def _shown(filename: str, line: int) -> str:
    path = Path(filename)
    return printable(f"{path.parent.name}/{path.name}:{line}" if path.parent.name else f"{path.name}:{line}")


def _own_lines(e: BaseException) -> list[tuple[FrameType, int]]:
    return list(_own((link.tb_frame, link.tb_lineno) for link in _links(e)))


def _own(stack: Iterable[tuple[FrameType, int]]) -> Iterator[tuple[FrameType, int]]:
    """Yields the driver's own frames: code in the folder of the first frame that belongs neither to the framework nor to Python."""
    home = ""
    for frame, line in stack:
        name = frame.f_code.co_filename
        if _is_library(name):
            continue
        folder = str(Path(name).parent) + os.sep
        home = home or folder
        if folder.startswith(home) and not _INSTALLED.intersection(Path(folder[len(home) :]).parts):
            yield frame, line


def _links(e: BaseException) -> Iterator[TracebackType]:
    tb = e.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _raised_by_framework(e: BaseException) -> bool:
    links = list(_links(e))
    return bool(links) and _is_framework(links[-1].tb_frame.f_code.co_filename)


def _is_framework(filename: str) -> bool:
    return filename.startswith(_FRAMEWORK)


def _is_library(filename: str) -> bool:
    return _is_framework(filename) or _is_standard_library(filename)


def _is_standard_library(filename: str) -> bool:
    return filename.startswith("<") or (
        filename.startswith(_PYTHON) and not filename.startswith(tuple(_PYTHON + p for p in _INSTALLED))
    )


def _hint(e: BaseException) -> str:
    frames = [frame for frame, _ in _own_lines(e)]
    try:
        return hint(e, frames[-1] if frames else None)
    except Exception:  # an error in a hint must not hide the author's error
        return ""
