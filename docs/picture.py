"""Draws README's picture, `docs/demo.svg`, from what `make demo` prints on a terminal here: `make picture`."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rich import terminal_theme
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.ansi import AnsiDecoder
from rich.console import Console

ROOT = Path(__file__).parents[1]
COLUMNS = 120
SHOWN = 3  # lines of a JSON document; its end is shown too
_FONTS = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)  # they would be fetched from elsewhere
_JSON = re.compile(r" {5,}[\]\[{}\" ]")


def printed() -> list[str]:
    """The lines of the demo, with their colours."""
    ours, theirs = pty.openpty()
    command = [sys.executable, str(ROOT / "drivers/pci/demo.py")]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, env=environment, cwd=ROOT)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    if process.wait():
        raise SystemExit(f"the demo failed:\n{said.decode()}")
    return said.decode().splitlines()


def folded(lines: list[str]) -> Iterator[str]:
    """Without the middle of JSON documents."""
    document: list[str] = []
    for line in [*lines, ""]:
        if _JSON.match(line):
            document.append(line)
            continue
        left_out = len(document) - SHOWN - 1
        yield from document if left_out < 1 else [*document[:SHOWN], f"       ... {left_out} lines ...", document[-1]]
        document = []
        yield line


def drawn(lines: list[str]) -> str:
    """As SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    colours = AnsiDecoder()  # they may go on over several lines
    for line in ["$ make demo", *folded(lines)]:
        console.print(colours.decode_line(line), no_wrap=True, overflow="ellipsis")
    return console.export_svg(
        title="make demo",
        theme=terminal_theme.MONOKAI,
        code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "ui-monospace"),
        unique_id="demo",
    )


if __name__ == "__main__":
    (ROOT / "docs/demo.svg").write_text(drawn(printed()))
