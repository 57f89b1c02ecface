"""Error messages of a repeated call, which refer to the log by one id."""

from __future__ import annotations

import logging

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, PreparedDevice
from dra_kubeletplugin.base.telemetry.logs import TextFormatter
from tests.helpers.drivers import Toy
from tests.helpers.node_steps import allocate, prepare_call, ref


async def test_a_repeated_event_has_the_same_text_and_refers_to_the_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Separated(TextFormatter):
        def format(self, record: logging.LogRecord) -> str:
            return super().format(record) + "\n"

    caplog.handler.setFormatter(Separated())

    class DeepToy(Toy):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return await super().prepare(claim)

    cls: type[Toy] = DeepToy
    cls.fail = ZeroDivisionError(f"by {object()}")
    async with node_with(cls) as node:
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        errors = set()
        for _ in range(3):
            cls.fail = ZeroDivisionError(f"by {object()}")
            errors.add((await prepare_call(node, ref(claim))).claims[claim["metadata"]["uid"]].error)
    (event,) = errors
    assert "raised ZeroDivisionError: by <object object> (claims/test_engine_repeated_event.py:" in event
    lines = [line for line in caplog.text.split("\n\n") if line]
    operation = next(line for line in lines if event in line).partition("[")[2].partition("]")[0]
    assert len(operation) == 8
    assert any(f"[{operation}]" in line and "Traceback" in line and "ZeroDivisionError: by " in line for line in lines)
