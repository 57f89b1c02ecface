"""The lines of a watch. A client that continues after the last line, or after a bookmark, misses nothing."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import watching
from dra_devkit.localcluster.apiserver.kinds import Registry
from dra_devkit.localcluster.apiserver.requests import RequestInfo
from dra_devkit.localcluster.apiserver.storage import Storage
from dra_kubeletplugin.base.json_types import JSON


class Reader:
    """Keeps copies like a reflector. It reads slowly, and its connection is sometimes cut."""

    def __init__(self, storage: Storage, choice: random.Random) -> None:
        self.storage = storage
        self.choice = choice
        kind = Registry(Features.of()).by_kind("v1", "ConfigMap")
        assert kind is not None
        self.target = RequestInfo(kind, "v1", "", "", "")
        self.copies: dict[str, str] = {}
        self.version = 0

    def write(self) -> None:
        name = f"c{self.choice.randrange(4)}"
        if self.choice.random() < 0.3:
            self.storage.remove(self.target.kind.storage, "d", name)
        else:
            self.storage.put(self.target.kind.storage, {"metadata": {"name": name, "namespace": "d", "uid": name}})

    async def connection(self) -> None:
        """Reads a few lines of one watch. Between two lines there is time for writes and for a bookmark."""
        initial = not self.version
        options = watching.WatchOptions(self.version, initial, initial, True, None, 60.0)
        lines = watching.events(self.storage, self.target, lambda _: True, options)
        for _ in range(self.choice.randrange(1, 6)):
            for line in msgspec.json.Decoder().decode_lines(await anext(lines)):
                self.take(line)
            for _ in range(self.choice.randrange(3)):
                self.write()
            await asyncio.sleep(self.choice.choice((0, 0.002)))
        await lines.aclose()

    def take(self, line: JSON) -> None:
        meta = line["object"]["metadata"]
        match line["type"]:
            case "BOOKMARK":
                self.version = int(meta["resourceVersion"])
            case "DELETED":
                self.copies.pop(meta["name"], None)
            case _:
                self.copies[meta["name"]] = meta["resourceVersion"]
        if self.version:  # a reflector restarts if the watch ends before the initial list is complete
            self.version = int(meta["resourceVersion"])


@pytest.mark.parametrize("seed", range(20))
async def test_a_slow_reader_with_a_cut_connection_sees_every_change(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BOOKMARK_EVERY", 0.001)
    storage = Storage()
    reader = Reader(storage, random.Random(seed))
    for _ in range(3):
        reader.write()
    for _ in range(15):
        await reader.connection()
    stored = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in storage.list(reader.target.kind.storage)}
    options = watching.WatchOptions(reader.version, False, False, True, None, 60.0)
    lines = watching.events(storage, reader.target, lambda _: True, options)
    async with asyncio.timeout(30):
        while reader.version < storage.version:
            for line in msgspec.json.Decoder().decode_lines(await anext(lines)):
                reader.take(line)
    await lines.aclose()
    assert reader.copies == stored
