"""Tests `dra --help`: groups by reader, an example for each group, and colours only on a terminal that has them."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import subprocess
import sys

import pytest

from dra_kubeletplugin import cli
from dra_kubeletplugin.cli import commands
from dra_kubeletplugin.cli.shell.help import help_text
from dra_kubeletplugin.cli.shell.parsing import Group

PARSERS = commands()
TOP = [name for name in PARSERS if " " not in name]


def on_terminal(*words: str, **environment: str) -> str:
    """Returns the output of `dra` on a terminal."""
    parent, child = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS"}} | {"TERM": "xterm"} | environment
    subprocess.run([sys.executable, "-m", "dra_kubeletplugin", *words], stdout=child, env=env, check=True)
    os.close(child)
    found = b""
    with contextlib.suppress(OSError):  # Linux: the end of a terminal whose other side is closed
        while more := os.read(parent, 65536):
            found += more
    os.close(parent)
    return found.decode().replace("\r\n", "\n")


def test_each_command_is_in_one_group_and_each_group_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert [line[:-1] for line in out.splitlines() if line in {f"{g}:" for g in Group}] == list(Group)
    assert sorted(re.findall(r"^  ([a-z]+) +\S", out, re.MULTILINE)) == sorted(TOP)
    assert len(re.findall(r"^  example: (?:dra |eval )", out, re.MULTILINE)) == len(Group)


def test_help_names_the_commands_of_packages_that_are_not_installed() -> None:
    installed = {name: c for name, c in cli.COMMANDS.items() if c.group is Group.NODE}
    text = help_text(installed, {"dra-tools": ("explain", "top"), "dra-conformance": ("conformance",)})
    assert "\nIn dra-tools, not installed: explain, top.\nIn dra-conformance, not installed: conformance.\n" in text
    assert f"{Group.ANY_DRIVER}:" not in text


@pytest.mark.parametrize("name", TOP)
def test_the_example_of_a_command_is_in_its_help_and_has_valid_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        PARSERS[name].parse_args(["--help"])
    example = capsys.readouterr().out.rpartition("example:\n  ")[2].strip()
    if name != "completion":  # its example is a line of a shell
        program, command, *words = shlex.split(example)
        assert (program, command) == ("dra", name)
        PARSERS[name].parse_args(words)


def test_colours_are_used_only_on_a_terminal_that_has_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--help"]) == 0
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    coloured = on_terminal("--help", COLUMNS="80")
    assert "\x1b[1mRun it on a node:\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain
    assert on_terminal("--help", COLUMNS="80", NO_COLOR="") == plain
    assert on_terminal("--help", COLUMNS="80", TERM="dumb") == plain
