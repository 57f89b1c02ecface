"""Log lines as text or JSON; every line of one operation carries the same id of eight hex digits.

The id is here and not in events, whose text must repeat; the line that has an event's text leads to the id.

Eight digits are 32 bits: with 10,000 operations in the lines one looks at, the chance that two share an id is about one percent.
Levels: error for what an operator must act on, warning for what heals itself but should be known, info for what changes
(prepared, unprepared, published, registered), debug for the rest.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import json
import logging
import random
import sys
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import TypeVar

from ...errors import describe, printable

T = TypeVar("T")
_operation: contextvars.ContextVar[str] = contextvars.ContextVar("operation", default="")


def operation_id() -> str:
    """The id of the operation that runs, or an empty text."""
    return _operation.get()


@contextlib.contextmanager
def operation(id: str = "") -> Iterator[str]:
    """Everything logged inside, in tasks and threads started there too, carries one id: that of an operation around, if any."""
    id = id or _operation.get() or f"{random.getrandbits(32):08x}"
    token = _operation.set(id)
    try:
        yield id
    finally:
        _operation.reset(token)


class _Base(logging.Formatter):
    def when(self, record: logging.LogRecord) -> str:
        return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"

    def said(self, record: logging.LogRecord) -> str:
        """The message as text that can be written, whatever its arguments are."""
        try:
            return printable(record.getMessage())
        except BaseException as e:  # a __str__ may raise anything, and a log line must not end a task
            return f"{printable(record.msg)} (its arguments cannot be shown: {describe(e)})"

    def traceback(self, record: logging.LogRecord) -> str:
        return printable(self.formatException(record.exc_info)) if record.exc_info else ""


class TextFormatter(_Base):
    def format(self, record: logging.LogRecord) -> str:
        op = _operation.get()
        name = record.name.removeprefix("dra_kubeletplugin.")
        # Indented, so that no text from outside looks like a line of ours.
        message = self.said(record).replace("\n", "\n    ")
        line = f"{self.when(record)} {record.levelname.lower():<7} {name}{f' [{op}]' if op else ''} {message}"
        traceback = self.traceback(record)
        return f"{line}\n{traceback}" if traceback else line


class JsonFormatter(_Base):
    def format(self, record: logging.LogRecord) -> str:
        out = {"time": self.when(record), "level": record.levelname.lower(), "logger": record.name}
        out["message"] = self.said(record)
        if op := _operation.get():
            out["operation"] = op
        if traceback := self.traceback(record):
            out["traceback"] = traceback
        return json.dumps(out, ensure_ascii=False)


def configure(format: str = "text", level: str = "info") -> None:
    """Sends everything to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


_SOME = 20  # lines of one kind at once


def log_sample(
    logger: logging.Logger, level: int, text: str, items: Collection[T], shown: Callable[[T], str] = printable
) -> None:
    """Logs ``text`` with each of the first items, and how many more there are: thousands of lines would hold up all else."""
    for item in itertools.islice(items, _SOME):
        logger.log(level, text, shown(item))
    if len(items) > _SOME:
        logger.log(level, text, f"(and {len(items) - _SOME} more)")
