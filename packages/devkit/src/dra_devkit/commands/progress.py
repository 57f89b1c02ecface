"""Shows the progress of long work as one changing line on standard error, if standard error is a terminal."""

from __future__ import annotations

import os
import sys

from dra_kubeletplugin.base.terminal import on_one_line
from dra_kubeletplugin.cli.shell.parsing import terminal_columns


class Progress:
    """``with Progress() as progress: progress("reading pods: 500")``; the line is erased at the end."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        self.done()

    def __call__(self, text: str) -> None:
        """Replaces the line by ``text``, cut to the width of the terminal."""
        if self._shown:
            text = on_one_line(text)[: terminal_columns(sys.stderr) - 1]
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def done(self) -> None:
        """Erases the line, so that other output can be printed."""
        if self._shown and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
