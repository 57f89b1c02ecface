"""A plugin in a pod whose cluster gets a new CA, or whose token ends, while it runs: it goes on without a restart.

The service account's volume is laid out as the kubelet does it: files are links into a folder that is replaced at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.kube import load_config
from dra_kubeletplugin.plugin.node import Plugin
from dra_kubeletplugin.testing import node_with
from tests.helpers.certificates import Pair, authority, server_side, signed
from tests.helpers.drivers import make_toy_class
from tests.helpers.waiting import wait_until
from tests.plugin.test_node_unreachable_server import restarted_plugin


@dataclass
class Volume:
    """A projected volume with ``ca.crt`` and ``token``."""

    folder: Path
    _number: int = field(default=0, init=False)

    def write(self, ca: Path | bytes, token: str) -> None:
        """Replaces both files at once."""
        self._number += 1
        fresh = self.folder / f"..{self._number}"
        fresh.mkdir(parents=True)
        (fresh / "ca.crt").write_bytes(ca if isinstance(ca, bytes) else ca.read_bytes())
        (fresh / "token").write_text(token)
        link = self.folder / "..new"
        link.symlink_to(fresh.name)
        os.replace(link, self.folder / "..data")  # noqa: PTH105 as the kubelet does
        for name in ("ca.crt", "token"):
            with contextlib.suppress(FileExistsError):
                (self.folder / name).symlink_to(f"..data/{name}")
        if self._number > 1:
            shutil.rmtree(self.folder / f"..{self._number - 1}")


@dataclass
class Room:
    node: Any
    plugin: Plugin
    volume: Volume
    first: Pair
    second: Pair
    token: str
    folder: Path

    @property
    def tokens(self) -> Any:
        return self.node.cluster.api.tokens

    def new_token(self) -> str:
        made: str = self.tokens.of_component("plugin", ["system:masters"])
        return made

    def expire(self, token: str) -> None:
        del self.tokens._issued[token]

    def serve(self, ca: Pair, name: str) -> None:
        """The API server presents a certificate of ``ca`` from now on, and its connections are cut, as when it restarts."""
        front = self.node.cluster.api._front
        front.tls = server_side(signed(self.folder, ca, name))
        front.drop_connections()

    async def works(self, name: str) -> None:
        """A pod gets its device, which the plugin's own GET of the claim allows; and nothing is wrong with slices."""
        await self.node.run_pod(name)
        await wait_until(lambda: not self.plugin.publisher.fault, "no fault")
        assert await self.plugin.not_ready() == []


@pytest.fixture
async def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    first, second = authority(tmp_path, "first"), authority(tmp_path, "second")
    volume = Volume(tmp_path / "serviceaccount")
    async with node_with(make_toy_class()) as node:
        api = node.cluster.api
        api._front.tls = server_side(signed(tmp_path, first, "before"))
        token = api.tokens.of_component("plugin", ["system:masters"])
        volume.write(first.cert, token)
        host, _, port = api.public_url.removeprefix("https://").rpartition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        config = load_config(service_account=volume.folder)
        assert config.server == api.public_url
        async with restarted_plugin(node, config) as plugin:
            await wait_until(plugin.publisher.published.is_set, "the slices")
            yield Room(node, plugin, volume, first, second, token, tmp_path)


async def test_a_new_ca_that_comes_before_the_servers_certificate(room: Room) -> None:
    await room.works("before")
    room.volume.write(room.first.cert.read_bytes() + room.second.cert.read_bytes(), room.token)
    room.serve(room.second, "after")
    await room.works("after")
    room.volume.write(room.second.cert, room.token)  # the old one is withdrawn
    room.serve(room.second, "later")
    await room.works("later")


async def test_a_new_ca_that_comes_after_the_servers_certificate(room: Room) -> None:
    room.serve(room.second, "after")
    await wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in room.plugin.publisher.fault, "a fault")
    assert any("CERTIFICATE_VERIFY_FAILED" in line for line in await room.plugin.not_ready())
    room.volume.write(room.second.cert, room.token)
    await room.works("after")


async def test_a_token_that_ends_after_another_is_there(room: Room) -> None:
    fresh = room.new_token()
    room.volume.write(room.first.cert, fresh)
    room.expire(room.token)
    await room.works("after")
    room.serve(room.first, "again")  # the watch has to prove itself anew
    await room.works("later")


async def test_a_token_that_ends_before_another_is_there(room: Room) -> None:
    room.expire(room.token)
    room.serve(room.first, "again")
    await wait_until(lambda: "401" in room.plugin.publisher.fault, "a fault")
    room.volume.write(room.first.cert, room.new_token())
    await room.works("after")


async def test_both_at_once_with_a_file_that_is_empty_in_between(room: Room) -> None:
    room.expire(room.token)
    room.volume.write(b"", "")
    room.serve(room.second, "after")
    await wait_until(lambda: room.plugin.publisher.fault, "a fault")
    room.volume.write(room.second.cert, room.new_token())
    await room.works("after")
