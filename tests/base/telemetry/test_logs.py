"""The formatter writes every log line, also with malformed values."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.base.telemetry.logs import JsonFormatter, TextFormatter, log_sample, set_log_fields
from dra_kubeletplugin.errors import printable


class Broken:
    def __str__(self) -> str:
        raise SystemExit(1)


def make_record(message: Any, *args: Any, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, None) if error else None
    return logging.LogRecord("dra_kubeletplugin.x", logging.ERROR, "f", 1, message, args, info)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_encoded_and_begins_one_log_line(text: str) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(make_record("%s", text, error=OSError(text)))
        line.encode()
    assert json.loads(JsonFormatter().format(make_record("%s", text)))["msg"] == printable(text)
    for line in TextFormatter().format(make_record("%s", text)).split("\n")[1:]:
        assert line.startswith("    ")


@pytest.mark.parametrize(("message", "args"), [("%d devices", ("two",)), ("%s", (Broken(),)), ("%s %s", (1,))])
def test_the_line_reports_arguments_that_do_not_match_the_format(message: str, args: tuple[Any, ...]) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        assert "its arguments cannot be shown" in formatter.format(make_record(message, *args))


def test_a_traceback_follows_its_line_or_is_a_json_field() -> None:
    try:
        raise OSError("\ud800")
    except OSError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    text = TextFormatter().format(record)
    text.encode()
    assert "failed\nTraceback (most recent call last)" in text
    assert "OSError: " in json.loads(JsonFormatter().format(record))["traceback"]


class Unprintable:
    def __eq__(self, other: object) -> bool:
        raise SystemExit(1)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return 'a "b" claim=default/other\ud800'


def with_fields(**fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord(make_record("prepared claim").__dict__ | fields)


def test_fields_are_rendered_in_both_formats() -> None:
    record = with_fields(claim="default/a", devices=["gpu-0", "gpu-1"], duration_s=0.25, pod="", node=None, retry=True)
    found = json.loads(JsonFormatter({"driver": "d.example.com", "node": ""}).format(record))
    assert list(found)[:4] == ["time", "level", "logger", "msg"]
    assert {k: v for k, v in found.items() if k not in {"time", "level", "logger"}} == {
        "msg": "prepared claim", "driver": "d.example.com", "claim": "default/a", "devices": ["gpu-0", "gpu-1"],
        "duration_s": 0.25, "retry": True,
    }  # fmt: skip
    assert (
        TextFormatter()
        .format(record)
        .endswith(" x prepared claim claim=default/a devices=gpu-0,gpu-1 duration_s=0.25 retry=True")
    )


def test_a_field_cannot_imitate_another_field() -> None:
    record = with_fields(device=Unprintable(), msg="prepared claim", level="x", seconds=float("nan"), name="x\ny")
    found = json.loads(JsonFormatter().format(record))
    assert (found["level"], found["msg"], found["seconds"]) == ("error", "prepared claim", "nan")
    text = TextFormatter().format(record)
    text.encode()
    assert "\n" not in text.partition(" prepared")[2]
    assert r'device="a \"b\" claim=default/other' in text


def test_child_tasks_and_threads_inherit_fields_and_other_tasks_do_not() -> None:
    def claim_now() -> Any:
        return json.loads(JsonFormatter().format(make_record("x"))).get("claim")

    async def child(name: str) -> list[Any]:
        before = claim_now()
        set_log_fields(lambda: {"claim": name})
        return [before, claim_now(), await asyncio.to_thread(claim_now)]

    async def main() -> None:
        set_log_fields(lambda: {"claim": "outer"})
        tasks = [asyncio.create_task(child(name)) for name in "ab"]
        assert [await t for t in tasks] == [["outer", "a", "a"], ["outer", "b", "b"]]
        assert claim_now() == "outer"

    asyncio.run(main())


def test_the_first_of_many_items_are_logged_and_the_rest_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = logging.getLogger("x")
    log_sample(log, logging.INFO, "device is healthy again", range(25), None, lambda n: {"device": f"d-{n}"})
    assert [r.getMessage() for r in caplog.records] == ["device is healthy again"] * 20 + [
        "similar lines are left out: 5"
    ]
    assert [vars(r).get("device") for r in caplog.records][:2] == ["d-0", "d-1"]
    caplog.clear()
    log_sample(log, logging.INFO, "not published: %s", ["a"])
    assert [r.getMessage() for r in caplog.records] == ["not published: a"]
