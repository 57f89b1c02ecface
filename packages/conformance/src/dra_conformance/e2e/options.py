"""The options of the tests on a real cluster, as a pytest plugin. The plugin prints at the start what it found in the cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest
import yaml
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError

from .cluster import Cluster, Profile, Settings
from .deployment import Deployment

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_KIND = "kind load docker-image {image} --name {context}"


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("e2e", "a driver on a real cluster").addoption
    text = "the driver's folder, with deploy/, examples/ and e2e.toml (.)"
    add("--driver-dir", default=".", metavar="FOLDER", help=text)
    text = (
        "rendered manifests to apply, such as the output of `helm template`; by default, deploy/values.yaml is rendered"
    )
    add("--manifests", default="", metavar="FILE", help=text)
    text = "values that replace those of deploy/values.yaml, as in `dra deploy -f`"
    add("--values", default="", metavar="FILE", help=text)
    add("--image", default="", help="the name of the driver's image; by default, the name in deploy/values.yaml")
    text = "how the nodes get the image: kind, or a command with {image}; by default, they have it or pull it"
    add("--image-load", default="", metavar="HOW", help=text)
    text = "the image of test pods; it needs a shell (busybox:1.37)"
    add("--pod-image", default="busybox:1.37", metavar="IMAGE", help=text)
    add("--wait", type=float, default=120.0, metavar="SECONDS", help="how long each step may take (120)")


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(config.getoption("--driver-dir"))
    profile = folder / "e2e.toml"
    if not profile.is_file():
        raise pytest.UsageError(
            f"{profile} is missing: write in it what a container gets, such as expect = ['env NPU_*={{name}}']"
        )
    try:
        decoded = msgspec.toml.decode(profile.read_bytes(), type=Profile)
    except (ValueError, msgspec.DecodeError) as e:
        raise pytest.UsageError(f"{profile}: {e}") from None
    settings = Settings(folder, config.getoption("--pod-image"), config.getoption("--wait"), decoded)
    try:
        config.stash[_CLUSTER] = cluster = Cluster(settings)
        config.stash[_FACTS] = cluster.facts()
    except (ConfigException, HTTPError, AssertionError) as e:
        raise pytest.UsageError(f"there is no cluster to test on, set KUBECONFIG: {e}") from None
    config.stash[_DEPLOYMENT] = _deployment(cluster, config.getoption)

    def stop(number: int, frame: FrameType | None) -> None:
        _ignore_signals()
        raise KeyboardInterrupt  # pytest then runs the fixtures' teardown, which cleans up

    for number in _SIGNALS:
        signal.signal(number, stop)


def _ignore_signals() -> None:
    """A second Ctrl-C, or the SIGTERM with which a CI follows up, must not end the clean-up."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _deployment(cluster: Cluster, option: Callable[[str], Any]) -> Deployment:
    how, image = option("--image-load"), option("--image")
    image = image or str(yaml.safe_load((cluster.settings.folder / "deploy/values.yaml").read_text())["image"])
    load = (_KIND if how == "kind" else how).replace("{image}", image).replace("{context}", cluster.kind_name)
    files = {name: Path(value) if (value := option(f"--{name}")) else None for name in ("manifests", "values")}
    return Deployment(cluster, image, load, **files)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash[_FACTS]


def pytest_generate_tests(metafunc: Any) -> None:
    if "example" in metafunc.fixturenames:
        cluster = metafunc.config.stash[_CLUSTER]
        found = cluster.examples()
        metafunc.parametrize("example", found, ids=[p.name for p in found])


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster with the driver. The driver and all objects of the tests are deleted at the end, also after Ctrl-C."""
    deployment = request.config.stash[_DEPLOYMENT]
    found = request.config.stash[_CLUSTER]
    try:
        deployment.deploy()
        yield found
    finally:
        _ignore_signals()
        deployment.remove()


@pytest.fixture(scope="session")
def deployment(request: pytest.FixtureRequest, cluster: Cluster) -> Deployment:
    return request.config.stash[_DEPLOYMENT]


_CLUSTER = pytest.StashKey[Cluster]()
_FACTS = pytest.StashKey[list[str]]()
_DEPLOYMENT = pytest.StashKey[Deployment]()
