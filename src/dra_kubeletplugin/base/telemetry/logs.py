"""Formats log lines as text or JSON. A line is a constant message and fields; both formats contain the message and the fields.

A call passes the fields of its line with logging's ``extra=``. :func:`set_log_fields` adds fields, such as the claim, to all lines
of a task. All lines of one operation have the same id of eight hex digits.
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
import math
import random
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from ...errors import describe, printable

T = TypeVar("T")
Fields = Mapping[str, object]
_operation: contextvars.ContextVar[str] = contextvars.ContextVar("operation", default="")
_fields: contextvars.ContextVar[Callable[[], Fields] | None] = contextvars.ContextVar("log_fields", default=None)
_WORD = re.compile(r'[^\s"=]+')  # a value that the text format does not quote
_OUR_PACKAGE = re.compile(r"^dra_\w+\.")
# The attributes that every record has; all others are fields that a call passed with ``extra=``.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


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


def set_log_fields(fields: Callable[[], Fields]) -> None:
    """Adds fields to all further log lines of the current task, and of the tasks and threads that it starts.

    ``fields`` is called for each line that is written, so it costs nothing in a task that logs nothing.
    """
    _fields.set(fields)


def log_fields() -> Fields:
    """Returns the fields that :func:`set_log_fields` added to the current task."""
    source = _fields.get()
    return source() if source else {}


class Named(Protocol):
    """An object of Kubernetes, or a record of one."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


def claim_fields(claim: Named) -> Fields:
    """Returns the fields that identify a claim. The name is missing if only the UID is known."""
    fields = {"claim_uid": claim.uid}
    return {"claim": f"{claim.namespace or '?'}/{claim.name}"} | fields if claim.name else fields


class _Base(logging.Formatter):
    def timestamp_text(self, record: logging.LogRecord) -> str:
        return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"

    def message_text(self, record: logging.LogRecord) -> str:
        """Returns the message as printable text, whatever its arguments are."""
        try:
            return printable(record.getMessage())
        except BaseException as e:  # a __str__ may raise anything, and a log line must not end a task
            return f"{printable(record.msg)} (its arguments cannot be shown: {describe(e)})"

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """Returns the fields of the current task, then the fields of the call."""
        found = dict(log_fields())
        found |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if "claim" in found:
            found = {
                "claim": found["claim"]
            } | found  # the claim comes first, also if the task's fields had only its UID
        return {key: shown for key, value in found.items() if (shown := _json_value(value)) != ""}

    def traceback(self, record: logging.LogRecord) -> str:
        return printable(self.formatException(record.exc_info)) if record.exc_info else ""


class TextFormatter(_Base):
    def format(self, record: logging.LogRecord) -> str:
        op = _operation.get()
        name = _OUR_PACKAGE.sub("", record.name)
        # Indented, so that text from outside cannot imitate a log line.
        message = self.message_text(record).replace("\n", "\n    ")
        line = f"{self.timestamp_text(record)} {record.levelname.lower():<7} {name}{f' [{op}]' if op else ''} {message}"
        line += "".join(f" {key}={_text_value(value)}" for key, value in self.fields(record).items())
        traceback = self.traceback(record)
        return f"{line}\n{traceback}" if traceback else line


class JsonFormatter(_Base):
    """Writes one JSON object per line. ``process_fields`` are the same in all lines of the process."""

    def __init__(self, process_fields: Fields | None = None) -> None:
        super().__init__()
        self._process_fields = {key: value for key, value in (process_fields or {}).items() if value}

    def format(self, record: logging.LogRecord) -> str:
        out = {"time": self.timestamp_text(record), "level": record.levelname.lower(), "logger": record.name}
        out["msg"] = self.message_text(record)
        if op := _operation.get():
            out["operation"] = op
        # ``out`` comes first so that its keys begin the line, and again last so that no field can replace its values.
        line = {**out, **self._process_fields, **self.fields(record), **out}
        if traceback := self.traceback(record):
            line["traceback"] = traceback
        return json.dumps(line, ensure_ascii=False)


def _json_value(value: object) -> object:
    """Returns a number unchanged, a list with printable members, and anything else as printable text."""
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [printable(v) for v in value]
    return "" if value is None else printable(value)


def _text_value(value: object) -> str:
    """Returns a value as one word: quoted as in JSON if it contains anything that could be taken for another field."""
    text = ",".join(value) if isinstance(value, list) else str(value)
    return text if _WORD.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def configure(format: str = "text", level: str = "info", process_fields: Fields | None = None) -> None:
    """Sends all logs to standard error. JSON lines also contain ``process_fields``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process_fields) if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


_SAMPLE_SIZE = 20  # maximum number of lines of one call


def log_sample(
    logger: logging.Logger,
    level: int,
    text: str,
    items: Collection[T],
    shown: Callable[[T], str] | None = printable,
    fields: Callable[[T], Fields] = lambda _: {},
) -> None:
    """Logs one line for each of the first items, then the number of omitted items: thousands of lines would delay all other work.

    Args:
        text: the constant message; it contains ``%s`` for the result of ``shown``, unless ``shown`` is None.
        fields: returns the fields of an item's line.
    """
    for item in itertools.islice(items, _SAMPLE_SIZE):
        logger.log(level, text, *([shown(item)] if shown else []), extra=fields(item))
    if len(items) > _SAMPLE_SIZE:
        logger.log(level, "similar lines are left out: %d", len(items) - _SAMPLE_SIZE)
