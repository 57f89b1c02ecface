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
    assert json.loads(JsonFormatter().format(record("%s", text)))["msg"].startswith(text[:0])
    for line in TextFormatter().format(record("%s", text)).split("\n")[1:]:
        assert line.startswith("    ")


@pytest.mark.parametrize(("message", "args"), [("%d devices", ("two",)), ("%s", (Broken(),)), ("%s %s", (1,))])
def test_arguments_that_do_not_fit_are_reported_in_the_line(message: str, args: tuple[Any, ...]) -> None:
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


class Odd:
    def __eq__(self, other: object) -> bool:
        raise SystemExit(1)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return 'a "b" claim=default/other\ud800'


def with_fields(**fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord(record("prepared claim").__dict__ | fields)


def test_fields_are_rendered_in_both_formats() -> None:
    made = with_fields(claim="default/a", devices=["gpu-0", "gpu-1"], duration_s=0.25, pod="", node=None, retry=True)
    found = json.loads(JsonFormatter({"driver": "d.example.com", "node": ""}).format(made))
    assert list(found)[:4] == ["time", "level", "logger", "msg"]
    assert {k: v for k, v in found.items() if k not in {"time", "level", "logger"}} == {
        "msg": "prepared claim", "driver": "d.example.com", "claim": "default/a", "devices": ["gpu-0", "gpu-1"],
        "duration_s": 0.25, "retry": True,
    }  # fmt: skip
    assert (
        TextFormatter()
        .format(made)
        .endswith(" x prepared claim claim=default/a devices=gpu-0,gpu-1 duration_s=0.25 retry=True")
    )


def test_no_field_imitates_another_one() -> None:
    made = with_fields(device=Odd(), msg="prepared claim", level="x", seconds=float("nan"), name="x\ny")
    found = json.loads(JsonFormatter().format(made))
    assert (found["level"], found["msg"], found["seconds"]) == ("error", "prepared claim", "nan")
    text = TextFormatter().format(made)
    text.encode()
    assert "\n" not in text.partition(" prepared")[2]
    assert r'device="a \"b\" claim=default/other' in text


def test_the_fields_of_a_task_are_those_of_its_own_tasks_and_threads_only() -> None:
    def claim_now() -> Any:
        return json.loads(JsonFormatter().format(record("x"))).get("claim")

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


def test_of_many_items_the_first_are_logged_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
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
