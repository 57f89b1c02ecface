"""What a command's exit code says: one table for all commands, shown by ``dra --help`` and on the page of commands."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """128 and above are a signal's number and 128, as shells have it."""

    WELL = 0
    FOUND = 1
    WRONG = 2
    UNSURE = 3
    HUNG_UP = 129
    INTERRUPTED = 130
    UNREAD = 141
    TERMINATED = 143


MEANINGS = {
    Exit.WELL: "it is well: done, nothing wrong found, or a server that was asked to stop and stopped",
    Exit.FOUND: "the answer is no: something is wrong, waits, does not fit, or was declined; or a server failed while it ran",
    Exit.WRONG: "wrong options, files or settings, or a question without an answer: a sentence says which, and what to do",
    Exit.UNSURE: "no certain end: what may not be read decides the answer; or a server's stop hung and was cut",
    Exit.HUNG_UP: "ended by SIGHUP",
    Exit.INTERRUPTED: "ended by Ctrl-C",
    Exit.UNREAD: "nobody read the output to its end, as in `dra claims | head -1`",
    Exit.TERMINATED: "ended by SIGTERM",
}


def epilog() -> str:
    """For ``dra --help``."""
    return "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."
