"""Text of users and other drivers on a terminal: without control characters, and never like a line of this program."""

from __future__ import annotations

from ..errors import printable


def on_one_line(text: object) -> str:
    """Returns ``str(text)`` as :func:`.errors.printable`, with spaces for tabs and newlines: for a cell, a name or a line. Never raises.

    The result has as many characters as the text, so that styles of a line keep their positions. Text with unprintable characters
    is cut to 65,536 characters.
    """
    if isinstance(text, str) and text.isprintable():  # as nearly all is
        return text
    return printable(text).replace("\n", " ").replace("\t", " ")


def indented(text: object) -> str:
    """Returns ``str(text)`` as :func:`.errors.printable`; lines after the first are indented and cannot imitate a line of this program."""
    return printable(text).replace("\n", "\n    ")
