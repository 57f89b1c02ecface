"""A real plugin process is killed before a step with an external effect. Nothing leaks, and no device has two holders.

The test kills before a few steps of each phase; ``python -m tests.helpers.crash.kill_sweep`` runs all steps.
"""

from __future__ import annotations

import pytest

from tests.helpers.crash.kill_sweep import PHASES, sweep

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("phase", PHASES)
async def test_after_a_kill_before_a_step_the_next_instance_matches_the_responses_to_the_kubelet(phase: str) -> None:
    async with sweep() as plugins:
        steps = await plugins.steps(phase)
        assert len(steps) >= 5, steps
        for part in (1, 2, 3):
            await plugins.kill(phase, len(steps) * part // 4)
