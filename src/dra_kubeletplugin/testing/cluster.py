"""Plugins and controllers of a local cluster with several nodes, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ..base.settings import ControllerSettings, Settings
from ..driver import Driver, Role, check, make
from ..localcluster.cluster import LocalCluster
from ..plugin.controller.controller import Controller
from ..plugin.node import Plugin

_READY = 60.0  # seconds


@contextlib.asynccontextmanager
async def plugin_on(
    cluster: LocalCluster, driver: type[Driver], node: str, *, options: object = None, **settings: Any
) -> AsyncIterator[Plugin]:
    """The driver's plugin on one node, registered and published. ``settings`` are fields of :class:`Settings`, ``options`` the
    driver's own, an object or values by name."""
    check(driver)
    at = cluster.nodes[node]
    given: dict[str, Any] = {
        "driver_name": driver.name,
        "node_name": node,
        "kubelet_root": at.kubelet_root,
        "cdi_root": at.cdi_root,
        "local_cluster": True,
    }
    async with Plugin(make(driver, options=options), Settings(**given | settings), cluster.config).running() as plugin:
        await plugin.ready(_READY)
        yield plugin


@contextlib.asynccontextmanager
async def controller_on(
    cluster: LocalCluster, driver: type[Driver], *, options: object = None, **settings: Any
) -> AsyncIterator[Controller]:
    """The driver's controller, leading and published. ``settings`` are fields of :class:`ControllerSettings`, ``options`` as of
    :func:`plugin_on`."""
    check(driver, Role.CONTROLLER)
    given: dict[str, Any] = {
        "driver_name": driver.name,
        "namespace": "default",
        "sysfs_root": Path("/nonexistent"),  # a controller has no machine
        "retry_period": 0.2,
    }
    async with Controller(
        make(driver, Role.CONTROLLER, options), ControllerSettings(**given | settings), cluster.config
    ).running() as controller:
        await controller.ready(_READY)
        yield controller
