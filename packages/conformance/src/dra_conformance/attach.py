"""Checks a driver on a real node with its real API server. Runs only the checks that change nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import grpc.aio

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_kubeletplugin.kube.resource import NODES

from .catalogue import CheckSkipped, ConformanceCheck
from .driver_command import DriverCommand, DriverNotReady
from .harness import Harness
from .kubelet_client import PluginConnection, RegistrationClient, RegistrationInfo, find_sockets
from .profile import ConformanceProfile
from .runner import CheckOutcome, ConformanceRun, OutcomeStatus, Report, run_check
from .transcript import Transcript

CHANGES_THE_NODE = "the check would change the node: run it with --driver-cmd"


class AttachedHarness(Harness):
    """The surroundings of a driver on a real node, which checks only read."""

    may_change = False

    def __init__(self, kubelet_root: Path, node: str, config: ApiConfig, profile: ConformanceProfile) -> None:
        self.config = config
        self.profile = profile
        self.transcript = Transcript()
        self.kubelet_root = kubelet_root
        self.registry = kubelet_root / "plugins_registry"
        self.plugins = kubelet_root / "plugins"
        self.registration = RegistrationClient(self.transcript)
        self.facts = {}
        self.is_publishing = False  # checks do not wait for slices, because they were already read
        self.host = None
        self.command = DriverCommand(())
        self._node_name = node
        self._node: JSON = {}
        self._slices: list[JSON] = []

    @property
    def node(self) -> JSON:
        return self._node

    @property
    def slices(self) -> list[JSON]:
        return self._slices

    @property
    def log(self) -> str:
        return ""

    async def claim(self, *requests: str) -> JSON:
        raise CheckSkipped(CHANGES_THE_NODE)

    def check_flood(self) -> None: ...

    async def clean_up(self) -> None: ...

    async def reset(self) -> None: ...

    async def attach(self, name: str) -> None:
        """Connects to the driver, and reads its slices of the node.

        Args:
            name: the driver; empty if only one is registered.

        Raises :class:`DriverNotReady`.
        """
        registered = await self._registrations()
        found = [i for i in registered if name in {"", i.name}]
        if len({i.name for i in found}) != 1:
            raise DriverNotReady(self._why_none(name, sorted({i.name for i in registered})))
        self.plugin = PluginConnection(found[-1], Path(found[-1].endpoint), self.transcript)
        async with KubeClient(self.config) as client:
            try:
                self._node = await client.get(NODES, self._node_name)
            except ApiError as e:
                name = self._node_name
                raise DriverNotReady(f"the Node {name} cannot be read: {e}; --node-name selects a Node") from None
            try:
                resource = await client.dra("resourceslices")
                fields = f"spec.driver={self.name},spec.nodeName={self._node_name}"
                self._slices = (await client.list(resource, fields=fields))["items"]
            except ApiError as e:
                raise DriverNotReady(f"the slices of {self.name} on {self._node_name} cannot be read: {e}") from None

    def _why_none(self, name: str, registered: Sequence[str]) -> str:
        """Returns why no driver, or more than one, was found, and what to do."""
        if not registered:
            if sockets := find_sockets(self.registry):
                names = ", ".join(path.name for path in sockets)
                return f"no DRA driver responds in {self.registry} ({names}): start the driver, and run this command as root"
            return f"{self.registry} contains no socket: start the driver on this node, or check --kubelet-root"
        shown = ", ".join(registered)
        if name:
            return f"{name} is not registered in {self.registry}, which has {shown}: correct --driver-name"
        return f"several drivers are registered in {self.registry}: {shown}: select one driver with --driver-name"

    async def _registrations(self) -> list[RegistrationInfo]:
        out = []
        for path in find_sockets(self.registry):
            try:
                info = await self.registration.get_info(path)
            except grpc.aio.AioRpcError:  # a stale socket, or no permission
                continue
            if info.type == "DRAPlugin":
                out.append(info)
        return out

    def published(self) -> frozenset[tuple[str, str]]:
        return frozenset((c.id.pool, c.id.device) for c in self.devices())


async def attach(
    harness: AttachedHarness, name: str, selected: Sequence[ConformanceCheck], report: Report = lambda outcome: None
) -> ConformanceRun:
    """Runs the checks that only read, on a driver of this node. Skips the other checks.

    Args:
        name: the driver; empty if only one is registered.
        report: called with each outcome.
    """
    began, out = time.monotonic(), ConformanceRun()
    try:
        await harness.attach(name)
        out.driver = harness.name
        for check in selected:
            if check.attach:
                outcome = await run_check(harness, check)
            else:
                outcome = CheckOutcome(check, OutcomeStatus.SKIPPED, 0.0, reason=CHANGES_THE_NODE)
            out.outcomes.append(outcome)
            report(outcome)
        await harness.plugin.close()
    except DriverNotReady as e:
        out.fault = str(e)
    out.seconds = time.monotonic() - began
    return out
