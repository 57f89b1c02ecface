"""A scheduler never sees an incomplete or mixed pool, also if calls fail, slices are deleted, or another instance takes over.

The scheduler uses a pool if its newest generation has all its slices. At every moment, that generation must be one complete result of
the driver. The server in these tests is a dictionary, so that thousands of interleavings take seconds.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Device, Pool
from dra_kubeletplugin.kube.errors import InvalidError
from tests.devices.slices.slice_server import FULL, DeviceVersions, Server, Writer, scheduler_view

seeds = st.integers(0, 2**32).map(Random)
is_thorough = settings(deadline=None, max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])


def random_result(random: Random) -> DeviceVersions:
    names = [f"d{i:02}" for i in range(14)]
    chosen_name = random.sample(names, random.randrange(15))  # the driver's order is arbitrary
    return {n: random.randrange(2) for n in chosen_name}, random.random() < 0.5


def failing(random: Random) -> list[bool]:
    rate = random.choice((0.0, 0.1, 0.4))
    return [random.random() < rate for _ in range(40)]


def deleting(random: Random) -> list[int]:
    rate = random.choice((0.0, 0.1, 0.4))
    return [random.randrange(9) if random.random() < rate else -1 for _ in range(40)]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@pytest.mark.full
@is_thorough
@given(seeds)
def test_a_complete_generation_is_one_complete_result_after_any_failure_or_deletion(
    random: Random,
) -> None:
    async def scenario() -> None:
        history = [random_result(random) for _ in range(4)]
        server = Server([tuple(scheduler_view(a) for a in history)])
        writer = Writer(server)
        for result in history:
            await writer.set_result(result)
            server.fails, server.kills = failing(random), deleting(random)
            cancel_after = random.random() < 0.5
            for _ in range(4):
                await writer.try_once()
                if cancel_after:
                    writer.restart()
            server.fails, server.kills = [], []
            await writer.settle()
            devices = {d["name"] for o in server.objects.values() for d in o["spec"].get("devices") or []}
            assert devices == set(result[0])
            assert await writer.sync() == 0

    run(scenario())


@is_thorough
@given(seeds)
def test_a_takeover_during_a_publish_never_mixes_two_results(random: Random) -> None:
    async def scenario(folder: Path) -> None:
        before, old, new = random_result(random), random_result(random), random_result(random)
        server = Server([(scheduler_view(before), scheduler_view(old), scheduler_view(new))])
        first, second = Writer(server, folder), Writer(server, folder)
        await first.set_result(before)
        if random.random() < 0.5:
            await first.settle()
        await first.set_result(old)
        await second.set_result(new)
        server.slow = random
        task = asyncio.create_task(first.try_once())
        for _ in range(random.randrange(60)):
            await asyncio.sleep(0)
        first.leads = False
        server.fails = failing(random)
        for _ in range(3):  # while a write of the first instance may still be in flight
            await second.try_once()
        await task
        server.fails, server.slow = [], None
        await second.settle()
        devices = {d["name"] for o in server.objects.values() for d in o["spec"].get("devices") or []}
        assert devices == set(new[0])

    with tempfile.TemporaryDirectory() as folder:
        run(scenario(Path(folder)))


@pytest.mark.full
@is_thorough
@given(seeds)
def test_two_instances_that_publish_at_once_end_with_one_complete_generation(random: Random) -> None:
    """Instances cannot always determine which of them leads. They revert the result of such a conflict."""

    async def scenario() -> None:
        result = random_result(random)
        server = Server([(scheduler_view(result),)])
        server.changed = lambda: None  # type: ignore[method-assign]
        both = [Writer(server), Writer(server)]
        for writer in both:
            await writer.set_result(result)

        async def publish_later(writer: Writer) -> None:
            for _ in range(random.randrange(12)):
                await asyncio.sleep(0)
            await writer.try_once()

        server.fails = failing(random)
        await asyncio.gather(both[0].try_once(), publish_later(both[1]))
        server.fails = []
        for _ in range(6):
            for writer in both:
                await writer.try_once()
        del server.changed
        server.changed()
        for writer in both:
            assert await writer.sync() == 0
        held = sorted(d["name"] for o in server.objects.values() for d in o["spec"].get("devices") or [])
        assert held == sorted(result[0])

    run(scenario())


@is_thorough
@given(st.integers(1, 14), st.integers(0, 13), st.booleans())
def test_the_publisher_restores_a_deleted_slice_unchanged_with_one_write(
    count: int, which: int, partitions: bool
) -> None:
    async def scenario() -> None:
        result: DeviceVersions = ({f"d{i:02}": 0 for i in range(count)}, partitions)
        server = Server([(scheduler_view(result),)])
        writer = Writer(server)
        await writer.set_result(result)
        await writer.settle()
        before = sorted(str(o["spec"]) for o in server.objects.values())
        server.delete_one(which)
        server.writes = 0
        await writer.settle()
        assert server.writes == 1
        assert sorted(str(o["spec"]) for o in server.objects.values()) == before

    run(scenario())


@pytest.mark.parametrize("generation", [2**63 - 1, 2**63 - 2])
def test_the_publisher_restarts_generations_after_the_highest_number(generation: int) -> None:
    async def scenario() -> None:
        before: DeviceVersions = ({f"d{i:02}": 0 for i in range(8)}, False)
        history = [before, *(({f"d{i:02}": v for i in range(10)}, False) for v in (1, 2))]
        server = Server([tuple(scheduler_view(a) for a in history)])
        writer = Writer(server)
        await writer.set_result(before)
        await writer.settle()
        for obj in server.objects.values():  # a state that another writer may have written
            obj["spec"]["pool"]["generation"] = generation
            obj["metadata"]["resourceVersion"] += "0"
        for result in history[1:]:
            await writer.set_result(result)
            await writer.settle()
        assert {d["name"] for o in server.objects.values() for d in o["spec"]["devices"]} == set(history[-1][0])
        assert await writer.sync() == 0

    run(scenario())


@is_thorough
@given(st.integers(1, 14), st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_an_interrupted_publish_is_continued_and_no_slice_is_written_twice(count: int, cuts: list[int]) -> None:
    async def scenario() -> None:
        result: DeviceVersions = ({f"d{i:02}": 0 for i in range(count)}, False)
        server = Server([(scheduler_view(result),)])
        writer = Writer(server)
        await writer.set_result(result)
        for cut in cuts:
            server.fails = [
                True,
                *([False] * 2 * cut),
            ]  # the syncer reads the list from its end, so the call fails before it has an effect
            await writer.try_once()
            writer.restart()
        server.fails = []
        await writer.settle()
        assert server.writes == len(server.objects) == -(-count // FULL)

    run(scenario())


@pytest.mark.parametrize("partitions", [False, True])
def test_repeated_publishing_of_an_unchanged_pool_writes_nothing(partitions: bool) -> None:
    async def scenario() -> None:
        result: DeviceVersions = ({f"d{i:02}": 0 for i in range(10)}, partitions)
        writer = Writer(Server([(scheduler_view(result),)]))
        await writer.set_result(result)
        await writer.settle()
        for _ in range(3):
            writer.restart()
            assert await writer.sync() == 0

    run(scenario())


@pytest.mark.parametrize("names", [("node/a", "node/b"), ("node/b", "node/a")])
@pytest.mark.parametrize("refused", [False, True])
async def test_a_device_that_moves_to_another_pool_is_never_in_both_pools(
    names: tuple[str, str], refused: bool
) -> None:
    server = Server([])
    server.changed = lambda: None  # type: ignore[method-assign]
    writer = Writer(server)

    async def place_moving_device(home: str) -> None:
        pools = [Pool(n, [Device(f"stays-{n[-1]}"), *([Device("moves")] if n == home else [])]) for n in names]
        await writer.inventory.update(pools)

    def check_moving_device() -> None:
        every = [d["name"] for o in server.objects.values() for d in o["spec"]["devices"]]
        assert every.count("moves") <= 1

    await place_moving_device("node/b")
    await writer.settle()
    server.changed = check_moving_device  # type: ignore[method-assign]
    await place_moving_device("node/a")
    update = server.update

    async def reject(resource: Any, obj: dict[str, Any]) -> dict[str, Any]:
        if obj["spec"]["pool"]["name"] == "node/b":
            raise InvalidError("not this pool")
        return await update(resource, obj)

    if refused:
        server.update = reject  # type: ignore[method-assign]
        assert not await writer.try_once()
        server.update = update  # type: ignore[method-assign]
    await writer.settle()
    assert any(d["name"] == "moves" for o in server.objects.values() for d in o["spec"]["devices"])


async def test_a_rejection_of_an_older_description_does_not_withhold_the_device() -> None:
    server = Server([])
    server.changed = lambda: None  # type: ignore[method-assign]
    writer = Writer(server)
    await writer.set_result(({"a": 0, "b": 0}, False))
    create = server.create

    async def reject(resource: Any, obj: dict[str, Any]) -> dict[str, Any]:
        await writer.set_result(({"a": 1, "b": 0}, False))  # The driver returns its next result during the request.
        causes = [{"field": f"spec.devices[{i}].attributes", "message": "no"} for i in range(2)]
        raise InvalidError("refused", details={"details": {"causes": causes}})

    server.create = reject  # type: ignore[method-assign]
    assert not await writer.try_once()
    server.create = create  # type: ignore[method-assign]
    assert set(writer.inventory.rejected) == {"b"}
    await writer.settle()
    assert [d["name"] for o in server.objects.values() for d in o["spec"]["devices"]] == ["a"]
