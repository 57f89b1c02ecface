"""The registration service: the kubelet asks for the plugin's name and endpoint, and reports whether it accepts the plugin.

During a rolling update, both instances are registered. The kubelet calls the connected instance that registered last. An instance that
stops removes its registration socket first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from ..._proto import registration_v1_pb2 as pb
from ..._proto import registration_v1_pb2_grpc as pb_grpc
from ...base.telemetry.metrics import Metrics

log = logging.getLogger(__name__)
PLUGIN_TYPE = "DRAPlugin"
DRA_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_HINTS = {
    "no handler registered for plugin type": (
        "the kubelet does not know DRA plugins: enable the feature gate DynamicResourceAllocation, or use Kubernetes 1.34 or later"
    ),
    "none of services supported by the plugin": "this kubelet is older than 1.32, which brought v1beta1",
    "plugin validation failed": "the driver name or the endpoint is refused",
}


class Registration(pb_grpc.RegistrationServicer):
    """Replies from memory, because the kubelet waits one second for GetInfo and rarely retries.

    Attributes:
        registered: set while the kubelet accepts the plugin.
        error: the kubelet's last rejection.

    ``accepted`` is called each time the kubelet accepts the plugin, also after a restart of the kubelet.
    """

    def __init__(
        self,
        driver: str,
        endpoint: Path,
        services: Sequence[str],
        metrics: Metrics,
        accepted: Callable[[], None] = lambda: None,
    ) -> None:
        self._info = pb.PluginInfo(
            type=PLUGIN_TYPE, name=driver, endpoint=str(endpoint), supported_versions=list(services)
        )
        self.registered = asyncio.Event()
        self.error = ""
        self.metrics = metrics
        self._accepted = accepted
        # None after the first registration was measured: later registrations are the kubelet's own retries.
        self._since: float | None = time.monotonic()

    def add_to(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_RegistrationServicer_to_server(self, server)

    def lost(self) -> None:
        """Records that the registration socket was removed: the kubelet then deregisters the plugin."""
        self.unregistered()
        self.error = "the registration socket was removed"
        self._since = time.monotonic()
        log.warning("the registration socket was removed; the kubelet calls again when it is restored")

    def unregistered(self) -> None:
        """Records that the kubelet cannot find the plugin any more."""
        self.registered.clear()
        self.metrics.set("registered", 0)

    async def GetInfo(self, request: pb.InfoRequest, context: Any) -> pb.PluginInfo:
        log.debug("call of the kubelet: GetInfo")
        return self._info

    async def NotifyRegistrationStatus(
        self, request: pb.RegistrationStatus, context: Any
    ) -> pb.RegistrationStatusResponse:
        if request.plugin_registered:
            if not self.registered.is_set() and self._since is not None:
                elapsed, self._since = time.monotonic() - self._since, None
                self.metrics.observe("registration_duration_seconds", elapsed)
                log.info("registered with the kubelet", extra={"duration_s": round(elapsed, 3)})
            self.error = ""
            self.registered.set()
            self._accepted()
        else:
            self.registered.clear()
            self.error = request.error or "no reason given"
            hint = next((h for text, h in _HINTS.items() if text in self.error), "the kubelet retries")
            log.error("the kubelet rejected this plugin: %s; %s", self.error, hint)
        self.metrics.set("registered", int(request.plugin_registered))
        return pb.RegistrationStatusResponse()
