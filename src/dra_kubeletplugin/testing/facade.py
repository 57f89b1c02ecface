"""What the fixtures give: a cluster in a thread of its own, for tests that are functions and for coroutines of any event loop.

``node.run_pod()`` blocks until the pod runs; ``await node.run_pod.aio()`` does not. Both are there for every method that waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from ..driver import Driver
from ..localcluster.cluster import LocalCluster
from ..localcluster.kubelet import Kubelet as LocalKubelet
from ..plugin.controller.controller import Controller
from ..plugin.node import Plugin
from .api import TIMEOUT, AsyncApi
from .cluster import controller_on, plugin_on
from .node import D, DriverNode, env_of, oci_of
from .sync_async import LoopThread, Scope, both

JSON = dict[str, Any]
T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S")
_PAUSE = 0.02  # seconds between looks
_Node = DriverNode[Any]


class _Handle(Generic[S]):
    """Something in the thread of the cluster."""

    def __init__(self, thread: LoopThread, inner: S) -> None:
        self.thread = thread
        self.inner = inner

    def _do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls it over there."""
        __tracebackhide__ = True

        async def called() -> T:
            __tracebackhide__ = True
            return work(*args, **kwargs)

        return self.thread.run(called())


class Api(_Handle[AsyncApi]):
    """The fixture ``api``: objects over HTTP, and faults of their server. The methods are those of :class:`AsyncApi`.

    Each that waits blocks until it has ended; with ``.aio``, as in ``await api.get.aio(...)``, a coroutine awaits it.
    """

    apply = both(AsyncApi.apply)
    apply_file = both(AsyncApi.apply_file)
    get = both(AsyncApi.get)
    get_all = both(AsyncApi.get_all)
    delete = both(AsyncApi.delete)
    remove = both(AsyncApi.remove)
    slices = both(AsyncApi.slices)
    published = both(AsyncApi.published)
    events = both(AsyncApi.events)
    wait_published = both(AsyncApi.wait_published)
    wait_event = both(AsyncApi.wait_event)
    wait_running = both(AsyncApi.wait_running)
    wait_finished = both(AsyncApi.wait_finished)
    delete_pod = both(AsyncApi.delete_pod)

    def wait(self, what: str, check: Callable[[], T | None], timeout: float = TIMEOUT) -> T:
        """Waits until ``check()`` answers something true, and answers that. It is called in the thread of the test.

        Raises ``TimeoutError`` that says what was waited for.
        """
        __tracebackhide__ = True
        end = time.monotonic() + timeout
        while not (found := check()):
            if time.monotonic() > end:
                raise TimeoutError(f"waited {timeout:g} s for {what}")
            time.sleep(_PAUSE)
        return found

    def conflict(self, times: int = 1) -> None:
        """The next ``times`` updates are answered 409, as if another had written in between."""
        __tracebackhide__ = True
        self._do(self.inner.conflict, times)

    def throttle(self, times: int = 1) -> None:
        """The next ``times`` requests are answered 429 with a Retry-After."""
        __tracebackhide__ = True
        self._do(self.inner.throttle, times)

    def drop(self, *fields: str) -> None:
        """Drops these fields of slices, as a server with their gate off; none: drops no more."""
        __tracebackhide__ = True
        self._do(self.inner.drop, *fields)

    def serve(self, *versions: str) -> None:
        """Serves only these versions of ``resource.k8s.io``, as another release would; none: all of them."""
        __tracebackhide__ = True
        self._do(self.inner.serve, *versions)

    def slow(self, seconds: float) -> None:
        """Waits this long before each answer; 0: does not."""
        __tracebackhide__ = True
        self._do(self.inner.slow, seconds)

    def cut_watch(self) -> None:
        """Ends every watch that is open, as a proxy with a time limit does."""
        self._do(self.inner.cut_watch)

    def away(self) -> Scope[None]:
        """While inside ``with`` or ``async with``, the server answers 503 to everything."""
        return Scope(self.thread, self.inner.away(), "an API server that is away")


