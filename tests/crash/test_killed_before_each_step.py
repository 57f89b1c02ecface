"""A real plugin process is killed before what others could see or find: nothing leaks, and nothing is handed out twice.

A few steps of each phase; ``python -m tests.crash.sweep`` takes all of them.
"""

from __future__ import annotations

import pytest

from tests.crash.sweep import PHASES, sweep

pytestmark = pytest.mark.crash
_KILLS = 2


@pytest.mark.parametrize("phase", PHASES)
async def test_killed_before_a_step_the_next_instance_finds_all_as_the_kubelet_was_told(phase: str) -> None:
    async with sweep() as kills:
        steps = await kills.once(phase)
        assert len(steps) >= 5, steps
        for n in range(1, _KILLS + 1):
            step = len(steps) * n // (_KILLS + 1)
            assert len(await kills.once(phase, step)) == step + 1
