"""Claims with the worst parameters that an API server accepts do not block the plugin's event loop."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.errors import ConfigError, DraError
from dra_kubeletplugin.kube.http1 import HttpResponse
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.worst_parameters import (
    DRIVER,
    KINDS,
    LIMIT,
    MACHINE,
    SHAPES,
    Config,
    Plain,
    claim,
    entries,
    event_loop_steps,
    with_allocation,
)


class Server(FakeApiServer):
    """Encodes each claim once, before the measurement."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: dict[str, bytes] = {}

    def add(self, name: str, config: list[Any]) -> ClaimIdentity:
        self.encoded[name] = json.dumps(with_allocation(claim(config, name), config), separators=(",", ":")).encode()
        return ClaimIdentity("ns", name, name)

    async def raw(self, method: str, path: str, *, timeout: float | None = None) -> HttpResponse:
        return HttpResponse(200, {}, self.encoded[path.rpartition("/")[2]])


class WorstClaimsDriver(Driver):
    name = DRIVER
    config = KINDS

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        pass


@pytest.mark.cases(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
async def test_no_step_of_the_event_loop_is_long(tmp_path: Path, kind: type[Config]) -> None:
    api = Server()
    ordinary = api.add("ordinary", entries(Plain, "right numbers"))
    refs = {shape: api.add(shape.replace(" ", "-"), entries(kind, shape)) for shape in SHAPES}
    async with running_manager(tmp_path, WorstClaimsDriver(), api) as manager:
        await manager.prepare(ordinary)  # imports the modules
        await manager.unprepare(ordinary)
        for shape, ref in refs.items():
            with event_loop_steps() as steps:
                outcome = await manager.prepare(ref)
            assert max(steps) < LIMIT * MACHINE, (shape, sorted(steps)[-3:])
            assert not isinstance(outcome, DraError) or isinstance(outcome, ConfigError), outcome
            await manager.unprepare(ref)


async def test_an_ordinary_claim_does_not_wait_for_many_invalid_claims(tmp_path: Path) -> None:
    """Counts steps of the event loop, each of them short, so other processes on the machine have no effect."""
    api = Server()
    refs = [api.add(f"c{i}", entries(Plain, "near names")) for i in range(20)]
    good = api.add("good", entries(Plain, "right numbers", 1, 300))
    async with running_manager(tmp_path, WorstClaimsDriver(), api) as manager:
        invalid_calls = [asyncio.create_task(manager.prepare(ref)) for ref in refs]
        await asyncio.sleep(0)
        assert not isinstance(await manager.prepare(good), DraError)
        with event_loop_steps() as steps:
            outcomes = await asyncio.gather(*invalid_calls)
        assert max(steps, default=0) < LIMIT * MACHINE
        assert all(isinstance(o, ConfigError) for o in outcomes)
