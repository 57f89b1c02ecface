"""Explains a fault in an author's code: the line in that code, the nearest known name, and the author's frames only."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import inspect
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any, TypeVar

from ...base.text import did_you_mean
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

E = TypeVar("E", bound=BaseException)
_FRAMEWORK = str(Path(__file__).parents[2]) + os.sep
_PYTHON = str(Path(os.__file__).parent) + os.sep  # the standard library
# Folders of libraries, also in an environment inside the driver's folder.
_INSTALLED = {"site-packages", "dist-packages"}
# Errors of the framework's classes about an author's arguments.
_ARGUMENT_ERRORS = (DriverError, InvalidObjectError, InvalidSpecError)
_PLACE = re.compile(r" \([^ ()]+:[0-9]+\)$")  # as _bracketed() writes it
_PACKAGE = __name__.partition(".")[0]
_IMPORT = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
# Python's messages about `await` in the wrong place, and what to do.
_AWAIT = (
    (re.compile(r"can't be used in 'await'"), ": remove the `await`, it is not a coroutine"),
    (re.compile(r"\bcoroutine\b(?! raised)"), ": is an `await` missing?"),
    (re.compile("from a running event loop$"), ": `await` it, `async def` methods run on the event loop"),
    (re.compile("^no running event loop"), ": make it `async def`, plain methods run in threads"),
)


def without_frames(e: E) -> E:
    """Deletes the tracebacks of an exception, its causes and its contexts, and returns the exception.

    Frames keep every local variable of the failed work, such as a decoded claim, often in a cycle that only a garbage collection frees.
    """
    for one in _chain(e, hidden=True):
        one.__traceback__ = None
    return e


def explain_exception(e: BaseException) -> str:
    """Returns ``TypeName: message, did you mean ...? (folder/file.py:14)`` on one line. Never raises."""
    text, suffix = describe(e), ""
    with contextlib.suppress(Exception):  # an object of a vendor's library may raise when its names are listed
        suffix = _hint(e)
    return f"{text.rstrip('.') if suffix else text}{suffix}{_bracketed(place(e))}"


def with_author_place(e: DraError) -> DraError:
    """Adds the author's line to an error of the framework's classes about an author's arguments. Other exceptions do not change.

    An error that already names a line keeps it: ``setup_<step>`` has failed there, and ``shared_step`` raises the error in prepare.
    """
    if _PLACE.search(printable(e)):
        return e
    raising = [tb.tb_frame.f_code.co_filename for tb in _links(e)][-1:]
    if type(e) in _ARGUMENT_ERRORS and any(name.startswith(_FRAMEWORK) for name in raising) and (where := place(e)):
        return type(e)(f"{printable(e)} ({where})")
    return e


def place(e: BaseException) -> str:
    """Returns ``folder/file.py:14``: the author's innermost line, before the code entered libraries.

    Empty if there is none, and for a SyntaxError, which contains its place.
    """
    if isinstance(e, SyntaxError):
        return ""
    lines = next((found for one in _chain(e) if (found := _own_lines(one))), [])
    return _shown(lines[-1][0].f_code.co_filename, lines[-1][1]) if lines else ""


def running_line(frame: FrameType | None) -> str:
    """Returns the author's line that an event loop or thread runs now: ``folder/file.py:14 in Card.prepare``."""
    stack = []
    while frame is not None and frame.f_code is not asyncio.BaseEventLoop.run_forever.__code__:
        stack.append((frame, frame.f_lineno))
        frame = frame.f_back
    for frame, line in list(_own(reversed(stack)))[-1:]:
        return f"{_shown(frame.f_code.co_filename, line)} in {printable(frame.f_code.co_qualname)}"
    return ""


def calling_place(frame: FrameType | None) -> str:
    """Returns ``folder/file.py:14``, the author's line that has called the framework; empty if there is none."""
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return _shown(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def definition_place(method: Callable[..., Any]) -> str:
    """Returns ``folder/file.py:14``, where a function is defined; empty if it is not a Python function."""
    code = getattr(inspect.unwrap(method), "__code__", None)
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
    """Converts exceptions of an author's code that the framework calls outside of :class:`.Calls`, also ``SystemExit``.

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
    """Removes the framework's frames before the author's code from the traceback.

    Returns the exception if its traceback shows more than :func:`place`; else None. If only one function of the author is involved, the
    message already contains its line.
    """
    chain = _chain(e)
    functions = set()
    for one in chain:
        one.__traceback__ = next((tb for tb in _links(one) if not _is_library(tb.tb_frame.f_code.co_filename)), None)
        codes = (tb.tb_frame.f_code for tb in _links(one))
        functions |= {code for code in codes if not code.co_name.startswith("<") and not _is_library(code.co_filename)}
    return e if len(functions) > 1 or len(chain) > 1 or isinstance(e, BaseExceptionGroup) else None


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
    if isinstance(value, Mapping):
        return ": return its values, `list(found.values())`"
    if type(value).__name__ == wanted:
        return f": put it into a list, `[{of or wanted.lower()}]`"
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


def _is_library(filename: str) -> bool:
    """Whether code belongs to the framework or to Python's standard library."""
    of_python = filename.startswith(_PYTHON) and not filename.startswith(tuple(_PYTHON + p for p in _INSTALLED))
    return filename.startswith("<") or filename.startswith(_FRAMEWORK) or of_python


def _hint(e: BaseException) -> str:
    """Returns the nearest name for a misspelt one, the import that a name needs, or what to do about an ``await``."""
    text, found = str(e), ""
    if "id you mean" in text:  # newer releases of Python add the hint themselves
        return ""
    if isinstance(e, NameError) and e.name:
        if e.name in dir(sys.modules[_PACKAGE]):
            return f": write `from {_PACKAGE} import {e.name}`"
        if e.name in sys.stdlib_module_names:
            return f": write `import {e.name}`"
        frames = [frame for frame, _ in _own_lines(e)][-1:]
        found = did_you_mean(e.name, [n for f in frames for n in (*f.f_locals, *f.f_globals, *dir(builtins))])
    elif isinstance(e, AttributeError) and e.name and e.obj is not None:
        found = did_you_mean(e.name, [n for n in dir(e.obj) if n.startswith("_") is e.name.startswith("_")])
    elif isinstance(e, ImportError) and (named := _IMPORT.match(text)) and (module := sys.modules.get(named[2])):
        found = did_you_mean(named[1], getattr(module, "__all__", dir(module)))  # `__all__` lists its public names
    return found or next((what for pattern, what in _AWAIT if pattern.search(text)), "")
