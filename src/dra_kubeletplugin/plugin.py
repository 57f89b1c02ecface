"""One plugin: a single lifespan that starts and stops everything below it, in order.

Records and what must be undone first, then the DRA socket, then the registration socket, then slices in the background. Nothing
that the kubelet needs waits for the API server. A background task that fails ends the plugin: there are no zombies.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from .cdi import ClaimSpecs
from .claims import Engine, Store
from .claims.processes import ProcessLock
from .claims.reconcile import Reconciler
from .claims.recovery import Repair, merge_recovered
from .claims.verify import Verifier
from .driver import Driver
from .driver.contract import call
from .errors import DraError, DriverError, RecordsError, SettingsError
from .host import Host
from .host.events import changes
from .inventory import Inventory
from .kube import ApiConfig, KubeClient, load_config
from .kubelet import HealthService, NodeService, Registration, UnixServer, socket_paths
from .kubelet.registration import DRA_SERVICES, HEALTH_SERVICES
from .observe.http import HttpServer, Request, Response
from .observe.metrics import CONTENT_TYPE, Metrics
from .settings import Settings
from .slices import Publisher

log = logging.getLogger(__name__)
_START_UNDO = 5.0  # seconds that a start waits for leftovers to be undone; they go on behind the sockets


class Plugin:
    """A driver with everything around it.

    Making one has no effects; :meth:`running` starts it. ``api`` replaces what settings say about the API server.
    """

    def __init__(self, driver: Driver, settings: Settings, api: ApiConfig | None = None) -> None:
        self.driver = driver
        self.settings = settings
        self.metrics = Metrics()
        self.host = Host(settings.sysfs_root, settings.dev_root)
        driver.bind(self.host, settings)
        self.boot_id = self.host.boot_id()
        self.specs = ClaimSpecs(settings.cdi_root, settings.driver_name)
        self.inventory = Inventory(settings.node_name, driver.unhealthy_taint)
        self.process = ProcessLock(settings.plugin_dir / "processes")
        self.repair = Repair(settings.records_path, self.specs, settings.node_name, self.boot_id, settings.lock_wait)
        self.store = Store(
            settings.records_path, settings.driver_name, settings.lock_wait, self.repair, self.repair.rebuild
        )
        self.store.on_fault = lambda fault: self.metrics.set("records_healthy", int(not fault))
        self._api = api
        self._rescan = asyncio.Event()
        self._repaired = asyncio.Event()
        self.serving = False
        self.http_url = ""

    def _assemble(self) -> None:
        """What needs the API server's address, which may be wrong."""
        settings = self.settings
        self.client = KubeClient(self._api or load_config(settings.kubeconfig))
        verifier = Verifier(
            self.client,
            self.inventory,
            self.driver,
            settings.driver_name,
            refuse_unhealthy=settings.unhealthy_policy == "refuse",
        )
        self.engine = Engine(
            self.driver,
            self.store,
            self.specs,
            verifier,
            self.process,
            self.boot_id,
            self.metrics,
            call_timeout=settings.call_timeout,
            lock_wait=settings.lock_wait,
            on_change=self._rescan.set,
        )
        self.reconciler = Reconciler(self.engine, self.metrics, settings.reconcile_grace)
        self.publisher = Publisher(self.client, self.inventory, settings.driver_name, settings.node_name, self.metrics)
        self.paths = socket_paths(settings.registry_dir, settings.plugin_dir, settings.driver_name, settings.pod_uid)
        services = DRA_SERVICES + (HEALTH_SERVICES if self.driver.reports_health else ())
        self.registration = Registration(settings.driver_name, self.paths.dra, services, self.metrics)
        self.node = NodeService(self.engine, self.metrics)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Plugin]:
        """The lifespan. What was started is stopped in reverse, also when a later step fails to start.

        Raises :class:`SettingsError`, :class:`SocketError` and what ``Driver.start`` raises; inside, a failing background task
        cancels the body and is raised at its end.
        """
        self.settings.check()
        self._assemble()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.client.close)
            self._lock_process()
            stack.callback(self.process.release)
            stack.push_async_callback(self.store.close)
            await self._start_http(stack)
            await call(self.driver.start)
            stack.push_async_callback(call, self.driver.stop)
            await self._first_scan()
            await self._open_records()
            await self._serve(stack)
            async with asyncio.TaskGroup() as tasks:
                jobs = [tasks.create_task(_named(name, job), name=name) for name, job in self._background()]
                self.serving = True
                try:
                    yield self
                finally:
                    await self._drain()
                    for job in jobs:
                        job.cancel()

    def _lock_process(self) -> None:
        try:
            self.process.acquire()
        except OSError as e:
            raise SettingsError(f"{self.process.folder} cannot be written ({e.strerror}): see --kubelet-root") from None

    async def _start_http(self, stack: contextlib.AsyncExitStack) -> None:
        if not self.settings.http_address:
            return
        server = HttpServer(self._http, self.settings.http_address)
        try:
            url = await server.start()
        except OSError as e:
            raise SettingsError(
                f"--http-address (HTTP_ADDRESS) {self.settings.http_address}: {e.strerror or e}"
            ) from None
        stack.push_async_callback(server.close)
        self.http_url = url
        log.info("metrics and probes at %s", url)

    async def _first_scan(self) -> None:
        """The kubelet may call at once after registration, so devices are known before. A failing scan is no reason not to serve."""
        try:
            await self.scan()
        except DriverError:
            raise
        except Exception:
            log.exception("the first devices() failed: no device can be prepared until one succeeds")

    async def _open_records(self) -> None:
        """Opens, repairs where it must, and undoes what a crash left. A plugin without records still serves, and says so."""
        try:
            loop = asyncio.get_running_loop()
            self.repair.on_repaired = functools.partial(loop.call_soon_threadsafe, self._repaired.set)
            await self.store.all()
            if self.repair.report:
                await self._recover()
                self._repaired.clear()
            self.metrics.set("records_healthy", 1)
            async with asyncio.timeout(_START_UNDO):
                report = await self.reconciler.once(ask_server=False)
            if str(report) != "nothing to do":
                log.info("start: %s", report)
        except RecordsError as e:
            self.metrics.set("records_healthy", 0)
            log.error("no claim can be prepared or unprepared until this is mended: %s", e)
        except TimeoutError:
            log.warning("undoing what a crash left takes long; it goes on")

    async def _recover_when_repaired(self) -> None:
        """The records may also be damaged, and repaired, while the plugin runs."""
        while True:
            await self._repaired.wait()
            self._repaired.clear()
            await self._recover()

    async def _recover(self) -> None:
        self.metrics.inc("records_damaged_total")
        try:
            known = await call(self.driver.recover)
            merged = await merge_recovered(self.store, self.specs, known, self.boot_id)
        except Exception:
            log.exception("recover() of the driver failed: what it holds is not known")
            return
        if merged:
            self.repair.report.append(f"{len(merged)} claims were reported by the driver: {', '.join(merged)}")
            log.warning("%s", self.repair.report[-1])

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        """The DRA socket, then the registration socket: the kubelet must find the first answering when it sees the second."""
        dra = UnixServer(self.paths.dra)
        self.node.add_to(dra.server)
        if self.driver.reports_health:
            HealthService(self.inventory).add_to(dra.server)
        await dra.start()
        stack.push_async_callback(dra.stop, 0.5)
        registration = UnixServer(self.paths.registration)
        self.registration.add_to(registration.server)
        await registration.start()
        # Registered callbacks run in reverse: the kubelet loses the registration first.
        stack.push_async_callback(registration.stop, 0.5)
        self._registration_server = registration
        log.info("%s serves node %s at %s", self.settings.driver_name, self.settings.node_name, self.paths.dra)

    def _background(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Tasks by name; the plugin ends when one of them does."""
        interval = self.settings.reconcile_interval
        jobs: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("publisher", self.publisher.run),
            ("rescan", self._watch_hardware),
            ("rescan on change", self._rescan_on_change),
            ("reconciler", lambda: self.reconciler.run(interval)),
            ("recovery", self._recover_when_repaired),
        ]
        if self.driver.reports_health:
            jobs.append(("health", self._watch_health))
        return jobs

    async def _drain(self) -> None:
        """The kubelet loses the registration first, then what is under way may end."""
        self._registration_server.unlink()
        await self.engine.stop(self.settings.stop_grace)

    # --- devices --------------------------------------------------------------------------------

    async def scan(self) -> None:
        """Asks the driver for its devices. Raises what the driver raises."""
        devices = list(await call(self.driver.devices))
        counter_sets = list(await call(self.driver.counter_sets))
        try:
            used = await self.store.held() if len(self.inventory) > len(devices) or self.inventory.version else set()
        except RecordsError:
            used = set()
        if await self.inventory.update(devices, counter_sets, used):
            log.info("%d devices", len(self.inventory))
        self._count_devices()

    def _count_devices(self) -> None:
        unhealthy = sum(not self.inventory.healthy(d.name) for d in self.inventory)
        self.metrics.set("devices", len(self.inventory) - unhealthy, health="healthy")
        self.metrics.set("devices", unhealthy, health="unhealthy")

    async def _scan_again(self) -> None:
        try:
            await self.scan()
        except Exception:
            log.exception("devices() failed: the last answer stays in force")

    async def _watch_hardware(self) -> None:
        async for _ in changes(self.settings.sysfs_root, self.settings.rescan_interval):
            await self._scan_again()

    async def _rescan_on_change(self) -> None:
        """A device that vanished in use goes from the slices when its claim does."""
        while True:
            await self._rescan.wait()
            self._rescan.clear()
            if self.inventory.has_gone:
                await self._scan_again()

    async def _watch_health(self) -> None:
        while True:
            try:
                await self.inventory.set_health(await call(self.driver.health))
                self._count_devices()
            except Exception:
                log.exception("health() failed: the last report stays in force")
            await asyncio.sleep(self.settings.health_interval)

    # --- probes ---------------------------------------------------------------------------------

    def not_ready(self) -> list[str]:
        """Why the plugin is not ready; empty when it is."""
        out = []
        if not self.registration.registered.is_set():
            out.append(
                f"not registered with the kubelet{': ' + self.registration.error if self.registration.error else ''}"
            )
        if not self.publisher.published.is_set():
            out.append(f"slices are not published{': ' + self.publisher.fault if self.publisher.fault else ''}")
        elif self.publisher.fault:
            out.append(f"slices are not up to date: {self.publisher.fault}")
        if self.store.fault:
            out.append(self.store.fault)
        return out

    async def ready(self) -> None:
        """Waits until the kubelet has registered us and slices are published."""
        await self.registration.registered.wait()
        await self.publisher.published.wait()

    async def _http(self, request: Request) -> Response:
        match request.path:
            case "/metrics":
                return Response(200, self.metrics.text(), CONTENT_TYPE)
            case "/healthz":
                return Response(200, b"ok\n", "text/plain")
            case "/readyz":
                faults = self.not_ready() if hasattr(self, "registration") else ["starting"]
                notes = [f"note: {line}" for line in self.repair.report]
                text = "\n".join([*faults, *notes]) or "ok"
                return Response(503 if faults else 200, text.encode() + b"\n", "text/plain")
        return Response(404, b"/metrics, /healthz or /readyz\n", "text/plain")


async def _named(name: str, job: Callable[[], Awaitable[None]]) -> None:
    try:
        await job()
    except Exception as e:
        log.critical("background task %r failed, the plugin ends: %s: %s", name, type(e).__name__, e)
        raise
    raise DraError(f"background task {name!r} ended by itself")
