"""The fixtures: a local cluster, and a driver on one of its nodes. :mod:`dra_devkit.pytest_plugin` registers them.

    # pyproject.toml
    [tool.pytest.ini_options]
    dra_driver = "driver.py"              # in any form that `dra run` accepts
    dra_host = "hosts/two-fpgas.yaml"     # a YAML file, or the name of a description in the package

    def test_a_pod_gets_its_fpga(node):
        pod = node.run_pod(parameters={"image": "a.bit"})
        assert node.env(pod)["FPGA_IMAGE"] == "a.bit"

    async def test_the_same_as_a_coroutine(node):   # with pytest-asyncio or anyio, in any mode
        pod = await node.run_pod.aio(parameters={"image": "a.bit"})

``@pytest.mark.dra(...)`` sets these for a test, a class or a module:

- ``driver``: a class, or a text in any form that `dra run` accepts
- ``host``: as ``dra_host``
- ``nodes``: the names of the nodes
- ``timers``: intervals of the kubelets
- ``options``: the options that the driver defines: an object of its options class, or values by name
- ``environment``: variables that the driver reads
- ``process``: whether the driver runs in a separate process, which ``node.kill()`` can kill
- ``kubernetes``: the Kubernetes release that the cluster behaves as
- ``feature_gates``: a mapping from the gate's name to True (on) or False (off)
- any field of :class:`Settings`

``pytest --kubernetes 1.34`` sets the release for tests without a marker.

The cluster runs in its own thread, so a test needs no event loop and may use any. With ``KUBEBUILDER_ASSETS`` (a
folder with etcd and kube-apiserver, as in envtest) a real API server replaces the local one.

This module imports only pytest until a fixture is used, because pytest loads the module in every project of the environment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from dra_kubeletplugin.driver import Driver

    from ..localcluster.kubelet import Timers
    from .facade import Api, Cluster, Kubelet, Node
    from .sync_async import LoopThread

_HOST = "virtual-machine"
_THIS_MACHINE = "this machine"


@dataclass(frozen=True, kw_only=True)
class _TestConfig:
    """The configuration of one test from its markers and the ini file. The nearest marker wins."""

    driver: type[Driver] | str
    host: Any
    nodes: Collection[str] = ("node-1",)
    timers: Timers | None = None
    options: Any = None
    environment: dict[str, str] = field(default_factory=dict)
    process: bool = False
    kubernetes: str
    feature_gates: dict[str, bool] = field(default_factory=dict)
    settings: dict[str, Any]
    base_folder: Path  # relative paths of files start here
    origins: dict[str, str]  # where the driver and the host were configured

    @classmethod
    def of(cls, request: pytest.FixtureRequest) -> _TestConfig:
        settings: dict[str, Any] = {}
        for marker in request.node.iter_markers("dra"):  # pytest yields the nearest marker first
            if marker.args:
                _fail(f"@pytest.mark.dra takes keyword arguments only, not {marker.args[0]!r}")
            settings = marker.kwargs | settings
        _check_names(settings)
        _check_types(settings)
        config = request.config
        base_folder = config.inipath.parent if config.inipath else config.rootpath
        ini = f"{config.inipath}: " if config.inipath else ""
        origins = {n: f"@pytest.mark.dra: {n}" if settings.get(n) else f"{ini}dra_{n}" for n in ("driver", "host")}
        own = {name: settings.pop(name) for name in _MARKER_FIELDS if name in settings}
        driver = own.get("driver") or config.getini("dra_driver")
        host = own.get("host") or config.getini("dra_host")
        own["driver"] = _driver_path(driver, base_folder) if isinstance(driver, str) else driver
        own["host"] = None if host == _THIS_MACHINE else host
        own["kubernetes"] = own.get("kubernetes") or config.getoption("kubernetes")
        return cls(**own, settings=settings, base_folder=base_folder, origins=origins)


_DERIVED = {"settings", "base_folder", "origins"}
_MARKER_FIELDS = [f.name for f in dataclasses.fields(_TestConfig) if f.name not in _DERIVED]


def _check_names(arguments: Collection[str]) -> None:
    from dra_kubeletplugin.base.settings import Settings
    from dra_kubeletplugin.base.text import did_you_mean

    known = [*_MARKER_FIELDS, *(f.name for f in dataclasses.fields(Settings))]
    for name in arguments:
        if name not in known:
            hint = did_you_mean(name, known) or f", only {', '.join(_MARKER_FIELDS)} and the options of the plugin"
            _fail(f"@pytest.mark.dra does not accept {name!r}{hint}")


def _check_types(arguments: Mapping[str, Any]) -> None:
    """Rejects a marker's values of wrong types, because a later error would not name the marker."""
    kinds: dict[str, tuple[tuple[type, ...], str]] = {
        "driver": ((str, type), "a class, or a text that `dra run` accepts"),
        "nodes": ((list, tuple, set, frozenset), "a list of names"),
        "environment": ((Mapping,), "a mapping of names to text"),
        "process": ((bool,), "True or False"),
        "kubernetes": ((str,), 'a release, such as "1.36"'),
        "feature_gates": ((Mapping,), "a mapping of names to True or False"),
    }
    for name, (types, wanted) in kinds.items():
        if name in arguments and not isinstance(arguments[name], types):
            _fail(f"@pytest.mark.dra({name}={arguments[name]!r}): use {wanted}")
    if timers := arguments.get("timers"):
        from ..localcluster.kubelet import Timers

        if not isinstance(timers, Timers):
            _fail(f"@pytest.mark.dra(timers={timers!r}): use dra_devkit.testing.Timers(...)")
    for name, value in arguments.get("environment", {}).items():
        if not isinstance(value, str):
            _fail(f"@pytest.mark.dra(environment): {name} is {value!r}, not text")


