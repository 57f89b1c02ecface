"""Reads files and shell sessions from a documentation page, compares their output, and updates the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# (\S+\.(?:py|yaml|ini|toml))\n")
_FILES = {"python", "yaml", "ini", "toml"}
_OUTPUT = {"text"}
"""Output, which cannot be run."""


@dataclass
class Page:
    """The files that a page asks its reader to write, and the commands to run, in the order of the page."""

    files: dict[str, str] = field(default_factory=dict)
    commands: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> Page:
        page = cls()
        for language, block in _BLOCK.findall(text):
            if language == "console":
                page.commands += commands_of(block)
            elif language in _FILES:
                named = _NAMED.match(block)
                assert named, f"the first line of a {language} block names its file:\n{block}"
                assert named[1] not in page.files, f"{named[1]} is on the page twice"
                page.files[named[1]] = block.removeprefix(named[0])
            else:
                assert language in _OUTPUT, f"no test runs a block of {language!r}: make it console"
        return page

    @property
    def needs_kubectl(self) -> bool:
        return any("kubectl " in command for command, _ in self.commands)


def commands_of(block: str) -> Iterator[tuple[str, str]]:
    assert block.startswith("$ "), f"a session begins with a command:\n{block}"
    for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command = re.match(r"(?:.*\\\n)*.*\n", session)
        assert command
        yield command[0].strip(), session[command.end() :]


def output_pattern(page_output: str) -> re.Pattern[str]:
    """Returns a pattern for the output on a page. ``...`` matches any text."""
    lines = [r"(?:.*\n)*?" if line.strip() == "..." else f"{_line(line)}\n" for line in page_output.splitlines()]
    return re.compile("".join(lines))


def _line(text: str) -> str:
    parts = (r"[ ]+".join(map(re.escape, part.split(" "))) for part in re.sub(r" +", " ", text.strip()).split("..."))
    return r"[ ]*" + ".*".join(parts) + r"[ ]*"


_VARIES = (
    (re.compile(r"(?<=/tmp/)[\w./-]+"), "..."),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "..."),
    (re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z"), "..."),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), "..."),
    (re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}\b"), "-..."),
    (re.compile(r"(?<![\w.-])(\d+[dhms])+( \(x\d+ over \w+\))?(?=\s)"), "..."),
)
"""Texts that differ in each run, with their replacement: folders, UIDs, times, ports, suffixes of generated names, ages."""


def as_shown(output: str) -> str:
    """Returns output in the form of a page: ``...`` replaces text that differs in each run; lines have no trailing spaces."""
    for pattern, dots in _VARIES:
        output = pattern.sub(dots, output)
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def updated(text: str, results: Iterable[tuple[str, str, str]]) -> str:
    """Returns a page's text with updated output.

    Args:
        text: the page.
        ran: each command, the output on the page, and the output of this run.
    """
    position = 0
    for command, old_output, output in results:
        position = text.index(f"$ {command}\n{old_output}", position) + len(f"$ {command}\n")
        new_output = old_output if output_pattern(old_output).fullmatch(output) else as_shown(output)
        text = text[:position] + new_output + text[position + len(old_output) :]
        position += len(new_output)
    return text
