"""A whole cluster in one process. Drivers and manifests that work here work on Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import socket
import ssl
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.local_clusters import state_root
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient, Resource, Tls, TlsFiles, load_config
from dra_kubeletplugin.kube.credentials import Token
from dra_kubeletplugin.kube.errors import AlreadyExistsError, NotFoundError
from dra_kubeletplugin.kube.resource import EVENTS, PODS
from dra_kubeletplugin.resourceapi.validation.names import SUBDOMAIN

from ..hosts import described
from ..kubernetes_releases import Features
from ..yaml.manifests import objects
from .apiserver import ApiServer
from .apiserver.certificate import write as make_certificate
from .apiserver.kinds import BY_PLURAL
from .apiserver.persistence import PersistentStorage, open_storage
from .controllers import ControllerManager
from .kubelet import LocalKubelet, Timers
from .node_reboot import empty, kill_claim_processes, unmount_below
from .runtime.interface import ApiAccess, ContainerRuntime
from .runtime.simulated import SimulatedRuntime
from .scheduler.loop import Scheduler
from .supervision import Supervisor

_SHORTEST_PAUSE = 0.005  # seconds between the first two checks of :func:`wait_until`
_FIRST_CHECK = 10.0  # minimum time limit of the first check in seconds, so that an error can report its result
_WAIT_TIMEOUT = 60.0  # default timeout of a wait in seconds; long, because the machine may be busy
T = TypeVar("T")
RuntimeFactory = Callable[[str, Path, Sequence[Path]], ContainerRuntime]


@dataclass(frozen=True)
class LocalNode:
    """One node: its kubelet, its runtime, and the directories that the settings of a plugin need."""

    name: str
    root: Path
    kubelet: LocalKubelet
    runtime: ContainerRuntime
    cdi_root: Path

    @property
    def kubelet_root(self) -> Path:
        return self.root / "kubelet"


@dataclass(frozen=True)
class SecureServing:
    """Where the API server listens.

    Attributes:
        address: host and port; 0 selects a free port.
        certificate: the file of a certificate for this address, and the file of its key. By default, a certificate is created.
    """

    address: str = "127.0.0.1:0"
    certificate: tuple[Path, Path] | None = None


class LocalCluster:
    """API server, controllers, scheduler and one kubelet per node. Use with ``async with``.

    Args:
        nodes: names of the nodes.
        state: the directory for all files, also for the API objects. Its path must be short, because it contains sockets.
            By default, a temporary directory, which is removed at the end.
        serving: where the local API server listens, and with which certificate.
        kubeconfig: the kubeconfig of a running API server to use instead of a local one; see :attr:`api`.
        timers: intervals and time limits of the kubelets, the node controller and the scheduler.
        runtimes: creates a node's runtime from the node's name, a directory for the runtime, and the directories of CDI
            specs. By default, containers are simulated.
        features: the simulated Kubernetes release with its feature gates, for example
            ``Features.of("1.37", {"GateName": True})``. By default, the values of the environment variables
            DRA_KUBERNETES_VERSION and DRA_FEATURE_GATES; the release 1.36 if they are not set.

    Raises:
        SettingsError: the release or a gate in the environment does not exist.
        ValueError: two nodes have the same name.
    """

    def __init__(
        self,
        nodes: Sequence[str] = ("node-1",),
        *,
        state: Path | None = None,
        serving: SecureServing | None = None,
        kubeconfig: Path | None = None,
        timers: Timers | None = None,
        runtimes: RuntimeFactory | None = None,
        features: Features | None = None,
    ) -> None:
        self.features = features or Features.of()
        if duplicates := sorted({n for n in nodes if list(nodes).count(n) > 1}):
            raise ValueError(f"nodes: {', '.join(duplicates)} is listed twice: each node needs its own name")
        self._names = nodes
        self._keep = state is not None
        self.state = state or Path(tempfile.mkdtemp(prefix="dra-", dir=state_root()))
        if state is None:  # removes the directory also if the constructor or the caller fails before __aenter__
            weakref.finalize(self, _remove, self.state, os.getpid())
        self._timers = timers or Timers()
        self._runtimes = runtimes or simulated
        self._given_kubeconfig = kubeconfig
        self.state.mkdir(parents=True, exist_ok=True)
        serving = serving or SecureServing()
        self._certificate = serving.certificate or make_certificate(self.state, _hosts(serving.address))
        self._journal: PersistentStorage | None = None
        self._api = None if kubeconfig else self._server(serving.address, own=serving.certificate is not None)
        self.nodes: dict[str, LocalNode] = {}

    async def __aenter__(self) -> LocalCluster:
        self._stack = contextlib.AsyncExitStack()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._clean_up)
            self.state.mkdir(parents=True, exist_ok=True)
            if self._given_kubeconfig:
                self.kubeconfig = self._given_kubeconfig
                self.config = load_config(str(self._given_kubeconfig))
            else:
                await self._start_api(stack)
            self.client = KubeClient(self.config)
            stack.push_async_callback(self.client.close)
            manager, binder = (self._component(stack, f"system:kube-{c}") for c in ("controller-manager", "scheduler"))
            kubelets = {n: self._component(stack, f"system:node:{n}", "system:nodes") for n in self._names}
            supervisor = await stack.enter_async_context(Supervisor())
            supervisor.start("controllers", ControllerManager(manager, self.features, self._timers).run)
            scheduler = Scheduler(binder, self.features, self._timers.binding_timeout)
            supervisor.start("scheduler", scheduler.run)
            await scheduler.wait_ready()
            for name, client in kubelets.items():
                node = self._node(name, client, supervisor)
                stack.push_async_callback(node.runtime.close)
                await node.kubelet.start()
                stack.push_async_callback(node.kubelet.stop)
            self._stack = stack.pop_all()
        return self

    def _component(self, stack: contextlib.AsyncExitStack, name: str, *groups: str) -> KubeClient:
        """Creates an API client with the identity of a component. If the API server is not the local one, returns ``self.client``."""
        if not self.has_own_api:
            return self.client
        token = Token(self.api.tokens.of_component(name, groups))
        client = KubeClient(dataclasses.replace(self.config, credentials=token))
        stack.push_async_callback(client.close)
        return client

    async def _start_api(self, stack: contextlib.AsyncExitStack) -> None:
        await self.api.start()
        stack.push_async_callback(self.api.close)
        self.kubeconfig = self.state / "kubeconfig"
        _write_private(
            self.kubeconfig, kubeconfig_of("local", self.api.public_url, self._certificate[0], self.api.token)
        )
        self._account.mkdir(exist_ok=True, mode=0o700)
        _write_private(self._account / "token", self.api.token)
        _write_private(self._account / "ca.crt", self._certificate[0].read_text())
        self.config = self.api.config_with(Tls(TlsFiles(ca=self._certificate[0])))

    def _server(self, address: str, *, own: bool) -> ApiServer:
        """Creates the API server.

        Args:
            own: whether the user passed a certificate. The server then listens with TLS only. Otherwise, it has a second port
                without TLS, for clients in this process.
        """
        tls = _server_tls(self._certificate)
        storage = None
        if self._keep:
            storage, self._journal = open_storage(self.state / "objects.jsonl")
        if own:
            return ApiServer(address, tls, storage, runtime_of=self._runtime_of, features=self.features)
        front = (address, tls)
        return ApiServer(storage=storage, front=front, runtime_of=self._runtime_of, features=self.features)

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.__aexit__(*exc)

    def _node(self, name: str, client: KubeClient, supervisor: Supervisor) -> LocalNode:
        root = self.state / name
        cdi = root / "cdi"
        cdi.mkdir(parents=True, exist_ok=True)
        runtime = self._runtimes(name, root / "containers", (cdi,))
        kubelet = LocalKubelet(client, name, root / "kubelet", runtime, supervisor, self.features, self._timers)
        self.nodes[name] = LocalNode(name, root, kubelet, runtime, cdi)
        return self.nodes[name]

    def _runtime_of(self, node: str) -> ContainerRuntime | None:
        return found.runtime if (found := self.nodes.get(node)) else None

    def _clean_up(self) -> None:
        for node in self.nodes.values():
            kill_claim_processes(node.kubelet_root / "plugins")
        if self._journal is not None:
            self._journal.close()
        if not self._keep:
            shutil.rmtree(self.state, ignore_errors=True)

    @property
    def api(self) -> ApiServer:
        """The local API server, with its storage and its injected faults.

        Raises:
            RuntimeError: the cluster uses another API server.
        """
        if self._api is None:
            raise RuntimeError(
                f"the API server of {self._given_kubeconfig} is in use: it is reached through `client` only"
            )
        return self._api

    @property
    def _account(self) -> Path:
        return self.state / "serviceaccount"

    @property
    def access(self) -> Mapping[str, str]:
        """Environment variables for a driver's process: with them, it connects to the API server as in a pod, or with a kubeconfig."""
        if self._given_kubeconfig:
            return {"KUBECONFIG": str(self._given_kubeconfig)}
        at = urlsplit(self.api.public_url)
        return {
            "KUBECONFIG": "",  # the user's kubeconfig is for another cluster
            "KUBERNETES_SERVICE_HOST": str(at.hostname),
            "KUBERNETES_SERVICE_PORT": str(at.port),
            "SERVICE_ACCOUNT": str(self._account),
        }

    @property
    def api_access(self) -> ApiAccess:
        """How real containers reach the local API server."""
        at = urlsplit(self.api.public_url)
        return ApiAccess(str(at.hostname), at.port or 443, self._certificate[0].read_text())

    @property
    def has_own_api(self) -> bool:
        """Whether the cluster has its own API server, :attr:`api`."""
        return self._api is not None

    @property
    def node(self) -> LocalNode:
        """The first node."""
        return next(iter(self.nodes.values()))

    # --- actions of a user ----------------------------------------------------------------------

    async def apply(self, *documents: JSON) -> list[JSON]:
        """Creates objects or patches existing ones, like ``kubectl apply``."""
        out = []
        for doc in documents:
            resource = resource_of(doc)
            doc = {**doc, "metadata": dict(doc["metadata"])}
            if resource.namespaced:
                doc["metadata"].setdefault("namespace", "default")
            try:
                out.append(await self.client.create(resource, doc))
            except AlreadyExistsError:
                meta = doc["metadata"]
                out.append(await self.client.patch(resource, meta["name"], doc, meta.get("namespace", "")))
        return out

    async def apply_file(self, path: Path) -> list[JSON]:
        """Applies all objects of a file.

        Raises:
            ManifestError: the file is invalid.
        """
        return await self.apply(*(m.value for m in objects([path])))

    async def wait(self, what: str, check: Any, timeout: float = _WAIT_TIMEOUT) -> Any:
        """Waits as :func:`wait_until`."""
        return await wait_until(what, check, timeout, 0.01)

    async def pod(self, name: str, namespace: str = "default") -> JSON | None:
        try:
            return await self.client.get(PODS, name, namespace)
        except NotFoundError:
            return None

    async def wait_running(self, name: str, namespace: str = "default", timeout: float = _WAIT_TIMEOUT) -> JSON:
        async def check() -> JSON | None:
            pod = await self.pod(name, namespace)
            return pod if pod and pod.get("status", {}).get("phase") == "Running" else None

        try:
            found: JSON = await self.wait(f"pod {name} to run", check, timeout)
        except TimeoutError as e:
            events: list[JSON] = []
            with contextlib.suppress(ApiError):
                events = (await self.client.list(EVENTS, namespace))["items"]
            messages = [f"{v['reason']}: {v['message']}" for v in events if v["involvedObject"]["name"] == name]
            raise TimeoutError(f"{e}; events: {messages}") from None
        return found

    async def delete_pod(self, name: str, namespace: str = "default", timeout: float = _WAIT_TIMEOUT) -> None:
        """Deletes a pod and waits until it is removed."""
        await self.client.delete(PODS, name, namespace)

        async def check() -> bool:
            return await self.pod(name, namespace) is None

        await self.wait(f"pod {name} to go", check, timeout)

    # The next three methods read the storage of the local API server. With another API server, they raise RuntimeError.

    def events(self, name: str = "") -> list[str]:
        """Returns the events about one object, or about all objects, as ``reason: message``, oldest first."""
        found = self.api.storage.list("events")
        found.sort(key=lambda e: int(e["metadata"]["resourceVersion"]))
        return [f"{e['reason']}: {e['message']}" for e in found if not name or e["involvedObject"]["name"] == name]

    def slices(self, driver: str = "") -> list[JSON]:
        return [
            s
            for s in self.api.storage.list("resourceslices.resource.k8s.io")
            if not driver or s["spec"]["driver"] == driver
        ]

    def claims(self) -> list[JSON]:
        return self.api.storage.list("resourceclaims.resource.k8s.io")

    # --- faults ---------------------------------------------------------------------------------

    async def reboot(self, name: str = "", sysfs: Path | None = None) -> None:
        """Reboots a node. Kill the driver before the call and start it after the call.

        Deletes the node's CDI files, and ends the mounts and claim processes of its drivers. Socket files stay. The boot id changes if
        the node has a described host.

        Args:
            name: the node; empty for the first node.
            sysfs: sysfs of the node's described host, which is built again from its description; None if the node uses this machine.
        """
        node = self.nodes[name] if name else self.node
        await node.kubelet.stop()
        empty(node.cdi_root)
        kill_claim_processes(node.kubelet_root / "plugins")
        unmount_below(node.kubelet_root / "plugins")
        if sysfs:
            described.reboot(sysfs)
        await node.kubelet.rebooted()

    @contextlib.contextmanager
    def api_outage(self) -> Any:
        """Makes the API server unavailable inside the context."""
        self.api.injected_faults.down = True
        self.api.drop_connections()
        try:
            yield
        finally:
            self.api.injected_faults.down = False