def _fail(why: str) -> NoReturn:
    """Fails the test with one sentence and no traceback, for a mistake in the test or in the driver."""
    raise pytest.fail.Exception(why, pytrace=False) from None


@contextlib.contextmanager
def _fail_on_error(origin: str = "") -> Iterator[None]:
    """Fails the test with one sentence if the block raises a ``DraError`` or ``ValueError``.

    ``origin`` is the place of the wrong setting.
    """
    from dra_kubeletplugin.errors import DraError

    where = f"{origin}: " if origin else ""
    try:
        yield
    except DraError as e:
        _fail(f"{where}{e.message} [{e.code}]")
    except ValueError as e:
        _fail(f"{where}{e}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubernetes", default="", metavar="RELEASE", help="the release that local clusters behave as: 1.34 to 1.37"
    )
    parser.addini("dra_driver", "the driver under test: a file, a package's folder, or module:Class, as for `dra run`")
    parser.addini(
        "dra_host",
        f"the host of the driver under test: a file, or the name of a described host; {_THIS_MACHINE!r} for the real machine",
        default=_HOST,
    )
    parser.addini(
        "dra_feature_gates",
        "feature gates of the real API server (KUBEBUILDER_ASSETS), for example DRAPartitionableDevices=false",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"dra({', '.join(_MARKER_FIELDS)}, **settings): the driver and the cluster of a test",
    )


@pytest.fixture(scope="session")
def _dra_thread() -> Iterator[LoopThread]:
    from .sync_async import LoopThread

    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def _dra_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """The kubeconfig of a real API server, or None if ``KUBEBUILDER_ASSETS`` is not set."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        yield None
        return
    from .controlplane import ControlPlane

    gates = pytestconfig.getini("dra_feature_gates")
    with ControlPlane(Path(assets), tmp_path_factory.mktemp("control-plane"), gates) as plane:
        yield plane.kubeconfig


@pytest.fixture
def local_cluster(
    request: pytest.FixtureRequest, _dra_thread: LoopThread, _dra_server: Path | None
) -> Iterator[Cluster]:
    """A new cluster for each test."""
    from ..kubernetes_releases import Features
    from ..localcluster.cluster import LocalCluster
    from .api import AsyncApi
    from .controlplane import delete_all_objects
    from .facade import Cluster
    from .sync_async import Scope

    wanted = _TestConfig.of(request)

    async def create() -> LocalCluster:
        return LocalCluster(
            tuple(wanted.nodes),
            kubeconfig=_dra_server,
            timers=wanted.timers,
            features=Features.of(wanted.kubernetes, wanted.feature_gates),
        )

    with contextlib.ExitStack() as stack:
        with _fail_on_error():
            inner = _dra_thread.run(create())
            cluster = stack.enter_context(Scope(_dra_thread, inner, "the local cluster"))
        yield Cluster(_dra_thread, cluster)
        if _dra_server:
            _dra_thread.run(delete_all_objects(AsyncApi(cluster)))


@pytest.fixture
def node(
    request: pytest.FixtureRequest, local_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node[Any]]:
    """The driver under test on the first node, after it was registered and has published."""
    from dra_kubeletplugin.driver import check, load_driver

    from ..hosts import described
    from .facade import Node
    from .node import on_node
    from .sync_async import Scope

    wanted = _TestConfig.of(request)
    if not wanted.driver:
        _fail("no driver is configured: set dra_driver in pytest's ini file, or use @pytest.mark.dra(driver=...)")
    for name, value in wanted.environment.items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        with _fail_on_error(wanted.origins["driver"]):
            driver = load_driver(wanted.driver) if isinstance(wanted.driver, str) else wanted.driver
            check(driver)
        with _fail_on_error():
            host = wanted.host
            if isinstance(host, str):
                host = described.find(host, wanted.origins["host"], wanted.base_folder)
            running = on_node(
                local_cluster.inner,
                driver,
                host=host,
                process=wanted.process,
                options=wanted.options,
                **wanted.settings,
            )
            inner = stack.enter_context(Scope(local_cluster.thread, running, f"{driver.name} on a node"))
        yield Node(local_cluster.thread, inner)


@pytest.fixture
def kubelet(local_cluster: Cluster) -> Kubelet:
    """The kubelet of the first node."""
    return local_cluster.kubelet()


@pytest.fixture
def api(local_cluster: Cluster) -> Api:
    """The client of the API server: reads and writes objects, and injects faults."""
    return local_cluster.api


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Adds the cluster's events to the report of a failed test, except events that the test's :class:`PodError` lists."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("local_cluster")
    if call.when == "call" and report.failed and cluster is not None:
        from .events import PodError

        error = call.excinfo.value if call.excinfo else None
        shown = {e.message for e in error.events} if isinstance(error, PodError) else set()
        title = "other events of the local cluster" if shown else "events of the local cluster"
        try:
            lines = [str(e) for e in cluster.api.events() if e.message not in shown]
        except Exception as e:  # the cluster itself may be the cause
            lines = [f"the events cannot be read: {e}"]
        if lines or not shown:
            report.sections.append((title, "\n".join(lines) or "none"))
    return report


def _driver_path(target: str, base_folder: Path) -> str:
    """Returns the driver in the form that `dra run` accepts. Relative files start at the folder of the ini file."""
    head, colon, name = target.rpartition(":")
    path = base_folder / (head if colon else target)
    return f"{path}{colon}{name if colon else ''}" if target and path.exists() else target
