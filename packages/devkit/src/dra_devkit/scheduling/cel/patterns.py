"""Regular expressions of CEL and of OpenAPI schemas. RE2 matches them in time that is linear in the length of the text.

Kubernetes uses Go's ``regexp``, which has RE2's syntax. Three differences matter here: Go does not have ``\\C``, its error texts
differ, and it omits an empty match that directly follows another match.
"""

from __future__ import annotations

import functools
import re
import time

import re2

_CACHED = 32  # patterns
# Bytes per pattern. Limits its instructions, its cached states, and the time to compile it (40 ms).
_MEMORY_LIMIT = 2 << 20
_ESCAPE = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(.)", re.DOTALL)
# RE2's error texts and the matching texts of Go's regexp/syntax.
_GO_MESSAGES = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "trailing \\": "trailing backslash at end of expression",
    "pattern too large - compile failed": "expression too large",
}
_SEARCH_LIMIT = 1_000_000_000  # nanoseconds of CPU time for all searches of a call; equal to effort.EFFORT_LIMIT


class Pattern:
    """A compiled regular expression. ``size`` is the number of its instructions."""

    def __init__(self, text: str) -> None:
        if any(found[1] == "C" for found in _ESCAPE.finditer(text)):
            raise ValueError(r"invalid escape sequence: `\C`")
        options = re2.Options()
        options.log_errors = False  # otherwise RE2 writes errors to stderr
        options.max_mem = _MEMORY_LIMIT
        try:
            self._compiled = re2.compile(_utf8(text), options)
        except re2.error as e:
            raise ValueError(_go_message(e)) from None
        finally:
            re2.purge()  # re2 caches 128 patterns, which hold up to 1 GiB together
        self.size: int = self._compiled.programsize

    def matches(self, text: str) -> bool:
        """Returns whether the pattern matches a part of ``text``."""
        return self._compiled.search(_utf8(text)) is not None

    def find(self, text: str) -> str:
        """Returns the leftmost match, or an empty text."""
        found = self._compiled.search(_utf8(text))
        return str(found.group().decode()) if found else ""

    def find_all(self, text: str, limit: int = -1) -> list[str]:
        """Returns the first ``limit`` matches that do not overlap; all matches if ``limit`` is negative.

        Stops when the search has used more CPU time than one evaluation may take. The caller measures the time too, and then
        ends the evaluation.
        """
        out: list[str] = []
        end = -1
        last = time.thread_time_ns() + _SEARCH_LIMIT
        if limit == 0:
            return out
        for found in self._compiled.finditer(_utf8(text).decode()):
            start, stop = found.span()
            if stop > start or start != end:
                out.append(str(found.group()))
            end = stop
            if len(out) == limit or time.thread_time_ns() > last:
                break
        return out


def regex(pattern: str) -> Pattern:
    """Returns the compiled pattern, from a cache.

    Raises ``ValueError`` with Go's error text for a pattern that RE2 rejects, such as one with look-around or back references.
    """
    found = _compiled(pattern)
    if isinstance(found, str):
        raise ValueError(found)
    return found


@functools.lru_cache(maxsize=_CACHED)
def _compiled(pattern: str) -> Pattern | str:
    try:
        return Pattern(pattern)
    except ValueError as e:
        return str(e)


def compilations() -> int:
    """Returns the number of patterns that this process has compiled."""
    return _compiled.cache_info().misses


def _utf8(text: str) -> bytes:
    """Encodes ``text`` in UTF-8. A lone surrogate becomes U+FFFD, as when Go reads JSON."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _go_message(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    fault, colon, part = text.partition(": ")
    fault = _GO_MESSAGES.get(fault, fault)
    return f"{fault}: `{part}`" if colon else fault