async def wait_until(what: str, check: Callable[[], Awaitable[T | None]], timeout: float, longest_pause: float) -> T:
    """Waits until ``await check()`` returns a true value, and returns that value.

    Raises:
        TimeoutError: there was no true value within ``timeout`` seconds. The text contains ``what``.
    """
    __tracebackhide__ = True
    end, pause = asyncio.get_running_loop().time() + timeout, _SHORTEST_PAUSE
    try:
        async with asyncio.timeout(max(timeout, _FIRST_CHECK)) as limit:
            found = await check()
            limit.reschedule(end)
            while not found:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, longest_pause)
                found = await check()
            return found
    except TimeoutError:
        raise TimeoutError(f"waited {timeout:g} s for {what}") from None


def _remove(folder: Path, owner: int) -> None:
    """Deletes the directory, unless this process is a forked child of the owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def resource_of(doc: JSON) -> Resource:
    """Returns the resource of an object.

    Raises:
        ValueError: the local cluster does not serve the kind.
    """
    group, _, version = doc["apiVersion"].rpartition("/")
    for (g, v, plural), kind in BY_PLURAL.items():
        if (g, v, kind.kind) == (group, version, doc["kind"]):
            return Resource(group, version, plural, kind.namespaced)
    raise ValueError(f"{doc['apiVersion']} {doc['kind']} is not served by the local cluster")


def simulated(_: str, folder: Path, cdi_dirs: Sequence[Path]) -> ContainerRuntime:
    """Creates the default runtime of a node."""
    return SimulatedRuntime(folder, cdi_dirs)


def _hosts(address: str) -> list[str]:
    """Returns the host names and addresses for the certificate of a server at HOST:PORT."""
    host, own_name = address.rpartition(":")[0].strip("[]"), socket.gethostname().lower()
    own = [] if host in {"", "0.0.0.0", "::"} else [host]
    return [*own, "127.0.0.1", "::1", "localhost", *([own_name] if SUBDOMAIN.fullmatch(own_name) else [])]


def _write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read. Replaces the old file, because other users may have it open."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)  # left by a killed process
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    temporary.replace(path)


def _server_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*map(str, certificate))
    return tls


def kubeconfig_of(name: str, url: str, certificate: Path, token: str) -> str:
    """Returns a kubeconfig in JSON, which kubectl accepts like YAML. The cluster, the context and the user have the same name."""
    cluster = {"server": url, "certificate-authority": str(certificate.absolute())}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": {"token": token}}],
    }
    return json.dumps(config, indent=2) + "\n"
