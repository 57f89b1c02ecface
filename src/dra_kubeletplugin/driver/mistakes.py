"""A fault in an author's code in words for him: where it stands, the nearest name that there is, and his own lines of it."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

from ..errors import BadAnswerError, DriverError, InvalidObjectError, InvalidSpecError, describe, near, printable

_OURS = str(Path(__file__).parents[1]) + os.sep
_PYTHON = str(Path(os.__file__).parent) + os.sep  # its own library
_INSTALLED = {"site-packages", "dist-packages"}  # also where an environment is within the driver's folder
_KEYWORD = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")
_IMPORT = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_OUR_WORDS = (DriverError, InvalidObjectError, InvalidSpecError)  # what our classes say of an author's arguments


def explained(e: BaseException) -> str:
    """``TypeName: message, did you mean ...? (folder/file.py:14)`` on one line. Never raises, as nothing here does."""
    return f"{describe(e)}{_hint(e)}{_bracketed(place(e))}"


def located(e: BaseException) -> BaseException:
    """What our classes said of an author's arguments, with the line in which he gave them; anything else as it is."""
    if type(e) not in _OUR_WORDS or not _raised_by_us(e) or not (where := place(e)):
        return e
    return type(e)(f"{printable(e)} ({where})")


def place(e: BaseException) -> str:
    """``folder/file.py:14`` of the author's innermost line, before it went into libraries; empty where there is none, and
    for a SyntaxError, which says so itself."""
    if isinstance(e, SyntaxError):
        return ""
    lines = next((found for one in _chain(e) if (found := list(_own_lines(one)))), [])
    if not lines:
        return ""
    code, line = lines[-1][0].f_code, lines[-1][1]
    return _shown(code.co_filename, line)


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
    """What is wrong with an answer is told with the line in which the method is written that gave it."""
    try:
        yield
    except (DriverError, BadAnswerError) as e:
        told = BadAnswerError if isinstance(e, BadAnswerError) else DriverError  # an author's own is made otherwise
        raise told(f"{printable(e)}{_bracketed(defined(method))}") from e.__cause__


def own_traceback(e: BaseException) -> BaseException | None:
    """The exception, its traceback without our frames, where that tells more than :func:`place` does; else None.

    An author's one function is in the message already; what it called, his own or a vendor's, is not.
    """
    chain = _chain(e)
    codes = [f.f_code for one in chain for f, _ in _frames(_slot(one, "__traceback__"))]
    functions = {c for c in codes if not _is_ours(c.co_filename) and not c.co_name.startswith("<")}
    if len(functions) < 2 and not isinstance(e, BaseExceptionGroup) and len(chain) == 1 + _is_stop(e):
        return None
    for one in chain:
        tb = _slot(one, "__traceback__")
        while tb is not None and _is_ours(tb.tb_frame.f_code.co_filename):
            tb = tb.tb_next
        BaseException.with_traceback(one, tb)
    return e


def _chain(e: BaseException) -> list[BaseException]:
    """An exception and what it was raised from, or while."""
    out: dict[int, BaseException] = {}
    below: BaseException | None = e
    while below is not None and id(below) not in out:  # two of an author's class may be equal, or refuse to say
        out[id(below)] = below
        cause = _slot(below, "__cause__")
        below = _slot(below, "__context__") if cause is None else cause
    return list(out.values())


def _is_stop(e: BaseException) -> bool:
    """Whether Python put it in the place of a StopIteration, which no coroutine can raise."""
    return isinstance(e, RuntimeError) and isinstance(_slot(e, "__cause__"), StopIteration)


def instead(value: object, wanted: str, *, of: str = "", answered: bool = True) -> str:
    """What an author may have forgotten where he gave ``value`` in place of a list of ``wanted``; ``answered``: by a method."""
    if value is None and answered:
        return ": is a `return` missing?"
    if issubclass(type(value), Awaitable):
        return ": is an `await` missing?"
    if issubclass(type(value), AsyncIterator):
        return ": collect it, `[x async for x in found]`"
    if issubclass(type(value), Mapping):
        return ": give its values, `list(found.values())`"
    if type(value).__name__ == wanted:
        return f": put it into a list, `[{of or wanted.lower()}]`"
    return ""


def _bracketed(where: str) -> str:
    return f" ({where})" if where else ""


def _shown(filename: str, line: int) -> str:
    path = Path(filename)
    return printable(f"{path.parent.name}/{path.name}:{line}" if path.parent.name else f"{path.name}:{line}")


def _own_lines(e: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Frames in the folder of the first one that is neither ours nor Python's: the driver's own code, not what it calls."""
    home = ""
    for frame, line in _frames(_slot(e, "__traceback__")):
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


def _frames(tb: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while tb is not None:
        yield tb.tb_frame, tb.tb_lineno
        tb = tb.tb_next


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OURS)


def _is_python_s(filename: str) -> bool:
    return filename.startswith("<") or (
        filename.startswith(_PYTHON) and not filename.startswith(tuple(_PYTHON + p for p in _INSTALLED))
    )


def _raised_by_us(e: BaseException) -> bool:
    frames = list(_frames(_slot(e, "__traceback__")))
    return bool(frames) and _is_ours(frames[-1][0].f_code.co_filename)


def _hint(e: BaseException) -> str:
    try:
        text = str(e)
        if "id you mean" in text:  # newer releases of Python say it themselves
            return ""
        name, known = _sought(e, text)
        return near(name, known)
    except BaseException:  # an author's object may be anything inside
        return ""


def _sought(e: BaseException, text: str) -> tuple[str, Iterable[str]]:
    """The name that is not there, and those that are."""
    frame = next(iter(reversed([f for f, _ in _own_lines(e)])), None)
    if isinstance(e, AttributeError) and e.name:
        return e.name, [n for n in dir(e.obj) if n.startswith("_") is e.name.startswith("_")]
    if isinstance(e, NameError) and e.name and frame:
        return e.name, [*frame.f_locals, *frame.f_globals, *dir(builtins)]
    if isinstance(e, ImportError) and (found := _IMPORT.match(text)):
        return found[1], dir(sys.modules.get(found[2], ModuleType("none")))
    if isinstance(e, TypeError) and frame and (found := _KEYWORD.match(text)):
        return found[2], _parameters(found[1], frame)
    return "", ()


def _parameters(called: str, frame: FrameType) -> Iterable[str]:
    """Names of the parameters of what the author called, by its name in the message."""
    head, *rest = called.removesuffix(".__init__").split(".")
    ours = sys.modules[__name__.partition(".")[0]]
    found: Any = next((p[head] for p in (frame.f_locals, frame.f_globals) if head in p), None) or getattr(ours, head)
    for name in rest:
        found = getattr(found, name)
    return [n for n in inspect.signature(found).parameters if not n.startswith("_")]
