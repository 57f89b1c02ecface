"""The objects that the parts of the claim manager share."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..base.settings import Settings
from ..base.telemetry.metrics import Metrics
from ..devices.inventory import Inventory
from ..driver import Driver
from ..driver.calls import Calls
from ..kube import KubeClient
from .claim_files import ClaimFiles
from .inflight import ClaimTasks
from .processes import ClaimProcesses
from .running_pods import ClaimPods
from .shared_steps import SharedSteps
from .store.store import RecordStore
from .transitions import Transitions


class PluginContext(msgspec.Struct, frozen=True):
    """The objects that a plugin creates before its claim manager."""

    driver: Driver
    calls: Calls
    client: KubeClient
    inventory: Inventory
    settings: Settings
    metrics: Metrics


class ClaimContext(msgspec.Struct, frozen=True):
    """The objects that every operation on a claim needs. ``changed`` is called when a claim has taken or freed devices."""

    driver: Driver
    calls: Calls
    settings: Settings
    metrics: Metrics
    store: RecordStore
    files: ClaimFiles
    transitions: Transitions
    tasks: ClaimTasks
    shared: SharedSteps
    processes: ClaimProcesses
    pods: ClaimPods
    changed: Callable[[], None]
