"""Text on terminals: wrapped lines, and colours where they are supported. Source: no-color.org."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from typing import TextIO

_WIDTH = 118  # of a line that is wrapped


@dataclass(frozen=True)
class Style:
    coloured: bool

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        dumb = os.environ.get("TERM", "") in {"", "dumb"} or "NO_COLOR" in os.environ
        return cls(stream.isatty() and not dumb)

    def paint(self, code: str, text: str) -> str:
        """Returns the text with the code of an SGR sequence, such as ``1;31``."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.coloured else text

    def bold(self, text: str) -> str:
        return self.paint("1", text)

    def dim(self, text: str) -> str:
        return self.paint("2", text)

    def red(self, text: str) -> str:
        return self.paint("31", text)

    def green(self, text: str) -> str:
        return self.paint("32", text)

    def yellow(self, text: str) -> str:
        return self.paint("33", text)

    def cyan(self, text: str) -> str:
        return self.paint("36", text)


def wrapped(line: str, indent: int, mark: str = "") -> list[str]:
    """Returns the line, wrapped after 118 characters. Only the first line has the mark, such as ``- ``."""
    before = " " * indent
    return textwrap.wrap(
        " ".join(line.split()),
        _WIDTH,
        initial_indent=before + mark,
        subsequent_indent=before + " " * (len(mark) or 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
