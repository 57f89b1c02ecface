"""A plugin in a pod continues without a restart when its cluster gets a new CA or its token expires.

The service account's volume has the layout of the kubelet: files are links into a folder that is replaced in one step.
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

from dra_devkit.testing import node_with
from dra_kubeletplugin.kube import load_config
from dra_kubeletplugin.plugin.node import Plugin
from tests.helpers.certificates import Pair, authority, server_side, signed
from tests.helpers.drivers import make_toy_class
from tests.helpers.node_steps import restarted_plugin
from tests.helpers.waiting import wait_until


@dataclass
class Volume:
    """A projected volume with ``ca.crt`` and ``token``."""

    folder: Path
    _number: int = field(default=0, init=False)

    def write(self, ca: Path | bytes, token: str) -> None:
        """Replaces both files in one step."""
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
class RotatingCluster:
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
        created: str = self.tokens.of_component("plugin", ["system:masters"])
        return created

    def expire(self, token: str) -> None:
        del self.tokens._issued[token]

    def serve(self, ca: Pair, name: str) -> None:
        """Makes the API server present a certificate of ``ca``, and cuts its connections as a restart does."""
        front = self.node.cluster.api._front
        front.tls = server_side(signed(self.folder, ca, name))
        front.drop_connections()

    async def works(self, name: str) -> None:
        """Checks that a pod gets its device, for which the plugin must read the claim, and that slices are published."""
        await self.node.run_pod(name)
        await wait_until(lambda: not self.plugin.publisher.fault, "no fault")
        assert await self.plugin.not_ready() == []


@pytest.fixture
async def rotating_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RotatingCluster]:
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
            yield RotatingCluster(node, plugin, volume, first, second, token, tmp_path)


async def test_the_plugin_works_if_the_new_ca_arrives_before_the_servers_certificate(
    rotating_cluster: RotatingCluster,
) -> None:
    await rotating_cluster.works("before")
    rotating_cluster.volume.write(
        rotating_cluster.first.cert.read_bytes() + rotating_cluster.second.cert.read_bytes(), rotating_cluster.token
    )
    rotating_cluster.serve(rotating_cluster.second, "after")
    await rotating_cluster.works("after")
    rotating_cluster.volume.write(
        rotating_cluster.second.cert, rotating_cluster.token
    )  # the volume no longer contains the old CA
    rotating_cluster.serve(rotating_cluster.second, "later")
    await rotating_cluster.works("later")


async def test_the_plugin_recovers_if_the_new_ca_arrives_after_the_servers_certificate(
    rotating_cluster: RotatingCluster,
) -> None:
    rotating_cluster.serve(rotating_cluster.second, "after")
    await wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in rotating_cluster.plugin.publisher.fault, "a fault")
    assert any("CERTIFICATE_VERIFY_FAILED" in line for line in await rotating_cluster.plugin.not_ready())
    rotating_cluster.volume.write(rotating_cluster.second.cert, rotating_cluster.token)
    await rotating_cluster.works("after")


async def test_the_plugin_works_when_a_token_expires_after_its_replacement(rotating_cluster: RotatingCluster) -> None:
    fresh = rotating_cluster.new_token()
    rotating_cluster.volume.write(rotating_cluster.first.cert, fresh)
    rotating_cluster.expire(rotating_cluster.token)
    await rotating_cluster.works("after")
    rotating_cluster.serve(rotating_cluster.first, "again")  # the watch has to authenticate again
    await rotating_cluster.works("later")


async def test_the_plugin_recovers_when_a_token_expires_before_its_replacement(
    rotating_cluster: RotatingCluster,
) -> None:
    rotating_cluster.expire(rotating_cluster.token)
    rotating_cluster.serve(rotating_cluster.first, "again")
    await wait_until(lambda: "401" in rotating_cluster.plugin.publisher.fault, "a fault")
    rotating_cluster.volume.write(rotating_cluster.first.cert, rotating_cluster.new_token())
    await rotating_cluster.works("after")


async def test_the_plugin_recovers_if_ca_and_token_change_and_a_file_is_temporarily_empty(
    rotating_cluster: RotatingCluster,
) -> None:
    rotating_cluster.expire(rotating_cluster.token)
    rotating_cluster.volume.write(b"", "")
    rotating_cluster.serve(rotating_cluster.second, "after")
    await wait_until(lambda: rotating_cluster.plugin.publisher.fault, "a fault")
    rotating_cluster.volume.write(rotating_cluster.second.cert, rotating_cluster.new_token())
    await rotating_cluster.works("after")
