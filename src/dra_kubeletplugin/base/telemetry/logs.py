"""Formats log lines as text or JSON. All lines of one operation have the same id of eight hex digits.

The id is not part of events, because their text must not change between attempts. The log line with an event's text has the id.
Eight digits are 32 bits: among 10,000 operations, the chance that two share an id is about one percent.
Levels: error if an operator must act, warning for faults that recover, info for changes (prepared, unprepared, published,
registered), debug for the rest.
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
    """Returns the id of the current operation, or an empty string."""
    return _operation.get()


@contextlib.contextmanager
def operation(id: str = "") -> Iterator[str]:
    """Sets the id for all log lines inside, also in tasks and threads that start there. A nested operation keeps the outer id."""
    id = id or _operation.get() or f"{random.getrandbits(32):08x}"
    token = _operation.set(id)
    try:
        yield id
    finally:
        _operation.reset(token)


class _Base(logging.Formatter):
    def timestamp_text(self, record: logging.LogRecord) -> str:
        return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"

    def message_text(self, record: logging.LogRecord) -> str:
        """Returns the message as printable text, whatever its arguments are."""
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
        # Indented, so that text from outside cannot imitate a log line.
        message = self.message_text(record).replace("\n", "\n    ")
        line = f"{self.timestamp_text(record)} {record.levelname.lower():<7} {name}{f' [{op}]' if op else ''} {message}"
        traceback = self.traceback(record)
        return f"{line}\n{traceback}" if traceback else line


class JsonFormatter(_Base):
    def format(self, record: logging.LogRecord) -> str:
        out = {"time": self.timestamp_text(record), "level": record.levelname.lower(), "logger": record.name}
        out["message"] = self.message_text(record)
        if op := _operation.get():
            out["operation"] = op
        if traceback := self.traceback(record):
            out["traceback"] = traceback
        return json.dumps(out, ensure_ascii=False)


def configure(format: str = "text", level: str = "info") -> None:
    """Sends all logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


_SAMPLE_SIZE = 20  # maximum lines of one kind at once


def log_sample(
    logger: logging.Logger, level: int, text: str, items: Collection[T], shown: Callable[[T], str] = printable
) -> None:
    """Logs ``text`` with each of the first items, then the number of the others: thousands of lines would delay all other work."""
    for item in itertools.islice(items, _SAMPLE_SIZE):
        logger.log(level, text, shown(item))
    if len(items) > _SAMPLE_SIZE:
        logger.log(level, text, f"(and {len(items) - _SAMPLE_SIZE} more)")
