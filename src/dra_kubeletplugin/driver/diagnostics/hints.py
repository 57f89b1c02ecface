"""Hints for an author's exceptions: the nearest name, the known names, or a missing keyword such as ``await``."""

from __future__ import annotations

import builtins
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

from ...base.text import did_you_mean
from ...errors import printable

_PACKAGE = __name__.partition(".")[0]
_CALL = re.compile(
    r"([\w.]+)\(\) (?:got an unexpected keyword argument '(\w+)'|takes |missing \d+ required |got multiple |got too many )"
)
_IMPORT = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_NO_ITEMS = re.compile(r"'(\w+)' object (?:is not subscriptable|does not support item)")
_MAX_NAMES = 12  # names in a hint when none of them is similar
_LINE = 120  # characters of a source line in a hint
# Python's messages for calls in the wrong place, and what to do.
_MESSAGES = (
    (TypeError, re.compile(r"\bcoroutine\b"), ": is an `await` missing?"),
    (AttributeError, re.compile("'coroutine' object"), ": is an `await` missing?"),
    (TypeError, re.compile("can't be used in 'await'"), ": remove the `await`, it is not a coroutine"),
    (TypeError, re.compile("'async (?:for|with)' requires|asynchronous context manager"), ": remove the `async`"),
    (RuntimeError, re.compile("from a running event loop$"), ": `await` it, `async def` methods run on the event loop"),
    (
        RuntimeError,
        re.compile("^no running|no current event loop"),
        ": make it `async def`, plain methods run in threads",
    ),
    (
        AttributeError,
        re.compile("^immutable type|^cannot assign to field"),
        ": it is immutable, create a changed copy with `replace`",
    ),
)


def hint(e: BaseException, frame: FrameType | None) -> str:
    """Returns a hint to append to the message of ``e``, or an empty text.

    Args:
        e: the exception.
        frame: the innermost frame of the author's code.

    Raises:
        Exception: anything that the author's objects raise.
    """
    text = str(e)
    if "id you mean" in text:  # newer releases of Python add the hint themselves
        return ""
    finder = next((function for kind, function in _FINDERS if isinstance(e, kind)), None)
    found = finder(e, text, frame) if finder else ""
    return found or next((do for kind, pattern, do in _MESSAGES if isinstance(e, kind) and pattern.search(text)), "")


def _attribute(e: Any, text: str, frame: FrameType | None) -> str:
    if not e.name or e.obj is None:
        return ""
    known = [n for n in dir(e.obj) if n.startswith("_") is e.name.startswith("_")]
    is_framework_object = type(e.obj).__module__.partition(".")[0] == _PACKAGE
    return did_you_mean(e.name, known) or (_listed("it has", known) if is_framework_object else "")


def _name(e: Any, text: str, frame: FrameType | None) -> str:
    """Returns the import that an undefined name needs, or the nearest name."""
    if not e.name:
        return ""
    if e.name in dir(sys.modules[_PACKAGE]):
        return f": write `from {_PACKAGE} import {e.name}`"
    if e.name in sys.stdlib_module_names:
        return f": write `import {e.name}`"
    return did_you_mean(e.name, [*frame.f_locals, *frame.f_globals, *dir(builtins)]) if frame else ""


def _import(e: Any, text: str, frame: FrameType | None) -> str:
    named = _IMPORT.match(text)
    if not named:
        return ""
    module = sys.modules.get(named[2], ModuleType("none"))
    # `__all__`, if the module has it, lists its public names.
    return did_you_mean(named[1], getattr(module, "__all__", dir(module)))


def _call(e: Any, text: str, frame: FrameType | None) -> str:
    if (named := _NO_ITEMS.match(text)) and hasattr(sys.modules[_PACKAGE], named[1]):
        return ": use its attributes, `.name`"
    call = _CALL.match(text)
    if not call or not frame:
        return ""
    known = list(_parameters(call[1], frame))
    return (did_you_mean(call[2], known) if call[2] else "") or _listed("its parameters are", known)


def _assertion(e: Any, text: str, frame: FrameType | None) -> str:
    """Returns the source line of an assertion without a message."""
    tb, line = e.__traceback__, 0
    while tb is not None:
        line = tb.tb_lineno if tb.tb_frame is frame else line
        tb = tb.tb_next
    found = linecache.getline(frame.f_code.co_filename, line).strip() if frame and not text else ""
    return f": {printable(found)[:_LINE]}" if found else ""


_FINDERS: tuple[tuple[type[BaseException], Callable[[Any, str, FrameType | None], str]], ...] = (
    (AttributeError, _attribute),
    (NameError, _name),
    (ImportError, _import),
    (TypeError, _call),
    (AssertionError, _assertion),
)


def _listed(what: str, names: Iterable[str]) -> str:
    shown = [n for n in names if not n.startswith("_")]
    return f": {what} {', '.join(shown[:_MAX_NAMES])}{', ...' if len(shown) > _MAX_NAMES else ''}" if shown else ""


def _parameters(called: str, frame: FrameType) -> Iterable[str]:
    """Returns the parameters of the function that the author called, found by its name in the message."""
    head, *rest = called.removesuffix(".__init__").split(".")
    package = sys.modules[_PACKAGE]
    found: Any = next((p[head] for p in (frame.f_locals, frame.f_globals) if head in p), None) or getattr(package, head)
    for name in rest:
        found = getattr(found, name)
    return [n for n in inspect.signature(found).parameters if not n.startswith("_") and n != "self"]
