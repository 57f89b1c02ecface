"""What kube-controller-manager does, as far as pods with devices need it."""

from __future__ import annotations

import asyncio

from ...kube import KubeClient
from ...resources.releases import Features
from ..informer import CLAIMS, NODES, PODS, SLICES, TEMPLATES, Informers, taint_rules
from .base import Controller
from .claims import ClaimController
from .daemonsets import DaemonSetController
from .deployments import DeploymentController
from .garbage import GarbageCollector
from .jobs import JobController
from .node_lifecycle import NodeLifecycle
from .replicasets import ReplicaSetController
from .taint_eviction import DeviceTaintEviction
from .workloads import DAEMON_SETS, DEPLOYMENTS, JOBS, REPLICA_SETS, controller_uids


class ControllerManager:
    """All controllers, with one set of copies between them."""

    def __init__(self, client: KubeClient, features: Features) -> None:
        core = (PODS, CLAIMS, TEMPLATES, SLICES, NODES)
        workloads = (DEPLOYMENTS, REPLICA_SETS, DAEMON_SETS, JOBS)
        rules = taint_rules(features)
        followed = (*core, *workloads, *((rules,) if rules else ()))
        self.informers = Informers(client, dict.fromkeys(followed, ""))
        for resource in (PODS, REPLICA_SETS):
            self.informers.index(resource, "controller", controller_uids)
        kinds = (
            ClaimController,
            DeploymentController,
            ReplicaSetController,
            DaemonSetController,
            JobController,
            GarbageCollector,
            NodeLifecycle,
        )
        eviction = DeviceTaintEviction(client, self.informers, rules)
        self.controllers: tuple[Controller, ...] = (*(kind(client, self.informers) for kind in kinds), eviction)

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            await self.informers.run(tasks)
            for controller in self.controllers:
                tasks.create_task(controller.run(), name=controller.name)


__all__ = ["ControllerManager"]
