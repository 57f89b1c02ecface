"""The surroundings of the driver under test: the folders, the API server, the driver's process, and a kubelet's connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc.aio

from dra_devkit.hosts import described
from dra_devkit.localcluster.child_reaper import Guard
from dra_devkit.localcluster.dev.hosts import NodeHost
from dra_devkit.scheduling.allocator.pools import Candidate
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.local_clusters import state_root

from . import allocation
from ._grpc_log import inherited
from .api_server import NAMESPACE, NODE, RecordingApiServer, new_uid
from .cdi_folder import CdiFolder
from .driver_command import (
    FIXED_CDI_ROOT,
    FIXED_KUBELET_ROOT,
    DriverCommand,
    DriverInstance,
    DriverNotReady,
    can_unshare,
)
from .kubelet_client import PluginConnection, RegistrationClient, RegistrationInfo, find_sockets, listens
from .profile import ConformanceProfile, Hook
from .transcript import Transcript

T = TypeVar("T")
_POLL = 0.01  # seconds
_STOP = 10.0  # seconds from SIGTERM to SIGKILL
_REAP = 5.0  # seconds from the end of this process until the driver is killed
_OTHERS = 2.0  # seconds to wait for the driver's registration, if its process has registered other plugins


class RunAborted(Exception):
    """The run cannot continue. The text is the reason."""


class DriverSurroundings:
    """An API server, a CDI folder and a kubelet's folders around one driver. Use with ``async with``.

    Attributes:
        driver: the process of the driver that was started last.
        plugin: the connection to this process.
        facts: results that several checks share, by name.
        used: the claims that were prepared and not yet unprepared, by UID.
        instances: the processes that were started and not yet cleaned up.
    """

    driver: DriverInstance
    plugin: PluginConnection
    may_change = True
    """Whether checks may change the node."""
    _limit: asyncio.Timeout | None = None

    def __init__(self, command: DriverCommand, profile: ConformanceProfile) -> None:
        self.command = command
        self.profile = profile
        self.transcript = Transcript()
        self.folder = Path(tempfile.mkdtemp(prefix="dra-", dir=state_root()))
        self.kubelet_root = self.folder / "kubelet"
        self.registry = self.kubelet_root / "plugins_registry"
        self.plugins = self.kubelet_root / "plugins"
        self.cdi = CdiFolder(self.folder / "cdi")
        self.registration = RegistrationClient(self.transcript)
        self.facts: dict[str, Any] = {}
        self.boot_id: Path | None = None
        self.host: NodeHost | None = None
        self.is_publishing = profile.minimum > 0  # set to False if the driver has not published in time
        self._has_published = False
        self._connections: list[PluginConnection] = []
        self.instances: list[DriverInstance] = []
        self.used: dict[str, Mapping[str, Any]] = {}

    async def __aenter__(self) -> Self:
        try:
            self.make_folders()
            if self.command.host:
                self.host = NodeHost.build(self.folder / "host", self.command.host)
            api_folder = self.folder / "api"
            api_folder.mkdir(mode=0o700)
            self.api = RecordingApiServer(api_folder, self.transcript)
            self.kubeconfig = await self.api.serve()
            self.api.add_node()
            self._guard = await Guard.start(_REAP)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self.end_all()
        finally:
            await self._guard.close()
            await self.api.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def make_folders(self) -> None:
        for folder in (self.registry, self.plugins):
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)  # as the kubelet makes them
        self.cdi.path.mkdir(exist_ok=True)
        self.data_folder.mkdir(exist_ok=True)

    @property
    def data_folder(self) -> Path:
        return self.plugins / (self.profile.name or "driver")

    @property
    def node(self) -> JSON:
        return self.api.node

    # --- the driver's process ---------------------------------------------------------------------

    def environment(self, uid: str) -> dict[str, str]:
        own = {
            "KUBELET_ROOT": str(self.kubelet_root),
            "PLUGINS_REGISTRY": str(self.registry),
            "PLUGIN_DATA_DIR": str(self.data_folder),
            "CDI_ROOT": str(self.cdi.path),
            "KUBECONFIG": str(self.kubeconfig),
            "NODE_NAME": NODE,
            "POD_UID": uid,
            "POD_NAMESPACE": NAMESPACE,
            "POD_NAME": f"driver-{uid}",
        }
        if self.host is not None:
            own["SYSFS_ROOT"] = str(self.host.sysfs)
        return {**inherited(), **own, **self._guard.mark}

    async def spawn(self, uid: str = "") -> DriverInstance:
        """Starts a process of the driver. Does not wait until it is ready."""
        env = self.environment(uid or new_uid())
        self.api.put_driver_pod(env["POD_NAME"], env["POD_UID"])
        program = self.command.program(env, self.boot_id)
        instance = await DriverInstance.start(program, env, Path.cwd(), self.transcript)
        self.instances.append(instance)
        return instance

    async def start(self, uid: str = "", *, published: bool = True, endpoint: bool = True) -> None:
        """Starts the driver, registers it like a kubelet, and waits until it has published.

        Args:
            published: whether to wait for the slices.
            endpoint: whether to wait for the DRA endpoint.

        Raises :class:`DriverNotReady`.
        """
        with self.starting():
            self.driver = await self.spawn(uid)
            await self.connect(endpoint=endpoint)
            if published and self.is_publishing:
                found = bool(await self.until_ready(self.published))
                self.is_publishing = self._has_published = found or self._has_published

    @contextlib.asynccontextmanager
    async def limited(self, seconds: float) -> AsyncIterator[None]:
        """Limits the time of a check. Raises ``TimeoutError``."""
        async with asyncio.timeout(seconds) as self._limit:
            try:
                yield
            finally:
                self._limit = None

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Suspends the time limit of the check during a start of the driver, which has its own limit in the profile."""
        if (limit := self._limit) is None or (when := limit.when()) is None:
            yield
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        limit.reschedule(None)
        try:
            yield
        finally:
            limit.reschedule(when + loop.time() - began)

    async def connect(self, old: Sequence[Path] = (), *, endpoint: bool = True) -> None:
        """Waits for the registration of :attr:`driver` and connects to it.

        Args:
            old: registration sockets of other instances.
            endpoint: whether to wait for the DRA endpoint.

        Raises :class:`DriverNotReady`.
        """
        info = await self._wait_registered(old)
        if self.profile.name and info.name != self.profile.name:
            raise DriverNotReady(f"the driver registered as {info.name!r}, but the profile names {self.profile.name!r}")
        with contextlib.suppress(grpc.aio.AioRpcError):  # a kubelet ignores this error too
            await self.registration.notify(info.socket, registered=True)
        self.plugin = PluginConnection(info, self.path_of(info.endpoint), self.transcript, self.used)
        self._connections.append(self.plugin)
        if endpoint and not await self.until_ready(lambda: listens(self.plugin.endpoint)):
            after = f"{self.profile.ready_timeout:g} s after the registration"
            fault = f"no process listens at the endpoint {info.endpoint!r} of GetInfo {after}"
            raise DriverNotReady(f"{fault}; the last output of the driver:\n{self.driver.last_lines}")

    async def _wait_registered(self, old: Sequence[Path]) -> RegistrationInfo:
        """Waits for the registration of the driver, and returns it. Prefers the plugin with the driver's name to others of its process."""
        faults = [f"no registration socket appeared in PLUGINS_REGISTRY ({self.registry})"]
        timeout = self.profile.ready_timeout
        other: RegistrationInfo | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    for path in find_sockets(self.registry):
                        if path in old or not listens(path):
                            continue
                        try:
                            info = await self.registration.get_info(path)
                        except grpc.aio.AioRpcError as e:
                            faults.append(f"GetInfo of {path.name} failed with {e.code().name}: {e.details()}")
                            continue
                        if info.type == "DRAPlugin" and self.profile.name in {"", info.name}:
                            return info
                        if other is None:
                            other, since = info, self.transcript.now
                    if other is not None and self.transcript.now > since + _OTHERS:
                        return other
                    await self.check_alive()
                    self.check_flood()
                    await asyncio.sleep(_POLL)
        if len(faults) == 1 and (ignored := find_sockets(self.registry, hidden=True)):
            faults.append(f"the kubelet ignores the socket {ignored[0].name}, because its name begins with a dot")
        raise DriverNotReady(
            f"the driver was not registered within {timeout:g} s: {faults[-1]}; its last output:\n{self.driver.last_lines}"
        )

    async def check_alive(self) -> None:
        """Raises :class:`DriverNotReady` if the driver's process ended."""
        if not (driver := self.driver).alive:
            await driver.drain()
            raise DriverNotReady(f"the driver ended with {driver.ending}; its last output:\n{driver.last_lines}")

    def check_flood(self) -> None:
        """Raises :class:`RunAborted` if the driver floods the API server."""
        if last := self.api.flooded:
            raise RunAborted(f"the driver floods the API server: 3000 requests within 10 s, the last one {last}")

    def check_refusals(self) -> None:
        """Raises :class:`RunAborted` if the driver did not publish its devices because this API server refused a request."""
        if self.profile.minimum and not self.is_publishing and (refusals := self.transcript.refusals()):
            raise RunAborted(
                f"the API server of the suite refused a request, so no check was run: {refusals[-1]}; "
                f"the last output of the driver:\n{self.driver.last_lines}"
            )

    def path_of(self, endpoint: str) -> Path:
        """Converts a path in the driver's mount namespace to the path on this machine."""
        if self.command.fixed_paths:
            for fixed, own in ((FIXED_KUBELET_ROOT, self.kubelet_root), (FIXED_CDI_ROOT, self.cdi.path)):
                if Path(endpoint).is_relative_to(fixed):
                    return own / Path(endpoint).relative_to(fixed)
        return Path(endpoint)

    @property
    def log(self) -> str:
        """The last output of the driver."""
        return self.driver.last_lines

    async def stop(self) -> float | None:
        """Stops the driver with SIGTERM. Returns the seconds until it ended, or None if it had to be killed."""
        await self._disconnect()
        return await self.driver.terminate(_STOP)

    async def kill(self) -> None:
        """Kills the driver with SIGKILL."""
        await self._disconnect()
        await self.driver.kill()

    async def restart(self, *, uid: str = "", published: bool = True) -> None:
        """Kills the driver and starts it again, by default with the same POD_UID, as after a crash of the container."""
        uid = uid or self.driver.uid
        await self.kill()
        await self.start(uid, published=published)

    async def _disconnect(self) -> None:
        for connection in self._connections:
            await connection.close()
        self._connections.clear()

    async def end_all(self) -> None:
        await self._disconnect()
        for instance in self.instances:
            await instance.kill()
        self.instances.clear()

    # --- slices ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.plugin.info.name

    @property
    def slices(self) -> list[JSON]:
        return self.api.slices(self.name)

    def devices(self) -> list[Candidate]:
        """Returns the devices of the node that a claim could get, from complete and valid pools."""
        pools = [p for p in allocation.pools_of(self.slices, self.node) if not p.incomplete and not p.invalid]
        return [c for p in pools for c in p.candidates if c.for_node]

    def published(self) -> frozenset[tuple[str, str]]:
        """Returns pool and name of each device, or an empty set while a pool is incomplete or devices are missing."""
        pools = allocation.pools_of(self.slices, self.node)
        if not pools or any(p.incomplete or p.invalid for p in pools):
            return frozenset()
        found = frozenset((c.id.pool, c.id.device) for c in self.devices())
        return found if len(found) >= max(self.profile.minimum, 1) else frozenset()

    # --- waiting ----------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], T], timeout: float) -> T | None:
        """Waits until the condition is true. Returns its value, or None after ``timeout`` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while not (found := condition()):
            self.check_flood()
            if asyncio.get_running_loop().time() > deadline:
                return None
            await asyncio.sleep(_POLL)
        return found

    async def until_ready(self, condition: Callable[[], T]) -> T | None:
        """Waits as :meth:`until`, for the ready timeout of the profile. Raises :class:`DriverNotReady` if the driver's process ends."""
        await self.until(lambda: condition() or not self.driver.alive, self.profile.ready_timeout)
        if not (found := condition()):
            await self.check_alive()
        return found or None

    def reboot_host(self) -> bool:
        """Changes the boot id for the next start of the driver. Returns False if that is not possible."""
        if self.host is not None:
            described.reboot(self.host.sysfs)
            return True
        if not can_unshare():
            return False
        self.boot_id = self.folder / "boot_id"
        self.boot_id.write_text(f"{new_uid()}\n")
        return True

    # --- hooks ------------------------------------------------------------------------------------

    async def hook(self, name: Hook, **values: str) -> int | None:
        """Runs a hook of the profile. Returns its exit code, or None if the profile has no such hook."""
        if not (command := self.profile.hooks.get(name)):
            return None
        for key, value in values.items():
            command = command.replace(f"{{{key}}}", value)
        process = await asyncio.create_subprocess_shell(
            command, env=self.environment(self.driver.uid), stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        return await process.wait()
