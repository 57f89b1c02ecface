"""The debug log of a plugin contains no secret that docs/security.md excludes from logs."""

from __future__ import annotations

import json
import logging

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Config, ContainerEdits
from tests.helpers.drivers import Toy


class Keyed(Config):
    KIND, API_VERSION = "Keyed", "toy.example.com/v1"
    licence: str
    slots: int = 1


class KeyedToy(Toy):
    config = Keyed

    async def prepare(self, claim):  # type: ignore[no-untyped-def]
        if claim.devices[0].config.slots > 1:
            raise OSError("too many")
        return [d.prepared(ContainerEdits(env={"TOY": "1"})) for d in claim.devices]


async def test_neither_tokens_nor_parameters_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "hunter2-of-the-claim"  # noqa: S105 not a real secret
    async with node_with(KeyedToy) as node:
        user = json.loads(node.cluster.kubeconfig.read_text())["users"][0]["user"]
        await node.run_pod(parameters={"licence": secret})
        await node.apply_pod("fails", parameters={"licence": secret, "slots": 2})
        await node.apply_pod("wrong", parameters={"licence": secret, "slots": "many"})
        for pod in ("fails", "wrong"):

            async def has_failed(pod: str = pod) -> bool:
                return any(e.reason == "FailedPrepareDynamicResources" for e in await node.api.events(pod))

            await node.cluster.wait(f"the failure of {pod}", has_failed, timeout=40)
        await node.delete_pod()
    plugin_log = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("dra_kubeletplugin"))
    assert "slots" in plugin_log, "the log names the wrong field"
    assert secret not in plugin_log
    assert user["token"] not in plugin_log
