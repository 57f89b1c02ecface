"""Readiness and the status page name the claims that cannot be prepared, and no claim whose prepare has succeeded since."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, PreparedDevice
from dra_kubeletplugin.claims import failing_prepares
from dra_kubeletplugin.claims.claim_fields import ClaimIdentity
from dra_kubeletplugin.claims.failing_prepares import FailingPrepares
from dra_kubeletplugin.errors import ClaimBusyError, StoppingError
from tests.helpers.drivers import Toy

REF = ClaimIdentity("ml", "train", "u1")


class StuckToy(Toy):
    stuck = True

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        if self.stuck:
            raise OSError("the board is stuck")
        return await super().prepare(claim)


async def test_readiness_and_page_name_failing_prepares_until_they_succeed() -> None:
    StuckToy.stuck = True
    async with node_with(StuckToy, http_address="127.0.0.1:0") as node:

        async def fetch(path: str) -> str:
            def read() -> str:
                with urllib.request.urlopen(node.plugin.http_url + path) as response:
                    return str(response.read().decode())

            return await asyncio.to_thread(read)

        async def is_failing() -> bool:
            return "cannot be prepared" in await fetch("/readyz")

        await node.apply_pod()
        await node.cluster.wait("a failing prepare in readiness", is_failing)
        ready, page = await fetch("/readyz"), json.loads(await fetch("/status.json"))
        (line,) = [text for text in page["failing"] if "cannot be prepared" in text]
        for text in (ready, line):
            assert "pod default/pod does not start" in text
            assert (
                "last try " in text
                and "DRIVER_FAILED: " in text
                and "the board is stuck" in text
                and "[DRA-E103]" in text
            )
        StuckToy.stuck = False
        await node.cluster.wait_running("pod")
        assert await fetch("/readyz") == "ok\n"
        assert "cannot be prepared" not in await fetch("/status.json")


async def test_a_failing_claim_is_forgotten_when_its_pod_is_deleted() -> None:
    StuckToy.stuck = True
    async with node_with(StuckToy) as node:

        async def notes() -> list[str]:
            return [n for n in await node.plugin.notes() if "cannot be prepared" in n]

        async def is_quiet() -> bool:
            return not await notes()

        await node.apply_pod()
        await node.cluster.wait("a failing prepare", notes)
        await node.delete_pod()
        await node.cluster.wait("no failing prepare", is_quiet)


def test_a_line_has_the_number_of_tries_and_ages_and_ends_when_the_kubelet_stops_to_ask() -> None:
    now = 1000.0
    failing = FailingPrepares(lambda: now)
    failing.failed(REF, ClaimBusyError("busy"), "ml/train-0")
    failing.failed(REF, StoppingError("the plugin is shutting down"))
    now += 180
    failing.failed(REF, ClaimBusyError("still busy"))
    now += 12
    (line,) = failing.lines()
    assert line.startswith(
        "claim ml/train cannot be prepared, and pod ml/train-0 does not start (for 3m, 2 tries, last try 12s ago): "
    )
    assert "still busy" in line
    now += failing_prepares._FORGET_AFTER
    assert (list(failing.lines()), len(failing)) == ([], 0)


def test_the_number_of_failing_claims_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing_prepares, "_MAX", 2)
    failing: Any = FailingPrepares()
    for i in range(4):
        failing.failed(ClaimIdentity("ml", f"c{i}", f"u{i}"), ClaimBusyError("busy"))
    assert [line.split()[1] for line in failing.lines()] == ["ml/c2", "ml/c3"]
