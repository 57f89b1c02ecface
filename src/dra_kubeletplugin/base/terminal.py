"""Prepares text of users and other drivers for a terminal: without control characters, and unable to imitate a line of this program."""

from __future__ import annotations

from ..errors import printable


def on_one_line(text: object) -> str:
    """Returns ``str(text)`` made printable by :func:`.errors.printable`, with a space for each tab and newline. Never raises.

    The result has as many characters as the text, so that styles of a line keep their positions. Text with unprintable characters
    is cut to 65,536 characters.
    """
    if isinstance(text, str) and text.isprintable():  # as nearly all text is
        return text
    return printable(text).replace("\n", " ").replace("\t", " ")


def indented(text: object) -> str:
    """Returns ``str(text)`` made printable, with all lines after the first indented: they cannot imitate a line of this program."""
    return printable(text).replace("\n", "\n    ")
