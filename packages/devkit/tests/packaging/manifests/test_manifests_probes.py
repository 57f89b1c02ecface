"""The probes of the manifests from a node to its pod's network, with one or both address families, and their time limits."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import Settings
from packages.devkit.tests.packaging.manifests.rendering import LEAST, ROOT, container, one, plain, with_features

SERVES = """
import asyncio, sys
from dra_kubeletplugin.base.http_server.server import PROBES, HttpServer, Response
async def main():
    async def answer(request):
        return Response(200, b"ok", "text/plain")
    await HttpServer(answer, sys.argv[1], limits=PROBES).start()
    print("serving", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
DAEMONSET = one(plain(LEAST), "DaemonSet")
DEPLOYMENT = one(plain(with_features("controller", "probes")), "Deployment")
WORKLOADS = pytest.mark.parametrize("workload", [DAEMONSET, DEPLOYMENT], ids=lambda w: w["kind"])
V4, V6 = ("10.253.77.1/30", "10.253.77.2/30"), ("fd00:253::1/126", "fd00:253::2/126")


def address(workload: JSON) -> str:
    (found,) = (e["value"] for e in container(workload)["env"] if e["name"] == "HTTP_ADDRESS")
    return str(found)


@dataclass(frozen=True)
class Network:
    """The network of a pod: the addresses of the node's end and of the pod's end for each address family."""

    v4: bool
    v6: bool
    kernel_v6: bool = True


NETWORKS = {
    "dual-stack": Network(v4=True, v6=True),
    "IPv4": Network(v4=True, v6=False),
    "IPv6": Network(v4=False, v6=True),
    "IPv6-switched-off": Network(v4=True, v6=False, kernel_v6=False),
}


@contextlib.contextmanager
def _network_lock() -> Iterator[None]:
    """Takes a lock, because every test run on this machine uses the same addresses."""
    with (Path(tempfile.gettempdir()) / "dra-tests-network.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def pod_network(network: Network) -> Iterator[str]:
    """Creates a network namespace that a pair of interfaces connects to this one. Returns its name."""
    with _network_lock():
        yield from _connected(network)


def _connected(network: Network) -> Iterator[str]:
    name = f"dra-{secrets.token_hex(4)}"
    inside = ["ip", "netns", "exec", name]
    node_port, pod_port = f"{name}a", f"{name}b"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        if not network.kernel_v6:
            subprocess.run([*inside, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1"], check=True)
        subprocess.run(["ip", "link", "add", node_port, "type", "veth", "peer", pod_port, "netns", name], check=True)
        families = ([V4] if network.v4 else []) + ([V6] if network.v6 else [])
        for node_end, pod_end in families:
            subprocess.run(
                ["ip", "address", "add", node_end, "dev", node_port, *(["nodad"] if ":" in node_end else [])],
                check=True,
            )
            subprocess.run(
                [*inside, "ip", "address", "add", pod_end, "dev", pod_port, *(["nodad"] if ":" in pod_end else [])],
                check=True,
            )
        subprocess.run(["ip", "link", "set", node_port, "up"], check=True)
        subprocess.run([*inside, "ip", "link", "set", pod_port, "up"], check=True)
        yield name
    finally:
        # The namespace's end would delete the interface later, but the next test uses the same addresses. The interface may not exist.
        subprocess.run(["ip", "link", "delete", node_port], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.netns
@WORKLOADS
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_kubelet_reaches_the_pod_at_each_of_its_addresses(kind: str, workload: JSON) -> None:
    network = NETWORKS[kind]
    port = container(workload)["ports"][0]["containerPort"]
    with pod_network(network) as name:
        command = ["ip", "netns", "exec", name, sys.executable, "-c", SERVES, address(workload)]
        env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
            try:
                assert server.stdout
                assert server.stdout.readline() == "serving\n"
                for has, (_, pod_end) in ((network.v4, V4), (network.v6, V6)):
                    if has:
                        assert probe(pod_end.partition("/")[0], port) == b"HTTP/1.1 200 "
            finally:
                server.terminate()


def probe(host: str, port: int) -> bytes:
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
        return connection.recv(13)


@WORKLOADS
def test_probes_contain_no_host_and_no_address_of_one_family(workload: JSON) -> None:
    """The node resolves ``httpGet.host``: a loopback address there is the node's own, and an address fixes one address family."""
    assert Settings.load({}, {"HTTP_ADDRESS": address(workload)}).http_address.startswith(":")
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container(workload)[name]
        assert set(probe["httpGet"]) == {"path", "port"}
        assert probe["timeoutSeconds"] > 1  # With the default, a loaded node causes restarts.


@WORKLOADS
def test_the_kubelet_restarts_neither_a_slow_nor_a_hanging_vendor_library(workload: JSON) -> None:
    """The startup probe waits longer than the sum of all timeouts at start."""
    settings = Settings()
    startup = container(workload)["startupProbe"]
    waits = startup["periodSeconds"] * startup["failureThreshold"]
    assert waits > settings.start_timeout + settings.discovery_timeout + settings.lock_timeout
    assert startup["httpGet"]["path"] == container(workload)["livenessProbe"]["httpGet"]["path"] == "/healthz"


@WORKLOADS
def test_the_kubelet_kills_a_pod_only_after_the_time_for_its_stop(workload: JSON) -> None:
    assert (
        workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= Settings().shutdown_grace_period + 10
    )


def test_pods_of_one_driver_use_different_ports_on_the_nodes_network() -> None:
    """On the node's network, two pods cannot use one port, so the scheduler would never place the second pod of a rolling update."""
    daemonset = one(plain(with_features("probes", "hostNetwork")), "DaemonSet")
    assert daemonset["spec"]["template"]["spec"]["hostNetwork"] is True
    assert "updateStrategy" not in daemonset["spec"]
    other = one(plain(with_features("probes", "hostNetwork", httpPort=9555)), "DaemonSet")
    assert (container(other)["ports"][0]["containerPort"], address(other)) == (9555, ":9555")


def test_no_server_listens_without_probes() -> None:
    bare = container(one(plain(with_features()), "DaemonSet"))
    assert not {"ports", "startupProbe", "readinessProbe", "livenessProbe"} & set(bare)
    assert "HTTP_ADDRESS" not in {e["name"] for e in bare["env"]}
    assert Settings().http_address == ""
