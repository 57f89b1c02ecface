"""Claims of one card are prepared and unprepared at the same time, in two instances, with faults: the state is always
correct.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, Driver, PreparedClaim, PreparedDevice, RetryableError
from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.errors import DraError
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager

NAME = "cards.example.com"


class FakeCard:
    """The hardware of both instances. ``faults`` contains the number of remaining failures of each method."""

    def __init__(self, faults: dict[str, int]) -> None:
        self.faults = dict(faults)
        self.state = "off"
        self.users: set[str] = set()
        self.errors: list[str] = []
        self.busy = False

    async def change(self, name: str, state: str) -> None:
        if self.busy or self.users:
            self.errors.append(f"{name} while busy={self.busy}, users={sorted(self.users)}")
        self.busy, self.state = True, "unknown"
        await asyncio.sleep(0.001)
        self.busy = False
        self.fail(name)
        self.state = state

    def fail(self, name: str) -> None:
        if self.faults.get(name, 0) > 0:
            self.faults[name] -= 1
            raise RetryableError(f"{name} fails")


class CardDriver(Driver):
    name = NAME

    def __init__(self, card: FakeCard) -> None:
        self.card = card

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        await claim.shared_step(self.setup_power, "card")
        await claim.on_undo(self.part)
        if self.card.state != "on":
            self.card.errors.append(f"{claim.uid} begins while the card is {self.card.state}")
        self.card.users.add(claim.uid)
        await asyncio.sleep(0)
        self.card.fail("prepare")
        return [d.prepared() for d in claim.devices]

    async def part(self, claim: PreparedClaim) -> None:
        self.card.fail("undo")
        if claim.uid in self.card.users and self.card.state != "on":
            self.card.errors.append(f"{claim.uid} ends while the card is {self.card.state}")
        await asyncio.sleep(0)
        self.card.users.discard(claim.uid)

    async def setup_power(self, key: str) -> None:
        if self.card.state != "on":
            await self.card.change("setup", "on")

    async def teardown_power(self, key: str) -> None:
        await self.card.change("teardown", "off")


async def run_calls(folder: Path, calls_of_claims: list[list[tuple[str, int]]], faults: dict[str, int]) -> None:
    card, api = FakeCard(faults), FakeApiServer()
    refs = [api.allocate(f"c{i}", f"uid-{i}", f"d-{i}", NAME) for i in range(len(calls_of_claims))]
    async with (
        running_manager(folder, CardDriver(card), api) as manager,
        running_manager(folder, CardDriver(card), api) as second_manager,
    ):

        async def run_calls_of_claim(ref: ClaimIdentity, calls: list[tuple[str, int]]) -> None:
            for call, instance in calls:
                await getattr((manager, second_manager)[instance], call)(ref)

        await asyncio.gather(*(run_calls_of_claim(r, s) for r, s in zip(refs, calls_of_claims, strict=True)))
        assert card.errors == []
        assert card.state == "on" or not card.users
        card.faults.clear()
        for ref in refs:
            assert not isinstance(await manager.unprepare(ref), DraError)
        assert (card.errors, card.users, await all_records(manager, second_manager)) == ([], set(), [])
        assert card.state == "off" or not any(call == "prepare" for s in calls_of_claims for call, _ in s)


async def all_records(*instances: RunningManager) -> list[Any]:
    return [r for i in instances for r in await i.records()]


CALLS = st.tuples(st.sampled_from(["prepare", "prepare", "unprepare"]), st.integers(0, 1))
FAULTS = st.dictionaries(st.sampled_from(["setup", "teardown", "prepare", "undo"]), st.integers(1, 3))


@given(st.lists(st.lists(CALLS, min_size=1, max_size=5), min_size=2, max_size=5), FAULTS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_state_is_on_while_a_claim_uses_it_and_off_at_the_end(
    calls_of_claims: list[list[tuple[str, int]]], faults: dict[str, int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run_calls(Path(folder), calls_of_claims, faults))
