"""Regular expressions of CEL and of OpenAPI schemas, matched by RE2 in time that is linear in the text.

Kubernetes uses Go's ``regexp``, which has RE2's syntax. Three differences matter here: Go does not have ``\\C``, it words its errors
differently, and it drops an empty match that directly follows another match.
"""

from __future__ import annotations

import functools
import re
import time

import re2

_CACHED = 32  # patterns
_MEMORY = 2 << 20  # bytes of one pattern: bounds its instructions, its compilation to 40 ms, and the states it keeps
_ESCAPE = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(.)", re.DOTALL)
# RE2's error texts and the matching texts of Go's regexp/syntax.
_WORDS = {
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
_SEARCHES = 1_000_000_000  # nanoseconds of CPU, as effort.EFFORT_LIMIT


class Pattern:
    """A compiled regular expression. ``size`` is the number of its instructions."""

    def __init__(self, text: str) -> None:
        if any(found[1] == "C" for found in _ESCAPE.finditer(text)):
            raise ValueError(r"invalid escape sequence: `\C`")
        options = re2.Options()
        options.log_errors = False  # RE2 writes them to stderr
        options.max_mem = _MEMORY
        try:
            self._compiled = re2.compile(_utf8(text), options)
        except re2.error as e:
            raise ValueError(_in_words_of_go(e)) from None
        finally:
            re2.purge()  # re2 caches 128 patterns, which hold up to 1 GiB together
        self.size: int = self._compiled.programsize

    def matches(self, text: str) -> bool:
        """Whether the pattern matches some part of ``text``."""
        return self._compiled.search(_utf8(text)) is not None

    def find(self, text: str) -> str:
        """The leftmost match, or an empty text."""
        found = self._compiled.search(_utf8(text))
        return str(found.group().decode()) if found else ""

    def find_all(self, text: str, limit: int = -1) -> list[str]:
        """Returns the first ``limit`` matches that do not overlap; all of them if ``limit`` is negative.

        It stops after more CPU time than one evaluation may take; the caller measures the time.
        """
        out: list[str] = []
        end = -1
        last = time.thread_time_ns() + _SEARCHES
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
    """The compiled pattern, from a cache.

    Raises ``ValueError`` in Go's words for a pattern that RE2 refuses, such as look-around and back references.
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
    """The number of patterns compiled by this process."""
    return _compiled.cache_info().misses


def _utf8(text: str) -> bytes:
    """``text`` in UTF-8. A lone surrogate becomes U+FFFD, as when Go reads JSON."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _in_words_of_go(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    fault, colon, part = text.partition(": ")
    fault = _WORDS.get(fault, fault)
    return f"{fault}: `{part}`" if colon else fault
