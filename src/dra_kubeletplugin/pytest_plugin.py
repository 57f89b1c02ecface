"""The pytest plugin: fixtures with a local cluster, and a driver on a node of it. Loaded by its entry point.

    # pyproject.toml
    [tool.pytest.ini_options]
    dra_driver = "driver.py"              # as `dra run` takes it
    dra_host = "hosts/two-fpgas.yaml"     # a described host, or the name of one that comes with the package

    def test_a_pod_gets_its_fpga(node):
        pod = node.run_pod(parameters={"image": "a.bit"})
        assert node.env(pod)["FPGA_IMAGE"] == "a.bit"

    async def test_the_same_as_a_coroutine(node):   # with pytest-asyncio or anyio, in any mode
        pod = await node.run_pod.aio(parameters={"image": "a.bit"})

``@pytest.mark.dra(...)`` says it for a test, a class or a module: ``driver`` (a class, or as `dra run` takes it), ``host``,
``nodes`` (their names), ``timers`` (of the kubelets), ``options`` (the driver's own: an object, or values by name), ``environment``
(variables that the driver reads), ``process`` (gives the driver one of its own, which ``node.kill()`` can kill), ``kubernetes`` (the
release that the cluster behaves as), ``feature_gates`` (name → whether it is on), and any field of :class:`Settings`.
``pytest --kubernetes 1.34`` says the release for all other tests.

The cluster lives in a thread of its own, so no test needs an event loop, and those that have one may use any. With
``KUBEBUILDER_ASSETS`` (a folder with etcd and kube-apiserver, as envtest takes it) a real API server stands in for the local
one.

Nothing but pytest is imported before a fixture is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from .driver import Driver
    from .localcluster.kubelet import Timers
    from .testing.facade import Api, Cluster, Kubelet, Node
    from .testing.sync_async import LoopThread

_HOST = "virtual-machine"
_THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class _Wanted:
    """What the markers of a test and the ini file ask for; the nearest marker wins."""

    driver: type[Driver] | str
    host: Any
    nodes: tuple[str, ...]
    timers: Timers | None
    options: Any
    environment: dict[str, str]
    process: bool
    kubernetes: str
    feature_gates: dict[str, bool]
    settings: dict[str, Any] = field(default_factory=dict)
    here: Path = Path()  # what files are relative to
    said: dict[str, str] = field(default_factory=dict)  # where driver and host were named

    @classmethod
    def of(cls, request: pytest.FixtureRequest) -> _Wanted:
        given: dict[str, Any] = {}
        for marker in request.node.iter_markers("dra"):  # the nearest comes first
            if marker.args:
                _refuse(f"@pytest.mark.dra takes names only: {marker.args[0]!r} has none")
            given = marker.kwargs | given
        _check_names(given)
        _check_types(given)
        config = request.config
        here = config.inipath.parent if config.inipath else config.rootpath
        ini = f"{config.inipath}: " if config.inipath else ""
        said = {n: f"@pytest.mark.dra: {n}" if given.get(n) else f"{ini}dra_{n}" for n in ("driver", "host")}
        driver: type[Driver] | str = given.pop("driver", None) or config.getini("dra_driver")
        host = given.pop("host", None) or config.getini("dra_host")
        return cls(
            _driver_path(driver, here) if isinstance(driver, str) else driver,
            None if host == _THIS_MACHINE else host,
            tuple(given.pop("nodes", ("node-1",))),
            given.pop("timers", None),
            given.pop("options", None),
            given.pop("environment", {}),
            given.pop("process", False),
            given.pop("kubernetes", "") or config.getoption("kubernetes"),
            given.pop("feature_gates", {}),
            given,
            here,
            said,
        )


def _check_names(given: Collection[str]) -> None:
    from .base.settings import Settings

    own = [f.name for f in dataclasses.fields(_Wanted) if f.name not in {"settings", "here", "said"}]
    known = [*own, *(f.name for f in dataclasses.fields(Settings))]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f": did you mean {near[0]}?" if near else f", only {', '.join(own)} and the options of the plugin"
            _refuse(f"@pytest.mark.dra takes no {name!r}{hint}")


def _check_types(given: Mapping[str, Any]) -> None:
    """What would fail far from the marker."""
    kinds: dict[str, tuple[tuple[type, ...], str]] = {
        "driver": ((str, type), "a class, or as `dra run` takes it"),
        "nodes": ((list, tuple, set, frozenset), "a list of names"),
        "environment": ((Mapping,), "a mapping of names to text"),
        "process": ((bool,), "True or False"),
        "kubernetes": ((str,), 'a release, such as "1.36"'),
        "feature_gates": ((Mapping,), "a mapping of names to True or False"),
    }
    for name, (types, wanted) in kinds.items():
        if name in given and not isinstance(given[name], types):
            _refuse(f"@pytest.mark.dra({name}={given[name]!r}): give {wanted}")
    if timers := given.get("timers"):
        from .localcluster.kubelet import Timers

        if not isinstance(timers, Timers):
            _refuse(f"@pytest.mark.dra(timers={timers!r}): give dra_kubeletplugin.testing.Timers(...)")
    for name, value in given.get("environment", {}).items():
        if not isinstance(value, str):
            _refuse(f"@pytest.mark.dra(environment): {name} is {value!r}, not text")


def _refuse(why: str) -> NoReturn:
    """A mistake of the test's author, or of the driver's: the sentence is all that helps."""
    raise pytest.fail.Exception(why, pytrace=False) from None


@contextlib.contextmanager
def _told(said: str = "") -> Iterator[None]:
    """Tells a fault as a sentence; ``said`` is where the name was given that it is about."""
    from .errors import DraError

    where = f"{said}: " if said else ""
    try:
        yield
    except DraError as e:
        _refuse(f"{where}{e.message} [{e.code}]")
    except ValueError as e:
        _refuse(f"{where}{e}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubernetes", default="", metavar="RELEASE", help="the release that local clusters behave as: 1.34 to 1.37"
    )
    parser.addini(
        "dra_driver", "the driver under test, as `dra run` takes it: a file, a package's folder, or module:Class"
    )
    parser.addini(
        "dra_host",
        f"the described host that it runs on, a file or a name; {_THIS_MACHINE!r} for no description",
        default=_HOST,
    )
    parser.addini(
        "dra_feature_gates", "of the real API server of KUBEBUILDER_ASSETS, as in DRAPartitionableDevices=false"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "dra(driver, host, nodes, timers, options, environment, process, kubernetes, feature_gates, **settings): "
        "the driver and the cluster of a test",
    )


@pytest.fixture(scope="session")
def _dra_thread() -> Iterator[LoopThread]:
    from .testing.sync_async import LoopThread

    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def _dra_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """The kubeconfig of a real API server, where there is one."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        yield None
        return
    from .testing.controlplane import ControlPlane

    gates = pytestconfig.getini("dra_feature_gates")
    with ControlPlane(Path(assets), tmp_path_factory.mktemp("control-plane"), gates) as plane:
        yield plane.kubeconfig


