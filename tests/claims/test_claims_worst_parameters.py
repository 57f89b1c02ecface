"""Claims with the worst parameters that an API server accepts do not block the plugin's event loop, and leave no memory
behind.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.errors import ConfigError, DraError
from tests.helpers import worst_parameters
from tests.helpers.crash import worst_claims_process
from tests.helpers.crash.claim_manager import running_manager
from tests.helpers.worst_parameters import LIMIT, MACHINE, SHAPES

ROOT = Path(__file__).parents[2]
RESIDENT = 8 * 1024 * 1024


@pytest.mark.cases(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", worst_parameters.KINDS)
async def test_no_step_of_the_event_loop_is_long(tmp_path: Path, kind: type[worst_parameters.Config]) -> None:
    api = worst_claims_process.Server()
    for shape in SHAPES:
        name = shape.replace(" ", "-")
        api.encoded[name] = worst_claims_process.encoded(kind, shape, name, 1)
    api.encoded |= {"ordinary": worst_claims_process.encoded(worst_parameters.Plain, "right numbers", "ordinary", 1)}
    async with running_manager(tmp_path, worst_claims_process.WorstClaimsDriver(), api) as manager:
        await manager.prepare(ClaimIdentity("ns", "ordinary", "ordinary"))  # imports the modules
        await manager.unprepare(ClaimIdentity("ns", "ordinary", "ordinary"))
        for shape in SHAPES:
            ref = ClaimIdentity("ns", shape.replace(" ", "-"), shape.replace(" ", "-"))
            with worst_parameters.event_loop_steps() as steps:
                outcome = await manager.prepare(ref)
            assert max(steps) < LIMIT * MACHINE, (shape, sorted(steps)[-3:])
            assert not isinstance(outcome, DraError) or isinstance(outcome, ConfigError), outcome
            await manager.unprepare(ref)


async def test_an_ordinary_claim_does_not_wait_for_many_invalid_claims(tmp_path: Path) -> None:
    """Counts steps of the event loop, each of them short, so other processes on the machine have no effect."""
    api = worst_claims_process.Server()
    api.encoded = {
        f"c{i}": worst_claims_process.encoded(worst_parameters.Plain, "near names", f"c{i}", 1) for i in range(20)
    }
    small_config = worst_parameters.entries(worst_parameters.Plain, "right numbers", 1, 300)
    valid_claim = worst_parameters.with_allocation(worst_parameters.claim(small_config, "good"), small_config)
    api.encoded["good"] = json.dumps(valid_claim).encode()
    async with running_manager(tmp_path, worst_claims_process.WorstClaimsDriver(), api) as manager:
        invalid_calls = [asyncio.create_task(manager.prepare(ClaimIdentity("ns", f"c{i}", f"c{i}"))) for i in range(20)]
        await asyncio.sleep(0)
        assert not isinstance(await manager.prepare(ClaimIdentity("ns", "good", "good")), DraError)
        with worst_parameters.event_loop_steps() as steps:
            outcomes = await asyncio.gather(*invalid_calls)
        assert max(steps, default=0) < LIMIT * MACHINE
        assert all(isinstance(o, ConfigError) for o in outcomes)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and malloc_trim is glibc's")
@pytest.mark.timeout(600)
async def test_resident_memory_returns_to_its_level(tmp_path: Path) -> None:
    """120 prepares of claims of 1 MB, which once took 1.3 GB and kept 130 MB."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.helpers.crash.worst_claims_process", str(tmp_path),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    out, _ = await process.communicate()
    measured = json.loads(out)
    assert measured["faults"] > 0
    assert measured["after"] - measured["before"] <= RESIDENT, measured
    assert measured["peak"] - measured["before"] <= 8 * RESIDENT, measured
