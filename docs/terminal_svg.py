"""Draws the output of a command as an SVG.

The SVG has the position of each word, so that a picture keeps its columns in every renderer and with every font. A renderer may
change spaces inside a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

CELL, _LINE, MARGIN = 8.4, 19, 14  # at 14 px
_STYLES = {"": "", "1": "b", "2": "dim", "1;31": "bad", "32": "good", "33": "warn", "36": "held"}
_CSS = (
    "text{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d7dce2;white-space:pre}"
    ".b{font-weight:bold}.dim{fill:#8b97a3}.bad{fill:#ff8a4c;font-weight:bold}.good{fill:#2fc79a}.warn{fill:#e6b84d}.held{fill:#56b4e9}"
)


def terminal_svg(lines: Sequence[str], columns: int) -> str:
    """Returns a picture of a terminal. ``lines`` may have the colours of :class:`Style`."""
    width, height = columns * CELL + 2 * MARGIN, len(lines) * _LINE + 2 * MARGIN
    words = [
        word for number, line in enumerate(lines) for word in _words(line, columns, MARGIN + (number + 0.75) * _LINE)
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">',
        f'<style>{_CSS}</style><rect width="100%" height="100%" rx="8" fill="#14181d"/>', *words, "</svg>", "",
    ])  # fmt: skip


def _words(line: str, columns: int, y: float) -> Iterator[str]:
    """Yields each word of a line at its own position, so that no renderer decides about spaces."""
    column = 0
    for text, code in _coloured(line):
        if column + len(text) > columns:
            text = text[: columns - column - 1] + "…" if column < columns else ""
        for part in text.replace(" ", "\0 \0").split("\0"):
            if part.strip():
                style = f' class="{name}"' if (name := _STYLES[code]) else ""
                x = MARGIN + column * CELL
                yield (
                    f'<text x="{x:g}" y="{y:g}" textLength="{len(part) * CELL:g}" lengthAdjust="spacingAndGlyphs" '
                    f'xml:space="preserve"{style}>{escape(part)}</text>'
                )
            column += len(part)


def _coloured(line: str) -> Iterator[tuple[str, str]]:
    """Yields the parts of a line with the code of their colour."""
    code = ""
    for number, part in enumerate(line.split("\x1b[")):
        sequence, text = part.split("m", 1) if number else ("", part)
        code = "" if sequence == "0" else sequence
        yield text, code
