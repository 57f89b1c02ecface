"""Log lines can be written whatever is in them."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.base.telemetry.logs import JsonFormatter, TextFormatter


class Broken:
    def __str__(self) -> str:
        raise SystemExit(1)


def record(message: Any, *args: Any, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, None) if error else None
    return logging.LogRecord("dra_kubeletplugin.x", logging.ERROR, "f", 1, message, args, info)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_one_line_that_can_be_encoded(text: str) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record("%s", text, error=OSError(text)))
        line.encode()
    assert json.loads(JsonFormatter().format(record("%s", text)))["message"].startswith(text[:0])
    for line in TextFormatter().format(record("%s", text)).split("\n")[1:]:
        assert line.startswith("    ")


@pytest.mark.parametrize(("message", "args"), [("%d devices", ("two",)), ("%s", (Broken(),)), ("%s %s", (1,))])
def test_arguments_that_do_not_fit_are_told_in_the_line(message: str, args: tuple[Any, ...]) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        assert "its arguments cannot be shown" in formatter.format(record(message, *args))


def test_a_traceback_is_beside_its_line() -> None:
    try:
        raise OSError("\ud800")
    except OSError:
        made = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    text = TextFormatter().format(made)
    text.encode()
    assert "failed\nTraceback (most recent call last)" in text
    assert "OSError: " in json.loads(JsonFormatter().format(made))["traceback"]