@pytest.fixture
def local_cluster(
    request: pytest.FixtureRequest, _dra_thread: LoopThread, _dra_server: Path | None
) -> Iterator[Cluster]:
    """A cluster of its own for each test."""
    from .localcluster.cluster import LocalCluster
    from .testing.api import AsyncApi
    from .testing.controlplane import emptied
    from .testing.facade import Cluster
    from .testing.sync_async import Scope

    wanted = _Wanted.of(request)

    async def made() -> LocalCluster:
        return LocalCluster(
            wanted.nodes,
            kubeconfig=_dra_server,
            timers=wanted.timers,
            kubernetes=wanted.kubernetes,
            feature_gates=wanted.feature_gates,
        )

    with contextlib.ExitStack() as stack:
        with _told():
            inner = _dra_thread.run(made())
            cluster = stack.enter_context(Scope(_dra_thread, inner, "the local cluster"))
        yield Cluster(_dra_thread, cluster)
        if _dra_server:
            _dra_thread.run(emptied(AsyncApi(cluster)))


@pytest.fixture
def node(
    request: pytest.FixtureRequest, local_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node[Any]]:
    """The driver under test on the first node, registered and published."""
    from .driver import check, load_driver
    from .host.fake import sysfs
    from .testing.facade import Node
    from .testing.node import on_node
    from .testing.sync_async import Scope

    wanted = _Wanted.of(request)
    if not wanted.driver:
        _refuse("which driver? Say it with dra_driver in pytest's ini file, or with @pytest.mark.dra(driver=...)")
    for name, value in wanted.environment.items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        with _told(wanted.said["driver"]):
            driver = load_driver(wanted.driver) if isinstance(wanted.driver, str) else wanted.driver
            check(driver)
        with _told():
            host = wanted.host
            if isinstance(host, str):
                host = sysfs.find(host, wanted.said["host"], wanted.here)
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
    """The API server: objects, and faults."""
    return local_cluster.api


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A test that fails shows what the cluster was told."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("local_cluster")
    if call.when == "call" and report.failed and cluster is not None:
        try:
            told = [str(e) for e in cluster.api.events()]
        except Exception as e:  # the cluster may be what has failed
            told = [f"they cannot be read: {e}"]
        report.sections.append(("events of the local cluster", "\n".join(told) or "none"))
    return report


def _driver_path(target: str, here: Path) -> str:
    """As `dra run` takes it; files are relative to the ini file."""
    head, colon, name = target.rpartition(":")
    path = here / (head if colon else target)
    return f"{path}{colon}{name if colon else ''}" if target and path.exists() else target
