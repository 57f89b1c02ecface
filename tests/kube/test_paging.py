"""Lists in pages: no object is missing or repeated, and an expired list is read again from the start."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.decoding import Metadata, Page, as_json
from dra_kubeletplugin.kube.errors import GoneError, api_error
from dra_kubeletplugin.kube.paging import read_all
from dra_kubeletplugin.kube.resource import PODS

GONE = GoneError("the continue token is too old")


class Server:
    """Returns pages or raises errors in this order. Each page except the last has a continue token."""

    def __init__(self, *responses: list[str] | ApiError) -> None:
        self.responses = list(responses)
        self.requests: list[str] = []

    async def page(
        self, resource: Resource, namespace: str, *, fields: str, limit: int, cont: str, checked: bool
    ) -> Page:
        self.requests.append(cont)
        response = self.responses.pop(0)
        if isinstance(response, ApiError):
            raise response
        items = [msgspec.Raw(json.dumps({"metadata": {"name": n}}).encode()) for n in response]
        ends = not self.responses or not response or response[-1] == "last"
        return Page(Metadata(resource_version="7", cont="" if ends else f"after {response[-1]}"), items)


async def names(server: Server, **more: Any) -> list[str]:
    return await read_all(server, PODS, lambda raw: str(as_json(raw)["metadata"]["name"]), **more)  # type: ignore[arg-type]


async def test_the_reader_reads_and_counts_all_pages() -> None:
    server, counts = Server(["a", "b"], ["c", "last"]), list[int]()
    assert await names(server, progress=counts.append) == ["a", "b", "c", "last"]
    assert (server.requests, counts) == (["", "after b"], [2, 4])


async def test_the_reader_requests_the_next_page_before_it_handles_the_current_one() -> None:
    server = Server(["a"], ["last"])
    requested_before: list[int] = []

    def take(raw: msgspec.Raw) -> str:
        requested_before.append(len(server.requests))
        return str(as_json(raw)["metadata"]["name"])

    assert await read_all(server, PODS, take) == ["a", "last"]  # type: ignore[arg-type]
    assert requested_before == [2, 2]


async def test_an_expired_list_is_read_from_the_start_without_duplicates() -> None:
    server = Server(["a", "b"], GONE, ["b", "c"], ["last"])
    assert await names(server) == ["b", "c", "last"]
    assert server.requests == ["", "after b", "", "after c"]


@pytest.mark.parametrize(
    "responses", [[["a"], GONE, ["a"], GONE], [["a"], api_error("not now", 503)]], ids=["expired twice", "refused"]
)
async def test_the_reader_raises_the_error_when_the_second_try_fails(responses: list[list[str] | ApiError]) -> None:
    server = Server(*responses)
    with pytest.raises(ApiError):
        await names(server)
    assert not server.responses
