"""The objects that the pytest fixtures return: a cluster in its own thread, usable from functions and from any event loop.

``node.run_pod()`` blocks the thread until the pod runs; ``await node.run_pod.aio()`` lets the event loop run. Every method that
waits has both forms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from dra_kubeletplugin.driver import Driver
from dra_kubeletplugin.host import Host
from dra_kubeletplugin.plugin.controller.controller import Controller
from dra_kubeletplugin.plugin.node import Plugin

from ..localcluster.cluster import LocalCluster
from ..localcluster.kubelet import LocalKubelet
from .api import TIMEOUT, AsyncApi
from .cluster import controller_on, plugin_on
from .node import D, DriverNode
from .oci import env_of, oci_of
from .sync_async import LoopThread, Scope, both, in_loop

T = TypeVar("T")
S = TypeVar("S")
_CHECK_INTERVAL = 0.02  # seconds between checks
_Node = DriverNode[Any]


class _Handle(Generic[S]):
    """A handle for the object ``inner``, which must be used in the cluster's thread only."""

    def __init__(self, thread: LoopThread, inner: S) -> None:
        self.thread = thread
        self.inner = inner


class Api(_Handle[AsyncApi]):
    """The fixture ``api``: objects over HTTP, and API server faults. It has the methods of :class:`AsyncApi`.

    A plain call of a method that waits blocks the thread. A coroutine uses ``.aio``, as in ``await api.get.aio(...)``.
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
        """Calls ``check()`` in the test's thread until it returns a true value, and returns that value.

        Raises ``TimeoutError`` after ``timeout`` seconds; its text contains ``what``.
        """
        __tracebackhide__ = True
        end = time.monotonic() + timeout
        while not (found := check()):
            if time.monotonic() > end:
                raise TimeoutError(f"waited {timeout:g} s for {what}")
            time.sleep(_CHECK_INTERVAL)
        return found

    conflict = in_loop(AsyncApi.conflict)
    throttle = in_loop(AsyncApi.throttle)
    drop = in_loop(AsyncApi.drop)
    serve = in_loop(AsyncApi.serve)
    delay = in_loop(AsyncApi.delay)
    cut_watch = in_loop(AsyncApi.cut_watch)

    def outage(self) -> Scope[None]:
        """Makes the server respond with 503 to every request inside ``with`` or ``async with``."""
        return Scope(self.thread, self.inner.outage(), "an outage of the API server")


class Kubelet(_Handle[LocalKubelet]):
    """The fixture ``kubelet``: the kubelet of the first node."""

    @property
    def root(self) -> Path:
        """The folder with ``plugins_registry`` and ``plugins``."""
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
        """The kubeconfig for kubectl and for clients in any language."""
        return self.inner.kubeconfig

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return list(self.inner.nodes)

    def kubelet(self, node: str = "") -> Kubelet:
        """Returns the kubelet of a node, by default of the first node."""
        return Kubelet(self.thread, (self.inner.nodes[node] if node else self.inner.node).kubelet)

    def plugin(self, driver: type[Driver], node: str, **settings: Any) -> Scope[Plugin]:
        """Runs the driver's plugin on a node during the block, which begins when the plugin has published. For several plugins."""
        return Scope(
            self.thread, plugin_on(self.inner, driver, node, **settings), f"the plugin of {driver.name} on {node}"
        )

    def controller(self, driver: type[Driver], **settings: Any) -> Scope[Controller]:
        """Runs the driver's controller during the block, which begins when the controller is the leader and has published."""
        return Scope(self.thread, controller_on(self.inner, driver, **settings), f"the controller of {driver.name}")

    oci = in_loop(oci_of)
    env = in_loop(env_of)


class Node(_Handle[DriverNode[D]], Generic[D]):
    """The fixture ``node``: the driver under test on the first node. It has the methods of :class:`DriverNode`.

    A plain call of a method that waits blocks the thread. A coroutine uses ``.aio``, as in ``await node.run_pod.aio()``.
    """

    @property
    def name(self) -> str:
        return self.inner.cluster.node.name

    @property
    def api(self) -> Api:
        return Api(self.thread, self.inner.api)

    @property
    def driver(self) -> D:
        """The driver object, whose methods run in the cluster's thread."""
        return self.inner.driver

    @property
    def host(self) -> Host:
        """The host of the driver, also with ``process=True``. With it, a test can read the files that the driver wrote."""
        return self.inner.host

    start = both(_Node.start)
    stop = both(_Node.stop)
    restart = both(_Node.restart)
    kill = both(_Node.kill)
    upgrade = both(_Node.upgrade)
    reboot = both(_Node.reboot)
    rescan = both(_Node.rescan)
    plug = both(_Node.plug)
    unplug = both(_Node.unplug)
    write_sysfs = in_loop(_Node.write_sysfs)
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
    oci = in_loop(_Node.oci)
    env = in_loop(_Node.env)

    def controller(self, **settings: Any) -> Scope[Controller]:
        """Runs the driver's controller during the block, which begins when the controller is the leader and has published."""
        driver = self.inner.driver_class
        return Scope(
            self.thread, controller_on(self.inner.cluster, driver, **settings), f"the controller of {driver.name}"
        )
