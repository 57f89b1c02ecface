"""The log lines about a claim, including those of the driver, have the fields of the claim in both formats."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from dra_devkit.testing import PodError, node_with
from dra_kubeletplugin import Claim, PermanentError, PreparedClaim, PreparedDevice
from dra_kubeletplugin.base.telemetry.logs import JsonFormatter, TextFormatter
from tests.helpers.drivers import Toy
from tests.helpers.node_steps import ref

PROCESS = {"driver": "toy.example.com", "node": "node-1"}


class CapturedLogs(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.json: list[dict[str, Any]] = []
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.json.append(json.loads(JsonFormatter(PROCESS).format(record)))
        self.text.append(TextFormatter().format(record))

    def line_with(self, msg: str) -> dict[str, Any]:
        (match,) = (line for line in self.json if line["msg"].startswith(msg))
        return match


@pytest.fixture
def captured_logs() -> Iterator[CapturedLogs]:
    handler, loggers = CapturedLogs(), [logging.getLogger(n) for n in ("dra_kubeletplugin", "dra_devkit", "vendor")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


class LoggingDriver(Toy):
    """Logs in a thread and on the event loop."""

    def prepare(self, claim: Claim) -> list[PreparedDevice]:  # type: ignore[override]
        logging.getLogger("vendor").info("firmware is loaded", extra={"firmware": "1.2"})
        return [d.prepared() for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        logging.getLogger("vendor").info("card is reset")


async def test_lines_of_a_prepare_and_an_unprepare_have_the_fields_of_the_claim(captured_logs: CapturedLogs) -> None:
    async with node_with(LoggingDriver) as node:
        await node.run_pod()
        claim_object = await node.claim_of("pod")
        namespace, name, uid = ref(claim_object)
        await node.delete_pod()
    claim = {"claim": f"{namespace}/{name}", "claim_uid": uid, **PROCESS}
    prepared, loaded = captured_logs.line_with("prepared claim"), captured_logs.line_with("firmware is loaded")
    for line in (prepared, loaded):
        assert line.items() >= (claim | {"pod": "default/pod"}).items()
    assert prepared["devices"] == ["toy-0"]
    assert 0 < prepared["duration_s"] < 60
    assert loaded["firmware"] == "1.2"
    assert loaded["operation"] == prepared["operation"]
    unprepared, reset = captured_logs.line_with("unprepared claim"), captured_logs.line_with("card is reset")
    for line in (unprepared, reset):
        assert line.items() >= claim.items()
    assert 0 < unprepared["duration_s"] < 60
    (text,) = (line for line in captured_logs.text if " prepared claim " in line)
    assert f" prepared claim claim={namespace}/{name} claim_uid={uid} pod=default/pod devices=toy-0 duration_s=" in text


async def test_a_failed_prepare_has_an_error_code_and_the_id_of_its_operation_once(captured_logs: CapturedLogs) -> None:
    class Failing(LoggingDriver):
        def prepare(self, claim: Claim) -> list[PreparedDevice]:  # type: ignore[override]
            raise PermanentError("the card is broken")

    async with node_with(Failing) as node:
        with pytest.raises(PodError, match="the card is broken"):
            await node.run_pod()
        claim = await node.claim_of("pod")
        line = captured_logs.line_with("cannot prepare claim: ")
        assert (line["error_code"], line["claim_uid"]) == (PermanentError.code, claim["metadata"]["uid"])
        assert line["pod"] == "default/pod"
        assert "the card is broken" in line["msg"]
        assert "duration_s" not in line
        (text,) = (line for line in captured_logs.text if "cannot prepare claim: " in line)
        assert text.count(line["operation"]) == 1