class Kubelet(_Handle[LocalKubelet]):
    """The fixture ``kubelet``: of the first node."""

    @property
    def root(self) -> Path:
        """Where ``plugins_registry`` and ``plugins`` are."""
        return self.inner.root

    start = both(LocalKubelet.start)
    stop = both(LocalKubelet.stop)
    restart = both(LocalKubelet.restart)


class Cluster(_Handle[LocalCluster]):
    """The fixture ``local_cluster``: API server, scheduler, controllers, and a kubelet for each node."""

    @property
    def api(self) -> Api:
        return Api(self.thread, AsyncApi(self.inner))

    @property
    def kubeconfig(self) -> Path:
        """For kubectl and for clients in any language."""
        return self.inner.kubeconfig

    @property
    def nodes(self) -> list[str]:
        """Their names."""
        return list(self.inner.nodes)

    def kubelet(self, node: str = "") -> Kubelet:
        """A node's, the first one's where none is named."""
        return Kubelet(self.thread, (self.inner.nodes[node] if node else self.inner.node).kubelet)

    def plugin(self, driver: type[Driver], node: str, **settings: Any) -> Scope[Plugin]:
        """The driver's plugin on a node while inside, registered and published; for tests with several of them."""
        return Scope(
            self.thread, plugin_on(self.inner, driver, node, **settings), f"the plugin of {driver.name} on {node}"
        )

    def controller(self, driver: type[Driver], **settings: Any) -> Scope[Controller]:
        """The driver's controller while inside, leading and published."""
        return Scope(self.thread, controller_on(self.inner, driver, **settings), f"the controller of {driver.name}")

    def oci(self, pod: Mapping[str, Any] | str, container: str = "") -> JSON:
        """The OCI spec of a pod's container, the first one where none is named, as its runtime got it.

        ``pod`` is one in namespace ``default`` where it is a name.
        """
        __tracebackhide__ = True
        return oci_of(self.inner, pod, container)

    def env(self, pod: Mapping[str, Any] | str, container: str = "") -> dict[str, str]:
        """What a container sees in its environment."""
        __tracebackhide__ = True
        return env_of(self.inner, pod, container)


class Node(_Handle[DriverNode[D]], Generic[D]):
    """The fixture ``node``: the driver under test on the first node. The methods are those of :class:`DriverNode`.

    Each blocks until it has ended; with ``.aio``, as in ``await node.run_pod.aio()``, a coroutine awaits it.
    """

    @property
    def name(self) -> str:
        return self.inner.cluster.node.name

    @property
    def api(self) -> Api:
        return Api(self.thread, self.inner.api)

    @property
    def driver(self) -> D:
        """The driver object, which lives in another thread."""
        return self.inner.driver

    start = both(_Node.start)
    stop = both(_Node.stop)
    restart = both(_Node.restart)
    kill = both(_Node.kill)
    upgrade = both(_Node.upgrade)
    reboot = both(_Node.reboot)
    rescan = both(_Node.rescan)
    plug = both(_Node.plug)
    unplug = both(_Node.unplug)
    health = both(_Node.health)
    published = both(_Node.published)
    wait_published = both(_Node.wait_published)
    run_pod = both(_Node.run_pod)
    apply_pod = both(_Node.apply_pod)
    end = both(_Node.end)
    claim_of = both(_Node.claim_of)
    allocated = both(_Node.allocated)
    delete_pod = both(_Node.delete_pod)
    leftovers = both(_Node.leftovers)

    def controller(self, **settings: Any) -> Scope[Controller]:
        """The driver's controller while inside, leading and published."""
        driver = self.inner.driver_class
        return Scope(
            self.thread, controller_on(self.inner.cluster, driver, **settings), f"the controller of {driver.name}"
        )

    def oci(self, pod: Mapping[str, Any] | str, container: str = "") -> JSON:
        """The OCI spec of a pod's container, the first one where none is named, as its runtime got it.

        ``pod`` is one in namespace ``default`` where it is a name.
        """
        __tracebackhide__ = True
        return self.inner.oci(pod, container)

    def env(self, pod: Mapping[str, Any] | str, container: str = "") -> dict[str, str]:
        """What a container sees in its environment."""
        __tracebackhide__ = True
        return self.inner.env(pod, container)


__all__ = ["Api", "Cluster", "Kubelet", "Node"]
