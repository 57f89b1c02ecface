"""Undo steps in a real plugin, and error messages that refer to the log by one id."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, Device, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.base.telemetry.logs import TextFormatter
from tests.helpers.drivers import Toy
from tests.helpers.node_steps import NOTHING, allocate, prepare_call, ref, unprepare_call


class Stepwise(Driver):
    """Three steps, of which one may fail. Records the steps that were undone."""

    name = "steps.example.com"
    fail_at = 0
    is_await_missing = False
    undone_steps: list[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.undone_steps = []

    async def devices(self) -> list[Device]:
        return [Device("s-0")]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        cls = type(self)
        for i in (1, 2, 3):
            registered = claim.on_undo(self.step, number=i)
            if not cls.is_await_missing:
                await registered
            if i == cls.fail_at:
                raise OSError(f"step {i} broke")
        return [d.prepared() for d in claim.devices]

    async def step(self, claim: PreparedClaim, number: int) -> None:
        cls = type(self)
        cls.undone_steps.append(str(number))


def make_stepwise_class() -> type[Stepwise]:
    class FreshStepwise(Stepwise):
        pass

    return FreshStepwise


async def allocate_step_claim(node: Any) -> Any:
    return await allocate(node, "c", [{"pool": "node-1", "device": "s-0"}])


@pytest.mark.parametrize("is_await_missing", [False, True])
async def test_a_failing_prepare_undoes_its_steps_newest_first(is_await_missing: bool) -> None:
    cls = make_stepwise_class()
    cls.fail_at, cls.is_await_missing = 3, is_await_missing
    async with node_with(cls) as node:
        claim = await allocate_step_claim(node)
        error = (await prepare_call(node, ref(claim))).claims[claim["metadata"]["uid"]].error
        assert error.startswith(
            "DRIVER_FAILED: the driver's prepare raised OSError: step 3 broke (claims/test_undo_steps_processes.py:"
        )
        assert cls.undone_steps == ["3", "2", "1"]
        assert await node.leftovers() == NOTHING


async def test_unprepare_undoes_the_steps_of_a_successful_prepare_also_in_another_process() -> None:
    cls = make_stepwise_class()
    async with node_with(cls) as node:
        claim = await allocate_step_claim(node)
        await prepare_call(node, ref(claim))
        await node.restart()
        await unprepare_call(node, ref(claim))
        assert cls.undone_steps == ["3", "2", "1"]


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
    assert "raised ZeroDivisionError: by <object object> (claims/test_undo_steps_processes.py:" in event
    lines = [line for line in caplog.text.split("\n\n") if line]
    operation = next(line for line in lines if event in line).partition("[")[2].partition("]")[0]
    assert len(operation) == 8
    assert any(f"[{operation}]" in line and "Traceback" in line and "ZeroDivisionError: by " in line for line in lines)
