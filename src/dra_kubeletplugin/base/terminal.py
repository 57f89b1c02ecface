"""Text of users and of other drivers on a terminal: none of it acts there, and no line of it looks like a line of ours."""

from __future__ import annotations

from ..errors import printable


def on_one_line(text: object) -> str:
    """``str(text)`` as :func:`.errors.printable`, with spaces for tabs and newlines: for a cell, a name or a line. Never raises.

    The result has as many characters as the text, so styles of a terminal's line keep their places; of what is longer than 65,536
    characters and not printable, so many are shown.
    """
    if isinstance(text, str) and text.isprintable():  # as nearly all is
        return text
    return printable(text).replace("\n", " ").replace("\t", " ")


def indented(text: object) -> str:
    """``str(text)`` as :func:`.errors.printable`, with each line after the first indented: no line of it looks like a line of ours."""
    return printable(text).replace("\n", "\n    ")
