"""Runs commands of ``dra`` in the process of the test."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from dra_kubeletplugin.cli import main


class Printed(NamedTuple):
    out: str
    err: str
    code: int  # the exit code


class Dra:
    """The fixture ``dra``: ``dra("validate", path, code=1).out`` is what the command prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object, code: int | None = 0) -> Printed:
        """Runs a command. Fails the test if it prints a traceback, or returns another exit code than ``code``. None permits each."""
        self._capsys.readouterr()
        found = main([*map(str, args)])
        printed = Printed(*self._capsys.readouterr(), found)
        assert code in {None, found} and "Traceback" not in printed.err, printed
        return printed
