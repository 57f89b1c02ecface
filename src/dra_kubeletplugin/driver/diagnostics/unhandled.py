"""Logs unhandled exceptions of an author's own threads and tasks, with the same text as exceptions of methods."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from .author_errors import explain_exception, own_traceback, place

log = logging.getLogger(__name__)


def listen(loop: asyncio.AbstractEventLoop) -> None:
    """Installs the handlers for the life of the process. Exceptions without a line of the author's code are logged as Python logs them."""
    threading.excepthook = _thread
    loop.set_exception_handler(_task)


def _thread(args: threading.ExceptHookArgs, /) -> None:
    e = args.exc_value
    if e is None or issubclass(args.exc_type, SystemExit) or not place(e):
        threading.__excepthook__(args)
    else:
        _log(f"thread {args.thread.name if args.thread else 'unknown'}", e)


def _task(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    e, task = context.get("exception"), context.get("future")
    if e is None or not place(e):
        loop.default_exception_handler(context)
    else:
        _log(f"task {task.get_name()}" if isinstance(task, asyncio.Task) else "a callback of the event loop", e)


def _log(who: str, e: BaseException) -> None:
    log.error(
        "unhandled exception in %s: %s; the thread or task has stopped",
        who,
        explain_exception(e),
        exc_info=own_traceback(e),
    )
