"""Objects and their history: a change reaches who watches for it, and nobody else looks at it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dra_kubeletplugin.localcluster.apiserver.storage import HISTORY, ExpiredError, Storage

JSON = dict[str, Any]


def pod(name: str, node: str = "") -> JSON:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"nodeName": node}}


async def test_a_change_is_looked_at_by_the_watches_of_its_node_alone() -> None:
    storage = Storage()
    looks: list[str] = []
    seen: list[tuple[str, str, str]] = []

    async def watch(node: str, since: int) -> None:
        def matches(obj: Any) -> bool:
            looks.append(node)
            return bool(obj["spec"]["nodeName"] == node)

        with storage.watch("pods", since, matches, (("spec", "nodeName"), node)) as changes:
            while True:
                seen.extend((node, c.type, c.object["metadata"]["name"]) for c in await changes.next())

    tasks = [asyncio.create_task(watch(f"n{i}", storage.version)) for i in range(200)]
    await asyncio.sleep(0)
    storage.put("pods", pod("a", "n7"))
    storage.put("pods", pod("a", "n8"))
    storage.remove("pods", "default", "a")
    async with asyncio.timeout(30):
        while len(seen) < 4:
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(seen) == [("n7", "ADDED", "a"), ("n7", "DELETED", "a"), ("n8", "ADDED", "a"), ("n8", "DELETED", "a")]
    assert set(looks) == {"n7", "n8"}
    assert len(looks) < 12


async def test_a_watch_begins_at_any_remembered_version_and_reports_when_it_cannot() -> None:
    storage = Storage()
    for i in range(HISTORY + 10):
        storage.put("pods", pod("a", str(i)))
    with storage.watch("pods", storage.version - 3, lambda _: True) as first:
        assert [c.object["spec"]["nodeName"] for c in await first.next()] == [str(HISTORY + i) for i in (7, 8, 9)]
    for since in (1, storage.version + 1):
        with pytest.raises(ExpiredError), storage.watch("pods", since, lambda _: True):
            pass
    with storage.watch("nodes", 1, lambda _: True) as other:  # nothing of this kind was forgotten
        storage.put("nodes", pod("n"))
        assert [c.type for c in await other.next()] == ["ADDED"]


async def test_a_watch_that_nobody_reads_ends_and_holds_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kubeletplugin.localcluster.apiserver.storage.LAG", 5)
    storage = Storage()
    with storage.watch("pods", storage.version, lambda _: True) as slow:
        for i in range(20):
            storage.put("pods", pod("a", str(i)))
        assert slow.ended
        assert [c.object["spec"]["nodeName"] for c in await slow.next()] == [str(i) for i in range(6)]
        assert await slow.next() == []


async def test_a_watch_that_is_woken_or_cut_answers_with_nothing() -> None:
    storage = Storage()
    with storage.watch("pods", storage.version, lambda _: True) as quiet:
        for stir in (quiet.wake, storage.cut_watches):
            waiting = asyncio.ensure_future(quiet.next())
            await asyncio.sleep(0)
            assert not waiting.done()
            stir()
            assert await waiting == []
        assert quiet.ended


def test_an_earlier_list_is_as_it_was() -> None:
    storage = Storage()
    storage.put("pods", pod("a", "1"))
    storage.put("pods", pod("b", "1"))
    then = storage.version
    storage.put("pods", pod("a", "2"))
    storage.remove("pods", "default", "b")
    storage.put("pods", pod("c", "1"))
    assert [(o["metadata"]["name"], o["spec"]["nodeName"]) for o in storage.list_at("pods", "", then)] == [
        ("a", "1"),
        ("b", "1"),
    ]
    assert [o["metadata"]["name"] for o in storage.list("pods")] == ["a", "c"]


def test_what_is_owned_is_found_by_its_owner_as_long_as_it_is() -> None:
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
