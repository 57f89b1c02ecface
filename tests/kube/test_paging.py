"""A list in pages: nothing twice, nothing lost, and a second try where it grew too old on the way."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.decoding import Metadata, Page
from dra_kubeletplugin.kube.errors import GoneError, api_error
from dra_kubeletplugin.kube.paging import as_json, read_all
from dra_kubeletplugin.kube.resource import PODS

GONE = GoneError("the continue token is too old")


class Server:
    """Answers with pages, or fails, in this order; each page but the last goes on."""

    def __init__(self, *answers: list[str] | ApiError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def page(
        self, resource: Resource, namespace: str, *, fields: str, limit: int, cont: str, checked: bool
    ) -> Page:
        self.asked.append(cont)
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        items = [msgspec.Raw(json.dumps({"metadata": {"name": n}}).encode()) for n in answer]
        ends = not self.answers or not answer or answer[-1] == "last"
        return Page(Metadata(resource_version="7", cont="" if ends else f"after {answer[-1]}"), items)


async def names(server: Server, **more: Any) -> list[str]:
    return await read_all(server, PODS, lambda raw: str(as_json(raw)["metadata"]["name"]), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("fast", [False, True])
async def test_all_pages_are_read_and_counted(fast: bool) -> None:
    server, counts = Server(["a", "b"], ["c", "last"]), list[int]()
    assert await names(server, progress=counts.append, fast=fast) == ["a", "b", "c", "last"]
    assert (server.asked, counts) == (["", "after b"], [2, 4])


@pytest.mark.parametrize("fast", [False, True])
async def test_the_next_page_is_requested_before_the_objects_of_a_page_are_handled_only_in_a_fast_read(
    fast: bool,
) -> None:
    server = Server(["a"], ["last"])
    requested_before: list[int] = []

    def take(raw: msgspec.Raw) -> str:
        requested_before.append(len(server.asked))
        return str(as_json(raw)["metadata"]["name"])

    assert await read_all(server, PODS, take, fast=fast) == ["a", "last"]  # type: ignore[arg-type]
    assert requested_before == ([2, 2] if fast else [1, 2])


@pytest.mark.parametrize("fast", [False, True])
async def test_a_list_that_grew_too_old_is_read_from_the_start_and_has_nothing_twice(fast: bool) -> None:
    server = Server(["a", "b"], GONE, ["b", "c"], ["last"])
    assert await names(server, fast=fast) == ["b", "c", "last"]
    assert server.asked == ["", "after b", "", "after c"]


@pytest.mark.parametrize(
    "answers", [[["a"], GONE, ["a"], GONE], [["a"], api_error("not now", 503)]], ids=["twice too old", "refused"]
)
async def test_what_a_second_try_does_not_mend_is_raised(answers: list[list[str] | ApiError]) -> None:
    server = Server(*answers)
    with pytest.raises(ApiError):
        await names(server)
    assert not server.answers
