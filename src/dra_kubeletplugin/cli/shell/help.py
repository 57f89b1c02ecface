"""The text of ``dra --help``: commands in groups by reader, with an example for each group."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from .exit_codes import MEANINGS
from .output import has_colours
from .parsing import Command, Group, terminal_columns

_NAME_WIDTH = 13


def help_text(commands: Mapping[str, Command], missing: Mapping[str, Sequence[str]]) -> str:
    """Returns the text.

    Args:
        commands: the loaded commands by name. A name of two words is a verb of a command, and is not listed.
        missing: commands that are not installed, by the package that has them.
    """
    width, coloured = max(terminal_columns() - 2, 40), has_colours(sys.stdout)

    def paint(code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if coloured else text

    def rows(names_and_texts: Mapping[str, str]) -> Iterator[str]:
        for name, text in names_and_texts.items():
            indent = " " * (2 + _NAME_WIDTH)
            lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
            yield f"  {paint('36', name)}{' ' * (_NAME_WIDTH - len(name))}{lines[0][2 + _NAME_WIDTH :]}"
            yield from lines[1:]

    def wrapped(text: str) -> list[str]:
        return textwrap.wrap(text, width)

    lines = ["usage: dra COMMAND [OPTION]...", "       dra --version", "", "Kubernetes DRA drivers in Python."]
    for group in Group:
        of_group = {name: c for name, c in commands.items() if c.group is group and " " not in name}
        if not of_group:
            continue
        lines += ["", paint("1", f"{group}:"), *rows({name: c.help for name, c in of_group.items()})]
        if example := next((c.example for c in of_group.values() if c.example), ""):
            lines.append(f"  {paint('2', f'example: {example}')}")
    lines += ["", *wrapped("`dra COMMAND --help` lists the options of a command, with an example.")]
    for package, names in missing.items():
        lines += wrapped(f"In {package}, not installed: {', '.join(names)}.")
    lines += ["", paint("1", "Exit codes:"), *rows({str(code.value): text for code, text in MEANINGS.items()})]
    return "\n".join(lines)
