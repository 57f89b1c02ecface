"""A plugin in a pod continues without a restart when its cluster gets a new CA or its token expires.

The service account's volume has the layout of the kubelet: files are links into a folder that is replaced in one step.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.apiserver.auth import Tokens
from dra_devkit.testing import node_with
from dra_kubeletplugin.kube import load_config
from dra_kubeletplugin.plugin.node import Plugin
from tests.helpers.certificates import Pair, authority, server_side, signed
from tests.helpers.drivers import make_toy_class
from tests.helpers.node_steps import restarted_plugin
from tests.helpers.waiting import wait_until


class RotatingCluster:
    """A node whose plugin uses another API server for the cluster's objects: its certificate and its valid token change."""

    def __init__(self, node: Any, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.volume = folder / "serviceaccount"
        self.plugin: Plugin
        self._server: ApiServer | None = None
        self.address = "127.0.0.1:0"
        self._versions = 0

    async def serve(self, ca: Pair, token: str) -> None:
        """Replaces the server by one that presents a certificate of ``ca``, and accepts only ``token``."""
        await self.close()
        self._versions += 1
        tls, storage = server_side(signed(self.folder, ca, f"server-{self._versions}")), self.node.cluster.api.storage
        self._server = ApiServer(self.address, tls, storage, Tokens(admin=token))
        self.address = (await self._server.start()).removeprefix("https://")

    async def close(self) -> None:
        if self._server:
            await self._server.close()

    def write(self, ca: bytes, token: str) -> None:
        """Replaces both files of the volume in one step."""
        self._versions += 1
        fresh = self.volume / f"..{self._versions}"
        fresh.mkdir(parents=True)
        (fresh / "ca.crt").write_bytes(ca)
        (fresh / "token").write_text(token)
        before, link = self.volume / "..data", self.volume / "..new"
        old = before.resolve() if before.exists() else None
        link.symlink_to(fresh.name)
        os.replace(link, before)  # noqa: PTH105 as the kubelet does
        for name in ("ca.crt", "token"):
            with contextlib.suppress(FileExistsError):
                (self.volume / name).symlink_to(f"..data/{name}")
        if old:
            shutil.rmtree(old)

    async def works(self, name: str) -> None:
        """Checks that a pod gets its device, for which the plugin must read the claim, and that slices are published."""
        await self.node.run_pod(name)
        await wait_until(lambda: not self.plugin.publisher.fault, "no fault")
        assert await self.plugin.not_ready() == []


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Pair, Pair]:
    return authority(tmp_path, "first"), authority(tmp_path, "second")


@pytest.fixture
async def cluster(
    tmp_path: Path, pairs: tuple[Pair, Pair], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RotatingCluster]:
    async with node_with(make_toy_class()) as node, contextlib.AsyncExitStack() as stack:
        found = RotatingCluster(node, tmp_path)
        stack.push_async_callback(found.close)
        await found.serve(pairs[0], "one")
        found.write(pairs[0].cert.read_bytes(), "one")
        host, _, port = found.address.rpartition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        config = load_config(service_account=found.volume)
        found.plugin = await stack.enter_async_context(restarted_plugin(node, config))
        await wait_until(found.plugin.publisher.published.is_set, "the slices")
        yield found


async def test_the_plugin_works_if_new_files_arrive_before_the_server_needs_them(
    cluster: RotatingCluster, pairs: tuple[Pair, Pair]
) -> None:
    first, second = (pair.cert.read_bytes() for pair in pairs)
    cluster.write(first + second, "two")
    await cluster.serve(pairs[1], "two")
    await cluster.works("after")
    cluster.write(second, "two")  # the volume no longer contains the old CA
    await cluster.serve(pairs[1], "two")
    await cluster.works("later")


async def test_the_plugin_recovers_if_new_files_arrive_after_the_server_needs_them(
    cluster: RotatingCluster, pairs: tuple[Pair, Pair]
) -> None:
    await cluster.serve(pairs[1], "one")
    await wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in cluster.plugin.publisher.fault, "a fault")
    assert any("CERTIFICATE_VERIFY_FAILED" in line for line in await cluster.plugin.not_ready())
    cluster.write(pairs[1].cert.read_bytes(), "one")
    await cluster.serve(pairs[1], "two")
    await wait_until(lambda: "401" in cluster.plugin.publisher.fault, "another fault")
    cluster.write(pairs[1].cert.read_bytes(), "two")
    await cluster.works("after")
