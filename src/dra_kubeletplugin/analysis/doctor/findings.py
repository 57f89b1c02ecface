"""The findings of checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ...errors import printable


class Level(StrEnum):
    """The severity of a finding. ``UNKNOWN``: this user cannot check it from here; the finding names who can."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """One line of a report.

    Args:
        topic: the subject of the check: ``kernel``, ``sockets``, ``CDI``.
        text: the state that was found.
        todo: the remedy; empty if nothing has to be done.
    """

    level: Level
    topic: str
    text: str
    todo: str = ""

    def json(self) -> dict[str, Any]:
        return {k: printable(v) for k, v in asdict(self).items()}


def ok(topic: str, text: str) -> Finding:
    return Finding(Level.OK, topic, text)


def unknown(topic: str, text: str, todo: str = "") -> Finding:
    return Finding(Level.UNKNOWN, topic, text, todo)


def warning(topic: str, text: str, todo: str = "") -> Finding:
    return Finding(Level.WARNING, topic, text, todo)


def failure(topic: str, text: str, todo: str = "") -> Finding:
    return Finding(Level.FAILURE, topic, text, todo)


def denied(topic: str, e: OSError) -> Finding:
    """Returns a finding for a file that this user may not read."""
    return unknown(
        topic,
        f"{e.filename or topic}: {e.strerror or e}",
        "run `dra doctor` as root, on the node or in a pod that mounts this file",
    )
