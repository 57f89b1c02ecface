"""Runs plugins and controllers in this process on a local cluster with several nodes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.settings import ControllerSettings, Settings
from dra_kubeletplugin.driver import Driver, Role, check, make
from dra_kubeletplugin.plugin.controller.controller import Controller
from dra_kubeletplugin.plugin.node import Plugin

from ..localcluster.cluster import LocalCluster

_READY = 60.0  # seconds


@contextlib.asynccontextmanager
async def plugin_on(
    cluster: LocalCluster, driver: type[Driver], node: str, *, options: object = None, **settings: Any
) -> AsyncIterator[Plugin]:
    """Runs the driver's plugin on one node, and yields the plugin when it is registered and has published.

    Args:
        options: the options that the driver defines: an object of its options class, or values by name.
        settings: fields of :class:`Settings`.
    """
    check(driver)
    local_node = cluster.nodes[node]
    defaults: dict[str, Any] = {
        "driver_name": driver.name,
        "node_name": node,
        "kubelet_root": local_node.kubelet_root,
        "cdi_root": local_node.cdi_root,
        "local_cluster": True,
    }
    async with Plugin(
        make(driver, options=options), Settings(**defaults | settings), cluster.config
    ).running() as plugin:
        await plugin.ready(_READY)
        yield plugin


@contextlib.asynccontextmanager
async def controller_on(
    cluster: LocalCluster, driver: type[Driver], *, options: object = None, **settings: Any
) -> AsyncIterator[Controller]:
    """Runs the driver's controller, and yields the controller when it is the leader and has published.

    Args:
        options: as for :func:`plugin_on`.
        settings: fields of :class:`ControllerSettings`.
    """
    check(driver, Role.CONTROLLER)
    defaults: dict[str, Any] = {
        "driver_name": driver.name,
        "namespace": "default",
        "sysfs_root": Path("/nonexistent"),  # a controller has no hardware
        "retry_period": 0.2,
    }
    async with Controller(
        make(driver, Role.CONTROLLER, options), ControllerSettings(**defaults | settings), cluster.config
    ).running() as controller:
        await controller.ready(_READY)
        yield controller
