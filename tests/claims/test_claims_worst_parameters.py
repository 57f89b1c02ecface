"""Claims with the worst parameters that an API server accepts do not hold up the plugin's event loop, and leave no memory behind."""

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
    async with running_manager(tmp_path, worst_claims_process.Worst(), api) as one:
        await one.prepare(ClaimIdentity("ns", "ordinary", "ordinary"))  # modules are imported
        await one.unprepare(ClaimIdentity("ns", "ordinary", "ordinary"))
        for shape in SHAPES:
            ref = ClaimIdentity("ns", shape.replace(" ", "-"), shape.replace(" ", "-"))
            with worst_parameters.event_loop_steps() as steps:
                outcome = await one.prepare(ref)
            assert max(steps) < LIMIT * MACHINE, (shape, sorted(steps)[-3:])
            assert not isinstance(outcome, DraError) or isinstance(outcome, ConfigError), outcome
            await one.unprepare(ref)


async def test_an_ordinary_claim_does_not_wait_for_many_bad_ones(tmp_path: Path) -> None:
    """In steps of the event loop, each short: whoever is busy beside it has no part in this."""
    api = worst_claims_process.Server()
    api.encoded = {
        f"c{i}": worst_claims_process.encoded(worst_parameters.Plain, "near names", f"c{i}", 1) for i in range(20)
    }
    small = worst_parameters.entries(worst_parameters.Plain, "right numbers", 1, 300)
    good = worst_parameters.with_allocation(worst_parameters.claim(small, "good"), small)
    api.encoded["good"] = json.dumps(good).encode()
    async with running_manager(tmp_path, worst_claims_process.Worst(), api) as one:
        bad = [asyncio.create_task(one.prepare(ClaimIdentity("ns", f"c{i}", f"c{i}"))) for i in range(20)]
        await asyncio.sleep(0)
        assert not isinstance(await one.prepare(ClaimIdentity("ns", "good", "good")), DraError)
        with worst_parameters.event_loop_steps() as steps:
            outcomes = await asyncio.gather(*bad)
        assert max(steps, default=0) < LIMIT * MACHINE
        assert all(isinstance(o, ConfigError) for o in outcomes)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and malloc_trim is glibc's")
@pytest.mark.timeout(600)
async def test_resident_memory_comes_back(tmp_path: Path) -> None:
    """120 prepares of claims of 1 MB: they took 1.3 GB, and 130 MB stayed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.helpers.crash.worst_claims_process", str(tmp_path),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    out, _ = await process.communicate()
    found = json.loads(out)
    assert found["faults"] > 0
    assert found["after"] - found["before"] <= RESIDENT, found
    assert found["peak"] - found["before"] <= 8 * RESIDENT, found
