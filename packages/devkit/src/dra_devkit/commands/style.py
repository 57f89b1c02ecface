"""Text on terminals: wrapped lines, and colours where they are supported."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TextIO

from dra_kubeletplugin.cli.shell.output import has_colours

_WIDTH = 118  # of a line that is wrapped


@dataclass(frozen=True)
class Style:
    coloured: bool

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        return cls(has_colours(stream))

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
