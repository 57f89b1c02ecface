"""The controllers of the local cluster: those of kube-controller-manager that pods with devices need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import CLAIMS, LEASES, NODES, PODS, SLICES, TEMPLATES

from ...kubernetes_releases import Features
from ..informer import Informers, pod_groups, pool_requests, taint_rules
from ..kubelet.timers import Timers
from .base import Controller
from .claims import ClaimController
from .daemonsets import DaemonSetController
from .deployments import DeploymentController
from .device_taint_eviction import DeviceTaintEviction
from .garbage import GarbageCollector
from .group_protection import PodGroupProtection
from .jobs import JobController
from .node_lifecycle import NodeLifecycle
from .node_monitor import NodeMonitor
from .node_taint_eviction import NodeTaintEviction
from .pod_garbage import PodGarbageCollector
from .pool_status_requests import PoolStatusRequests
from .replicasets import ReplicaSetController
from .workloads import DAEMON_SETS, DEPLOYMENTS, JOBS, REPLICA_SETS, controller_uids


class ControllerManager:
    """Runs all controllers with one set of shared informers."""

    def __init__(self, client: KubeClient, features: Features, timers: Timers) -> None:
        core = (PODS, CLAIMS, TEMPLATES, SLICES, NODES, LEASES)
        workloads = (DEPLOYMENTS, REPLICA_SETS, DAEMON_SETS, JOBS)
        rules = taint_rules(features)
        groups = pod_groups(features)
        requests = pool_requests(features)
        followed = (*core, *workloads, *filter(None, (rules, groups, requests)))
        self.informers = Informers(client, dict.fromkeys(followed, ""))
        for resource in (PODS, REPLICA_SETS):
            self.informers.index(resource, "controller", controller_uids)
        self.informers.index(PODS, "node", _node_of)
        kinds = (
            DeploymentController,
            ReplicaSetController,
            DaemonSetController,
            JobController,
            NodeLifecycle,
            NodeTaintEviction,
        )
        shared = groups if features.has("DRAWorkloadResourceClaims") else None
        self.controllers: tuple[Controller, ...] = (
            ClaimController(client, self.informers, shared),
            *(kind(client, self.informers) for kind in kinds),
            NodeMonitor(client, self.informers, timers.node_monitor_grace_period),
            PodGarbageCollector(client, self.informers, timers.missing_node_wait),
            GarbageCollector(client, self.informers, groups),
            DeviceTaintEviction(client, self.informers, rules),
            *((PodGroupProtection(client, self.informers, groups),) if groups else ()),
            *((PoolStatusRequests(client, self.informers, requests, rules, features),) if requests else ()),
        )

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            await self.informers.run(tasks)
            for controller in self.controllers:
                tasks.create_task(controller.run(), name=controller.name)


def _node_of(pod: Mapping[str, Any]) -> Iterable[str]:
    """The index ``node``: pods by the node they are bound to."""
    return [name] if (name := pod["spec"].get("nodeName")) else []


__all__ = ["ControllerManager"]
