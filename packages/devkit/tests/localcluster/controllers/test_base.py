"""The log of a controller after a failed request."""

from __future__ import annotations

import logging

import pytest

from dra_devkit.localcluster.controllers.base import Controller, Key
from dra_kubeletplugin.kube.errors import api_error
from dra_kubeletplugin.kube.resource import PODS
from tests.helpers.api_server import running_api_server

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


class NoReconciling(Controller):
    """A controller with only the attributes that its failure handler uses."""

    name = "test"

    def __init__(self) -> None:
        self._reported: dict[Key, str] = {}

    async def reconcile(self, key: Key) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(("metadata", "logged"), [({"uid": "of-the-deleted"}, False), ({"labels": {"a": "/"}}, True)])
async def test_a_failed_patch_of_a_replaced_object_is_not_logged(
    metadata: dict[str, object], logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_api_server() as curl:
        await curl.make(CONFIG_MAPS, {"metadata": {"name": "o"}})
        merge = {"Content-Type": "application/merge-patch+json"}
        response = await curl("PATCH", f"{CONFIG_MAPS}/o", {"metadata": metadata}, merge)
    assert response.status == 422
    NoReconciling()._failed(Key(PODS, "default", "o"), api_error(response.message, response.status, response.json))
    assert any("cannot process an object" in line for line in caplog.messages) is logged
