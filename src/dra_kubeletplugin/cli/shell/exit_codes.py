"""Exit codes of all commands. ``dra --help`` and docs/commands.md list them."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. A code of 128 and above is 128 plus the number of a signal, as in shells."""

    SUCCESS = 0
    NEGATIVE = 1
    USAGE = 2
    UNKNOWN = 3
    NOT_STRICT = 4
    HUNG_UP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


MEANINGS = {
    Exit.SUCCESS: "success: done, nothing wrong found, or a server stopped after a signal",
    Exit.NEGATIVE: "negative result: invalid, failed, waiting, not fitting or declined; or a server failed while it ran",
    Exit.USAGE: "wrong options, files or settings, or a question that cannot be answered: a message names the cause and what to do",
    Exit.UNKNOWN: "unknown: a part of the input that may decide the result was not evaluated or could not be read, and a message "
    "names it; or the search took too long; or the stop of a server "
    "exceeded its time limit or was ended by a second signal; or the driver of `dra conformance` never became ready or "
    "published no device",
    Exit.NOT_STRICT: "`dra conformance run --strict`: a check of level SHOULD failed",
    Exit.HUNG_UP: "ended by SIGHUP",
    Exit.INTERRUPTED: "ended by Ctrl-C",
    Exit.BROKEN_PIPE: "the output was not read to its end, as in `dra claims | head -1`",
    Exit.TERMINATED: "ended by SIGTERM",
}
