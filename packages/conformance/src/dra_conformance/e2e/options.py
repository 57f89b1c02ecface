"""The options of the tests on a real cluster, as a pytest plugin. The plugin prints at the start what it found in the cluster."""

from __future__ import annotations

import re
import signal
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError

from .cluster import Cluster, Settings
from .deployment import Deployment

_LOAD = {
    "none": "",
    "push": "{engine} push {image}",
    "kind": "kind load docker-image {image} --name {context}",
    "k3s": "{engine} save {image} | sudo k3s ctr images import -",
}
_LOADED = f"{', '.join(_LOAD)}, or a command with {{image}}"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("e2e", "a driver on a real cluster")
    add = group.addoption
    add(
        "--driver-dir",
        default=".",
        metavar="FOLDER",
        help="the driver's folder, with deploy/, examples/ and e2e.toml (.)",
    )
    text = (
        "rendered manifests to apply, such as the output of `helm template`; by default, deploy/values.yaml is rendered"
    )
    add("--manifests", default="", metavar="FILE", help=text)
    add("--image", default="", help="the name of the image; by default, the name in deploy/values.yaml")
    add("--image-prefix", default="", metavar="PREFIX", help="replaces the registry and path in the image's name")
    add("--image-build", default="", metavar="COMMAND", help="builds {image} first, such as 'make image IMAGE={image}'")
    add("--image-load", default="none", metavar="HOW", help=f"how the nodes get the image: {_LOADED} (none)")
    add("--engine", default="docker", help="docker or podman, for --image-load (docker)")
    add("--pull-policy", default="IfNotPresent", help="imagePullPolicy of the driver's pods (IfNotPresent)")
    add(
        "--driver-namespace",
        default="",
        metavar="NAME",
        help="the driver's namespace; by default, that of deploy/values.yaml",
    )
    add(
        "--pod-env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable for the driver's pods; repeatable",
    )
    add(
        "--pod-image",
        default="busybox:1.37",
        metavar="IMAGE",
        help="the image of test pods; it needs a shell (busybox:1.37)",
    )
    add("--wait", type=float, default=120.0, metavar="SECONDS", help="how long each step may take (120)")


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(config.getoption("--driver-dir"))
    profile = folder / "e2e.toml"
    if not profile.is_file():
        raise pytest.UsageError(
            f"{profile} is missing: write in it what a container gets, such as expect = ['env NPU_*={{name}}']"
        )
    settings = Settings(
        folder,
        config.getoption("--pod-image"),
        config.getoption("--wait"),
        tomllib.loads(profile.read_text()),
    )
    try:
        config.stash[_CLUSTER] = cluster = Cluster(settings)
        config.stash[_FACTS] = cluster.facts()
    except (ConfigException, HTTPError, AssertionError) as e:
        raise pytest.UsageError(f"there is no cluster to test on, set KUBECONFIG: {e}") from None
    config.stash[_DEPLOYMENT] = _deployment(cluster, config.getoption)

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt  # pytest then runs the fixtures' teardown, which cleans up

    signal.signal(signal.SIGTERM, stop)


def _deployment(cluster: Cluster, option: Callable[[str], Any]) -> Deployment:
    image = option("--image")
    if not image or option("--image-prefix"):
        image = image or str(yaml.safe_load((cluster.settings.folder / "deploy/values.yaml").read_text())["image"])
        if prefix := option("--image-prefix"):
            image = f"{prefix.rstrip('/')}/{image.rpartition('/')[2]}"
    pods: dict[str, Any] = {"imagePullPolicy": option("--pull-policy")}
    if env := [dict(zip(("name", "value"), e.split("=", 1), strict=True)) for e in option("--pod-env")]:
        pods["env"] = env
    overrides: dict[str, Any] = {"image": image, "pods": {"all": pods}}
    if namespace := option("--driver-namespace"):
        overrides["namespace"] = namespace
    commands = [option("--image-build"), _LOAD.get(option("--image-load"), option("--image-load"))]
    words = {"image": image, "engine": option("--engine"), "context": cluster.kind_name}
    filled = [re.sub(r"\{(image|engine|context)\}", lambda m: words[m[1]], c) for c in commands if c]
    manifests = option("--manifests")
    return Deployment(cluster, Path(manifests) if manifests else None, overrides, filled)


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
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave objects behind
        try:
            deployment.remove()
        finally:
            signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def deployment(request: pytest.FixtureRequest, cluster: Cluster) -> Deployment:
    return request.config.stash[_DEPLOYMENT]


_CLUSTER = pytest.StashKey[Cluster]()
_FACTS = pytest.StashKey[list[str]]()
_DEPLOYMENT = pytest.StashKey[Deployment]()
