"""Objects and their history. Only the watches that select an object evaluate its changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver.storage import HISTORY, LAG, ExpiredError, Storage
from dra_kubeletplugin.base.json_types import JSON


def pod(name: str, node: str = "") -> JSON:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"nodeName": node}}


async def test_only_watches_of_the_same_node_evaluate_a_change() -> None:
    storage = Storage()
    evaluations: list[str] = []
    changes_received: list[tuple[str, str, str]] = []

    async def watch(node: str, since: int) -> None:
        def matches(obj: Any) -> bool:
            evaluations.append(node)
            return bool(obj["spec"]["nodeName"] == node)

        with storage.watch("pods", since, matches, (("spec", "nodeName"), node)) as changes:
            while True:
                changes_received.extend((node, c.type, c.object["metadata"]["name"]) for c in await changes.next())

    tasks = [asyncio.create_task(watch(f"n{i}", storage.version)) for i in range(200)]
    await asyncio.sleep(0)
    storage.put("pods", pod("a", "n7"))
    storage.put("pods", pod("a", "n8"))
    storage.remove("pods", "default", "a")
    async with asyncio.timeout(30):
        while len(changes_received) < 4:
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(changes_received) == [
        ("n7", "ADDED", "a"),
        ("n7", "DELETED", "a"),
        ("n8", "ADDED", "a"),
        ("n8", "DELETED", "a"),
    ]
    assert set(evaluations) == {"n7", "n8"}
    assert len(evaluations) < 12


async def test_a_watch_starts_at_any_version_in_the_history_and_reports_other_versions() -> None:
    storage = Storage()
    for i in range(HISTORY + 10):
        storage.put("pods", pod("a", str(i)))
    with storage.watch("pods", storage.version - 3, lambda _: True) as first:
        assert [c.object["spec"]["nodeName"] for c in await first.next()] == [str(HISTORY + i) for i in (7, 8, 9)]
    for since in (1, storage.version + 1):
        with pytest.raises(ExpiredError), storage.watch("pods", since, lambda _: True):
            pass
    with storage.watch("nodes", 1, lambda _: True) as other:  # the history of this kind is complete
        storage.put("nodes", pod("n"))
        assert [c.type for c in await other.next()] == ["ADDED"]


async def test_an_unread_watch_ends_at_its_queue_limit() -> None:
    storage = Storage()
    with storage.watch("pods", storage.version, lambda _: True) as slow:
        for i in range(LAG + 10):
            storage.put("pods", pod("a", str(i)))
        assert slow.ended
        assert [c.object["spec"]["nodeName"] for c in await slow.next()] == [str(i) for i in range(LAG + 1)]
        assert await slow.next() == []


async def test_a_woken_or_cut_watch_returns_no_changes() -> None:
    storage = Storage()
    with storage.watch("pods", storage.version, lambda _: True) as quiet:
        for interrupt in (quiet.wake, storage.cut_watches):
            waiting = asyncio.ensure_future(quiet.next())
            await asyncio.sleep(0)
            assert not waiting.done()
            interrupt()
            assert await waiting == []
        assert quiet.ended


def test_owned_objects_are_found_by_their_owner_until_they_change() -> None:
    storage = Storage()
    child = pod("child")
    child["metadata"]["ownerReferences"] = [{"uid": "x"}, {"uid": "y"}]
    storage.put("pods", child)
    assert storage.owned("x") == storage.owned("y") == [("pods", ("default", "child"))]
    child["metadata"]["ownerReferences"] = [{"uid": "y"}]
    storage.put("pods", child)
    assert not storage.owned("x")
    storage.remove("pods", "default", "child")
    assert not storage.owned("y")
    assert storage.with_uid("child") is None
