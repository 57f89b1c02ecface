"""The plugin watcher: finds sockets in ``plugins_registry``, registers the plugins, and monitors their connections."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dra_kubeletplugin._proto import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as pb_grpc

log = logging.getLogger(__name__)
_SERVICES: dict[str, tuple[Any, Any]] = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
_LONGEST = 107  # bytes of a Unix socket's path
_ROOT = Path("/var/lib/kubelet")  # the kubelet's root on a node, as pods mount it
_RECONNECT = 1000  # maximum milliseconds between two attempts to connect to a plugin


def dial(path: str | Path, authority: str = "localhost") -> grpc.aio.Channel:
    """Opens a channel to a Unix socket.

    Kubelets up to 1.33 send the path as authority. Later kubelets send ``localhost`` or ``unix:<path>``.
    """
    escaped = short_path(Path(path)).replace("%", "%25")
    options = [
        ("grpc.default_authority", authority),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT),
    ]
    return grpc.aio.insecure_channel(f"unix:{escaped}", options=options)


def short_path(path: Path) -> str:
    """Returns a path of the same socket that is not too long for the kernel.

    A plugin in a pod knows the node's path, which fits. The folder of this machine that is mounted there can have a longer path.
    """
    text = str(path)
    if len(os.fsencode(text)) <= _LONGEST:
        return text
    try:
        return f"/proc/self/fd/{_opened(str(path.parent), path.parent.stat().st_ino)}/{path.name}"
    except OSError:
        return text  # the folder is gone, and the connection fails


@functools.cache
def _opened(folder: str, inode: int) -> int:
    """Returns a descriptor of a folder. It stays open, because the channel can connect again at any time."""
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


@dataclass(eq=False)
class Connection:
    """One registered instance of a driver. All calls to the instance use ``channel``, also the calls for health."""

    driver: str
    socket: Path
    endpoint: str
    version: str
    channel: grpc.aio.Channel
    order: int
    services: list[str] = field(default_factory=list)
    connected: bool = True  # until the channel reports a failure

    @property
    def messages(self) -> Any:
        return _SERVICES[self.version][0]

    @property
    def stub(self) -> Any:
        return _SERVICES[self.version][1].DRAPluginStub(self.channel)


class PluginWatcher:
    """Registers plugins. ``registered`` contains the registered instances of each driver, the newest last.

    Args:
        interval: seconds between two reads of the registry directory.
        on_gone: called with a driver's name when no instance of the driver is connected any more.
        on_new: called with an instance after its registration, and when it responds again.
    """

    def __init__(
        self,
        registry: Path,
        interval: float,
        supported: tuple[str, ...],
        on_gone: Callable[[str], None],
        on_new: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        self.registry = registry
        self.interval = interval
        self.supported = supported
        self.on_gone = on_gone
        self.on_new = on_new
        self.registered: dict[str, list[Connection]] = {}
        self.changed = asyncio.Event()
        self._known: dict[Path, tuple[tuple[int, int], Connection | None]] = {}
        self._retry: dict[Path, tuple[float, float]] = {}  # next try, pause
        self._monitors: dict[Connection, asyncio.Task[None]] = {}
        self._count = 0

    def newest(self, driver: str) -> Connection | None:
        """Returns the newest connected instance. If none is connected, returns the newest instance; None if there is no instance."""
        found = self.registered.get(driver) or []
        return next((c for c in reversed(found) if c.connected), found[-1] if found else None)

    def is_connected(self, driver: str) -> bool:
        return any(c.connected for c in self.registered.get(driver) or [])

    async def run(self) -> None:
        """Polls the directory, because a watch could miss a rename. Never returns."""
        while True:
            await self.scan()
            await asyncio.sleep(self.interval)

    async def close(self) -> None:
        for _, connection in self._known.values():
            if connection:
                await self._end(connection)
        self._known.clear()
        self.registered.clear()

    async def scan(self) -> None:
        """Reads the registry directory: registers new plugins, and ends the connections of removed plugins."""
        found: dict[Path, tuple[int, int]] = {}
        try:
            entries = list(self.registry.iterdir())
        except OSError:
            entries = []
        for path in entries:
            if path.name.startswith("."):
                continue
            with contextlib.suppress(OSError):
                info = path.lstat()
                if stat.S_ISSOCK(info.st_mode):
                    # The file system reuses inode numbers, so the change time is compared too
                    found[path] = (info.st_ino, info.st_ctime_ns)
        for path, (inode, connection) in list(self._known.items()):
            if found.get(path) != inode:
                del self._known[path]
                self._retry.pop(path, None)
                if connection:
                    await self._disconnect(connection)
        due = [p for p in found if p not in self._known and time.monotonic() >= self._retry.get(p, (0.0, 0.0))[0]]
        # In parallel, because a plugin that hangs must not delay the other plugins.
        for path, registered in zip(due, await asyncio.gather(*map(self._register, due)), strict=True):
            if registered is None:
                # After a failed registration, the pause doubles. A real kubelet waits 1 s, 2 s, 4 s.
                pause = self._retry.get(path, (0.0, 1.0))[1]
                self._retry[path] = (time.monotonic() + pause * self.interval * 10, pause * 2)
            else:
                self._retry.pop(path, None)
                self._known[path] = (found[path], registered)

    async def _disconnect(self, connection: Connection) -> None:
        was_connected = self.is_connected(connection.driver)
        instances = self.registered.get(connection.driver, [])
        if connection in instances:
            instances.remove(connection)
        await self._end(connection)
        if not instances:
            self.registered.pop(connection.driver, None)
        if was_connected and not self.is_connected(connection.driver):
            self.on_gone(connection.driver)
        self.changed.set()
        log.info("kubelet: plugin was removed: %s", connection.socket.name, extra={"driver": connection.driver})

    async def _end(self, connection: Connection) -> None:
        if monitor := self._monitors.pop(connection, None):
            monitor.cancel()
            await asyncio.wait([monitor])
        await connection.channel.close()

    async def _monitor_safely(self, connection: Connection) -> None:
        try:
            await self._monitor(connection)
        except Exception:
            log.exception("kubelet: monitoring of a plugin ended unexpectedly", extra={"driver": connection.driver})

    async def _monitor(self, connection: Connection) -> None:
        """Keeps the connection open, and reports when the plugin stops responding or responds again. Never returns."""
        channel = connection.channel
        state = channel.get_state(try_to_connect=True)
        was_ready = False
        while True:
            ready = state is grpc.ChannelConnectivity.READY
            was_ready = was_ready or ready
            lost = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            lost = lost or (was_ready and state is grpc.ChannelConnectivity.IDLE)
            if ready and not connection.connected:
                connection.connected = True
                log.info("kubelet: plugin responds again", extra={"driver": connection.driver})
                self.on_new(connection)
                self.changed.set()
            elif lost and connection.connected:
                connection.connected = False
                log.info(
                    "kubelet: plugin does not respond: %s", connection.endpoint, extra={"driver": connection.driver}
                )
                if not self.is_connected(connection.driver):
                    self.on_gone(connection.driver)
                self.changed.set()
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)

    async def _register(self, path: Path) -> Connection | None:
        channel = dial(path)
        try:
            stub = pb_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(pb.InfoRequest(), timeout=1)
            error, version = self._validate(info)
            if error:
                await stub.NotifyRegistrationStatus(
                    pb.RegistrationStatus(plugin_registered=False, error=error), timeout=5
                )
                log.warning("kubelet: rejected a plugin: %s: %s", path.name, error)
                return None
            connection = self._connect(path, info, version)
            try:
                await stub.NotifyRegistrationStatus(pb.RegistrationStatus(plugin_registered=True), timeout=5)
            except grpc.aio.AioRpcError as e:
                # As with a real kubelet, the plugin stays registered and is not notified again.
                log.warning("kubelet: cannot notify a plugin of its registration: %s: %s", path.name, e.code())
            return connection
        except grpc.aio.AioRpcError as e:
            log.debug("kubelet: a registration socket does not respond: %s: %s", path.name, e.code())
            return None
        except Exception:
            # a plugin that fails here must not affect the other plugins
            log.exception("kubelet: unexpected exception while a plugin is registered: %s", path.name)
            return None
        finally:
            await channel.close()

    def _validate(self, info: Any) -> tuple[str, str]:
        if info.type != "DRAPlugin":
            return f"no handler registered for plugin type: {info.type}", ""
        versions = list(info.supported_versions)
        if not versions:
            return "RegisterPlugin error -- plugin validation failed: empty list of supported gRPC services", ""
        version = next((v for v in self.supported if v in versions), "")
        if not version:
            listed = ", ".join(self.supported)
            return (
                f"invalid supported gRPC versions of DRA driver plugin {info.name} at endpoint {info.endpoint}: none of "
                f"services supported by the plugin ({versions}) are supported by the kubelet ([{listed}])"
            ), ""
        if any(c.endpoint == info.endpoint for c in self.registered.get(info.name, [])):
            return f"endpoint {info.endpoint} already registered for DRA driver plugin {info.name}", ""
        return "", version

    def _socket_of(self, endpoint: str) -> Path:
        """Returns the socket of an endpoint. A plugin in a pod knows the node's path, which is another one on this machine."""
        path = Path(endpoint)
        return self.registry.parent / path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path

    def _connect(self, path: Path, info: Any, version: str) -> Connection:
        self._count += 1
        connection = Connection(
            info.name,
            path,
            info.endpoint,
            version,
            dial(self._socket_of(info.endpoint)),
            self._count,
            list(info.supported_versions),
        )
        self.registered.setdefault(info.name, []).append(connection)
        self._monitors[connection] = asyncio.create_task(self._monitor_safely(connection), name=f"plugin {info.name}")
        self.changed.set()
        self.on_new(connection)
        log.info("kubelet: plugin is registered with %s", version, extra={"driver": info.name})
        return connection
