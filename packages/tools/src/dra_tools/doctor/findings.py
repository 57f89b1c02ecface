"""The findings of checks."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding. ``UNKNOWN``: the check could not decide; ``todo`` describes what helps, if anything does."""

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


# Each takes topic, text and todo.
ok = functools.partial(Finding, Level.OK)
unknown = functools.partial(Finding, Level.UNKNOWN)
warning = functools.partial(Finding, Level.WARNING)
failure = functools.partial(Finding, Level.FAILURE)


def denied(topic: str, e: OSError) -> Finding:
    """Returns a finding for a file that this user may not read."""
    return unknown(
        topic,
        f"{e.filename or topic}: {e.strerror or e}",
        "run `dra doctor` as root, on the node or in a pod that mounts this file",
    )
