"""Threads and tasks of an author's own that raise with nobody to wait for them: told in a sentence, as what his methods raise is."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from .author_errors import explained, own_traceback, place

log = logging.getLogger(__name__)


def listen(loop: asyncio.AbstractEventLoop) -> None:
    """For the life of the process. What no line of an author's raised is told as Python tells it."""
    threading.excepthook = _thread
    loop.set_exception_handler(_task)


def _thread(args: threading.ExceptHookArgs, /) -> None:
    e = args.exc_value
    if e is None or issubclass(args.exc_type, SystemExit) or not place(e):
        threading.__excepthook__(args)
    else:
        _tell(f"thread {args.thread.name if args.thread else 'unknown'}", e)


def _task(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    e, task = context.get("exception"), context.get("future")
    if e is None or not place(e):
        loop.default_exception_handler(context)
    else:
        _tell(f"task {task.get_name()}" if isinstance(task, asyncio.Task) else "a callback of the event loop", e)


def _tell(who: str, e: BaseException) -> None:
    log.error(
        "%s raised %s, and nobody waited for it: what it did is done no more",
        who,
        explained(e),
        exc_info=own_traceback(e),
    )
