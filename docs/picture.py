"""Draws `docs/demo.svg` from the output of `make demo` on a terminal of this machine: `make picture`. README and the site show it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from terminal_svg import terminal_svg

ROOT = Path(__file__).parents[1]
COLUMNS = 96
"""Few columns keep the text large where a page shows the picture beside other content."""
SHOWN = 3
"""Number of PCI functions, and of first lines of a JSON document, that the picture shows."""
_JSON = re.compile(r" {5,}[\]\[{}\" ]")
_TREE, _FUNCTION = re.compile(r" {3}([├└│]| {6,}\S)"), re.compile(r" {3}[├└]")
_ESCAPES = re.compile(r"\x1b\[[\d;]*m")


def demo_lines() -> list[str]:
    """Runs the demo and returns the lines that it prints, with their colours."""
    parent_end, child_end = pty.openpty()
    command = [sys.executable, str(ROOT / "drivers/pci/demo.py")]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=child_end, env=environment, cwd=ROOT)
    os.close(child_end)
    output = b""
    while True:
        try:
            part = os.read(parent_end, 65536)
        except OSError:  # the demo closed its end
            break
        if not part:
            break
        output += part
    os.close(parent_end)
    if process.wait():
        raise SystemExit(f"the demo failed:\n{output.decode()}")
    return output.decode().splitlines()


def shortened(lines: list[str]) -> Iterator[str]:
    """Leaves out the middle of JSON documents, PCI functions after the first ones, and repeated empty lines."""
    document: list[str] = []
    functions = 0
    previous = "$ make demo"
    for line in [*lines, ""]:
        plain = _ESCAPES.sub("", line)
        if _JSON.match(plain) and not functions:
            document.append(line)
            continue
        left_out = len(document) - SHOWN - 1
        yield from document if left_out < 1 else [*document[:SHOWN], f"       ... {left_out} lines ...", document[-1]]
        document = []
        if _TREE.match(plain):
            functions += bool(_FUNCTION.match(plain))
            if functions > SHOWN:
                continue
        elif functions > SHOWN:
            yield f"   ... {functions - SHOWN} more functions ..."
        if not _TREE.match(plain):
            functions = 0
        if plain.strip() or previous:
            yield line
        previous = plain.strip()


if __name__ == "__main__":
    (ROOT / "docs/demo.svg").write_text(terminal_svg(["$ make demo", *shortened(demo_lines())], COLUMNS))
