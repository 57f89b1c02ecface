"""The connection to the API server or the plugin's credentials fail: the plugin serves its sockets, reports why it is
not ready, and recovers.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin.kube import ApiConfig, load_config
from dra_kubeletplugin.kube.credentials import TokenFile
from tests.helpers.drivers import make_toy_class
from tests.helpers.kubeconfigs import EXEC_API, config_of, write_config
from tests.helpers.node_steps import restarted_plugin
from tests.helpers.raw_server import http_response, serve_replies
from tests.helpers.waiting import wait_until

PAGE = http_response(b"<html>maintenance</html>", "200 OK", "Content-Type: text/html\r\n")
REDIRECT = http_response(b"", "307 Temporary Redirect", "Location: https://login.example.com/\r\n")


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "reply", [PAGE, REDIRECT, http_response([]), http_response({}), http_response({"versions": 7}), b"garbage", None]
)
async def test_a_proxy_that_responds_instead_of_the_server_does_not_stop_the_plugin(reply: bytes | None) -> None:
    async with (
        node_with(make_toy_class()) as node,
        serve_replies(reply) as server,
        restarted_plugin(node, ApiConfig(server.url)) as plugin,
    ):
        await wait_until(lambda: plugin.publisher.fault, "the publisher to fail")
        await wait_until(lambda: len(server.requests) > 6, "several attempts")
        assert any("slices are not published" in line for line in await plugin.not_ready())


async def test_a_plugin_recovers_when_its_token_file_appears(tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with node_with(make_toy_class()) as node:
        config = dataclasses.replace(node.plugin.client.config, credentials=TokenFile(token))
        async with restarted_plugin(node, config) as plugin:
            await wait_until(lambda: str(token) in plugin.publisher.fault, "a fault")
            token.write_text("")
            await wait_until(lambda: "empty" in plugin.publisher.fault, "another fault")
            token.write_text(node.cluster.api.token)
            await wait_until(plugin.publisher.published.is_set, "the slices")
            await wait_until(lambda: not plugin.publisher.fault, "the end of the fault")


@pytest.mark.full
async def test_an_exec_plugin_that_fails_for_a_while_does_not_stop_the_plugin(tmp_path: Path) -> None:
    command = tmp_path / "login"
    user = {"exec": {"apiVersion": EXEC_API, "command": str(command), "interactiveMode": "Never"}}
    async with node_with(make_toy_class()) as node:
        config = load_config(write_config(tmp_path, config_of(user, server=node.plugin.client.config.server)))
        config.credentials.interval = 0.1  # type: ignore[attr-defined]
        async with restarted_plugin(node, config) as plugin:
            await wait_until(lambda: "exec plugin" in plugin.publisher.fault, "a fault")
            credential = f'{{"apiVersion": "{EXEC_API}", "kind": "ExecCredential", "status": {{"token": "{node.cluster.api.token}"}}}}'
            command.write_text(f"#!{sys.executable}\nprint('''{credential}''')\n")
            command.chmod(0o755)
            await wait_until(plugin.publisher.published.is_set, "the slices")
