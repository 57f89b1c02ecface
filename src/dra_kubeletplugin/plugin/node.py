"""The node plugin: one object that starts and stops all its parts in order.

Start order: the probes, the driver, the claim records and their rollbacks, discovery, the DRA socket, the registration socket, and then
slices in the background. The sockets never wait for the API server. They wait at most ``DISCOVERY_TIMEOUT`` for a driver whose
``devices()`` hangs. External failures never end a task; if a task ends anyway, that is a bug, and it ends the plugin.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path

from ..base.flock import remove_unlocked
from ..base.http_server.server import Request, Response
from ..base.settings import Settings
from ..base.telemetry.metrics import Metrics
from ..base.wakeup import is_set_within
from ..claims import ClaimManager, PluginContext
from ..claims.instance_lock import InstanceLock, OwnedSocket
from ..devices.device_events import DeviceEvents
from ..devices.discovery import DeviceDiscovery, Intervals, discovery_method
from ..devices.health_monitor import HealthMonitor
from ..devices.health_policy import HealthPolicy
from ..devices.inventory import Inventory
from ..devices.slices import Leadership, NodeScope, Publisher, PublisherStatus
from ..driver import Driver, MetadataUpdate, Role
from ..driver.attachment import attach, overrides, reports_health
from ..driver.calls import Calls
from ..driver.contract import DriverProcess
from ..errors import NotReadyError, SettingsError, describe, printable
from ..host import Host
from ..kube import ApiConfig, KubeClient, load_config
from ..kube.event_recorder import EventRecorder
from ..resourceapi.validation.slices import MAX_DEVICES_IN_SLICE, MAX_DEVICES_WITH_EXTRAS
from .driver_checks import DriverChecks
from .grpc.node_service import NodeService
from .grpc.registration import DRA_SERVICES, HEALTH_SERVICES, Registration
from .grpc.server import UnixServer
from .grpc.sockets import lock_of, remove_hidden, remove_stale, socket_paths
from .lifecycle import Job, Probes, start_driver, start_tasks, stop_with_timeout, unwrap_single_error

log = logging.getLogger(__name__)


class Plugin:
    """A driver and all parts that run it on a node.

    Creating one has no effects; :meth:`running` starts it.

    Args:
        driver: the driver.
        settings: the options of the process.
        api: replaces the API server's address and credentials in ``settings``.

    Raises:
        SettingsError: the API server's address or credentials are invalid.
        SocketError: no socket name is short enough.
        DriverError: the driver's class is invalid.
    """

    def __init__(self, driver: Driver, settings: Settings, api: ApiConfig | None = None) -> None:
        self.driver = driver
        self.settings = settings
        self.metrics = Metrics()
        self.metrics.add(driver.metrics)
        self.host = Host.of(settings)
        attach(driver, self.host, settings, Role.NODE, DriverProcess(self._request_rescan, self._update_metadata))
        self.calls = Calls()
        self.client = KubeClient(
            api or load_config(settings.kubeconfig, service_account=settings.service_account), settings.api_timeout
        )
        self.inventory = _inventory(driver, settings)
        self.health = HealthMonitor(
            driver, self.calls, self.inventory, self.metrics, settings.health_interval, self._process_faults
        )
        self.events = EventRecorder(self.client, settings.driver_name, settings.node_name, self.metrics)
        self.process = InstanceLock(settings.plugin_dir / "processes")
        self.claims = ClaimManager(
            PluginContext(driver, self.calls, self.client, self.inventory, settings, self.metrics),
            self.process,
            self.host.boot_id(),
            self._claims_changed,
            self.events,
            self.health.request,
        )
        intervals = Intervals(interval=settings.rescan_interval, hang=settings.discovery_timeout)
        self.discovery = DeviceDiscovery(
            driver, self.calls, self.inventory, self.claims.held, self.metrics, settings.sysfs_root, intervals
        )
        self.publisher = Publisher(
            self.client,
            self.inventory,
            NodeScope(settings.driver_name, settings.node_name),
            self.metrics,
            Leadership(self.process.is_newest, self.process.folder),
            self.discovery.set_gates_off,
        )
        self.checks = DriverChecks(driver, self.calls, self.metrics, settings.rescan_interval)
        self.device_events = DeviceEvents(self.events, self.inventory, settings.node_name)
        self.paths = socket_paths(settings.registry_dir, settings.plugin_dir, settings.driver_name, settings.pod_uid)
        services = DRA_SERVICES + (HEALTH_SERVICES if reports_health(driver) else ())
        self.registration = Registration(
            settings.driver_name, self.paths.dra, services, self.metrics, self._kubelet_registered
        )
        self.service = NodeService(self.claims, self.metrics)
        served = [self.service.add_to]
        if reports_health(driver):
            from .grpc.health import HealthService  # imported here, because it loads two more gRPC services

            served.append(HealthService(self.inventory).add_to)
        self._dra = UnixServer(self.paths.dra, self.process.id, served)
        self._registrar = UnixServer(
            self.paths.registration,
            self.process.id,
            [self.registration.add_to],
            settings.plugin_dir,
            self.registration.lost,
        )
        self.serving = False
        self.stopping = False
        self.http_url = ""

    def _request_rescan(self) -> None:
        self.health.request()
        self.checks.request()
        self.discovery.request()

    def _process_faults(self) -> Mapping[str, str]:
        return self.claims.process_faults()

    def _update_metadata(self, update: MetadataUpdate) -> Awaitable[int]:
        return self.claims.update_metadata(update)

    def _kubelet_registered(self) -> None:
        self.claims.kubelet_registered()
        self.publisher.kubelet_registered()

    def _claims_changed(self) -> None:
        self.discovery.claim_ended()

    # --- lifespan -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Plugin]:
        """Starts the plugin, and stops it at the end: all parts in reverse order, each with a time limit, also if the start fails.

        If a background task fails, the body is cancelled, and the task's exception is raised at its end.

        Raises:
            SettingsError: a setting is wrong.
            SocketError: a socket cannot be served.
            Exception: anything that ``Driver.start`` raises.
        """
        self.settings.check()
        async with contextlib.AsyncExitStack() as stack:
            stop_with_timeout(stack, "closing connections", self.client.close)
            self._lock_process(stack)
            probes = Probes(
                self.metrics,
                self._measure,
                self.not_ready,
                self.notes,
                self._page,
                self.checks.passed,
                self.claims.hanging,
            )
            self.http_url = await probes.serve(
                stack,
                self.settings.http_address,
                shared=self.settings.local_cluster,  # two instances serve it while `dra dev` upgrades the driver
            )
            stop_with_timeout(stack, "closing the records", self.claims.close)
            await start_driver(stack, self.driver, self.calls, self.settings.start_timeout)
            await self.claims.open()
            async with unwrap_single_error(), asyncio.TaskGroup() as tasks:
                jobs = start_tasks(tasks, {"devices": self.discovery.run})
                try:
                    if not await self.discovery.wait_for_first_call(self.settings.discovery_timeout):
                        log.warning(
                            "serving before the devices are known: the driver's %s() has not returned within %g s",
                            discovery_method(self.driver),
                            self.settings.discovery_timeout,
                        )
                    await self._serve(stack)
                    jobs += start_tasks(tasks, self._background())
                    self.serving = True
                    yield self
                finally:
                    # The kubelet loses the registration first; then calls in flight may end.
                    self.stopping = True
                    self._registrar.unlink()
                    self.registration.unregistered()
                    await self.claims.stop(self.settings.shutdown_grace_period)
                    for job in jobs:
                        job.cancel()

    def _lock_process(self, stack: contextlib.AsyncExitStack) -> None:
        """Takes this instance's lock file, and removes the files that dead instances left.

        The lock is held until no thread of the driver can touch the hardware any more.
        """
        try:
            self.process.acquire()
            for dead_socket in self.process.reap_dead():
                remove_stale(Path(dead_socket.path), dead_socket.device or None, dead_socket.inode or None)
                remove_unlocked(lock_of(Path(dead_socket.path), self.settings.plugin_dir))
            for folder in (self.settings.plugin_dir, self.settings.registry_dir):
                remove_hidden(folder, self.process.alive)
        except OSError as e:
            raise SettingsError(f"{self.process.folder} cannot be written ({e.strerror}): see --kubelet-root") from None
        stack.callback(self.calls.when_idle, self.process.release)

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        """Starts the DRA socket, then the registration socket: when the kubelet finds the latter, the DRA socket must accept calls."""
        # The sockets are recorded before they are created: if the process is killed in between, the next instance removes them.
        self._record_sockets([OwnedSocket(str(self.paths.dra)), OwnedSocket(str(self.paths.registration))])
        for server in (self._dra, self._registrar):
            await server.start()
            # Callbacks run in reverse order, so the kubelet loses the registration first.
            stop_with_timeout(stack, f"closing {server.path.name}", lambda server=server: server.stop(0.5))  # type: ignore[misc]
        self._record_sockets([OwnedSocket(str(s.path), *(s.inode or ())) for s in (self._dra, self._registrar)])
        fields = {"driver": self.settings.driver_name, "node": self.settings.node_name}
        log.info("serving the kubelet at %s", self.paths.dra, extra=fields)

    def _record_sockets(self, sockets: list[OwnedSocket]) -> None:
        try:
            self.process.write_sockets(sockets)
        except OSError as e:  # such as a full disk: the service works, and only a killed process leaves its sockets
            log.warning(
                "cannot write in %s; if the process is killed, its sockets stay: %s", self.process.folder, describe(e)
            )

    async def _publish(self) -> None:
        """Publishes after the first health report: a start must not remove the taint of an unhealthy device. Never returns."""
        if reports_health(self.driver):
            await is_set_within(self.health.first_call_done, self.settings.discovery_timeout)  # health() may hang
        await self.publisher.run()

    def _background(self) -> dict[str, Job]:
        """Returns the background tasks by name; the plugin ends when one of them does."""
        jobs: dict[str, Job] = {
            "publisher": self._publish,
            "device events": self.device_events.run,
            "events": self.events.run,
            "DRA socket": self._dra.keep,
            "registration socket": self._registrar.keep,
            **self.claims.background(),
        }
        if overrides(self.driver, "checks"):
            jobs["checks"] = self.checks.run
        if reports_health(self.driver):
            jobs["health"] = self.health.run
        return jobs

    # --- state ----------------------------------------------------------------------------------

    async def ready(self, timeout: float | None = None) -> None:
        """Waits until the kubelet has registered the plugin and slices are published.

        Raises:
            NotReadyError: with all reasons, after ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.registration.registered.wait()
                await self.publisher.published.wait()
        except TimeoutError:
            why = "; ".join(await self.not_ready())
            raise NotReadyError(f"the plugin is not ready after {timeout:g} s: {why}") from None

    async def published(self, timeout: float | None = None) -> PublisherStatus:
        """Waits until the API server has the driver's last devices. Returns what is published and what is not.

        Raises:
            NotReadyError: with the reason, after ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self.publisher.current()
        except TimeoutError:
            why = self.publisher.fault or self.discovery.fault or "the API server has not responded yet"
            raise NotReadyError(f"slices are not up to date after {timeout:g} s: {why}") from None

    async def not_ready(self) -> list[str]:
        """Returns why the plugin is not ready now; empty if it is. The reasons are:

        * The plugin stops, or does not serve the kubelet yet.
        * A file operation hangs. Then this is the only reason, and the plugin is not alive either.
        * ``devices()`` or ``pools()`` failed when it was called last, or has not returned in time.
        * A socket was removed and is not there again, or the kubelet has not registered the plugin.
        * The slices are not as wanted, also during the pause after another writer's change, or their watch fails.
        * A blocking check of the driver found a problem.
        * The records or the CDI folder cannot be used, or ``recover()`` failed or runs for too long.

        Unhealthy or rejected devices and failed rollbacks are notes: see :meth:`notes`.
        """
        if self.stopping:
            return ["stopping"]
        if hanging := self.claims.hanging():
            return [hanging]  # the other faults are its effects
        # the driver's fault first, because the others may be its effects
        out = [self.discovery.fault] if self.discovery.fault else []
        if not self.serving:
            return [*out, "starting"]
        out += [s.fault for s in (self._dra, self._registrar) if s.fault]
        if not self.registration.registered.is_set():
            out.append(
                f"not registered with the kubelet{': ' + self.registration.error if self.registration.error else ''}"
            )
        out += self.publisher.not_ready()
        out += self.checks.not_ready()
        return out + await self.claims.faults()

    async def notes(self) -> list[str]:
        """Returns facts for the operator that do not affect readiness."""
        return [*await self.other_notes(), *self.claims.failing_prepares()]

    async def other_notes(self) -> list[str]:
        """Returns :meth:`notes` without the claims that cannot be prepared."""
        out = [f"{printable(name)} is not published: {reason}" for name, reason in self.inventory.rejected.items()]
        out += [self.discovery.note] if self.discovery.note else []
        out += self.inventory.gate_notes()
        out += [note] if (note := self.health.note()) else []
        out += self.inventory.health_notes
        out += self.checks.notes()
        return out + await self.claims.notes()

    async def _page(self, request: Request) -> Response:
        from .status_page import PluginState, render_page  # imported on demand, because the page is rarely used

        state = PluginState(
            self.settings.driver_name,
            self.settings.node_name,
            time.time(),
            await self.not_ready(),
            await self.other_notes(),
            self.claims.failing_prepares(),
            (),
            tuple(self.service.calls),
        )
        return await render_page(request, state, self.inventory, self.claims.store.everything)

    async def _measure(self) -> None:
        await self.claims.measure()
        for health, count in self.inventory.health_counts().items():
            self.metrics.set("devices", count, health=health)


def _inventory(driver: Driver, settings: Settings) -> Inventory:
    """Creates the driver's inventory with the health policy of its class and of the settings."""
    # A device that may get a taint needs a slice with the lower device limit; otherwise devices would have to move later.
    slice_size = MAX_DEVICES_WITH_EXTRAS if reports_health(driver) else MAX_DEVICES_IN_SLICE
    policy = HealthPolicy(
        taint=driver.unhealthy_taint,
        effect=settings.unhealthy_effect,
        unhealthy_after=settings.unhealthy_after,
        healthy_after=settings.healthy_after,
        timeout=settings.health_timeout,
    )
    result_timeout = max(settings.health_timeout, 3 * settings.rescan_interval)
    return Inventory(settings.node_name, policy, result_timeout, slice_size=slice_size)
