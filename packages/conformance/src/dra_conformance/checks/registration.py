"""REG: registration with the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import grpc
import grpc.aio

from dra_kubeletplugin.resourceapi.validation.common import driver_name

from ..catalogue import CheckFailed, expect, must, should
from ..harness import Harness
from ..kubelet_client import (
    DRA_VERSIONS,
    GET_INFO_TIMEOUT,
    HEALTH_VERSIONS,
    PluginConnection,
    find_sockets,
    first_message,
    listens,
)

_MAX_SOCKET_PATH = 107  # bytes
_ENDPOINT_TIMEOUT = 1.0  # seconds; a kubelet connects 0.6 s after the socket was created
_ATTEMPTS = 3  # of GetInfo
_STOP = 10.0  # maximum seconds until a rejected driver ends
_PROTOCOL = "kubelet: pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin"


@must(
    "REG-001",
    "creates a registration socket whose name does not begin with a dot",
    consequence="the kubelet never finds the driver; pods wait with: DRA driver NAME is not registered",
    source="kubelet: pkg/kubelet/pluginmanager/pluginwatcher",
    attach=True,
)
async def registration_socket(h: Harness) -> None:
    """Looks for the registration socket after the driver was registered."""
    found = find_sockets(h.registry)
    expect(h.plugin.info.socket in found, "a socket in PLUGINS_REGISTRY that the kubelet reads", found)


@must(
    "REG-002",
    "responds to GetInfo within 1 s, twice with the same content",
    consequence="the kubelet cancels GetInfo after 1 s and retries with growing pauses; pods wait meanwhile",
    source=f"{_PROTOCOL}; e2e_node: the kubelet registers the plugin when GetInfo succeeds after a failure",
    attach=True,
)
async def get_info(h: Harness) -> None:
    """Calls GetInfo twice and compares the responses. Each call has three attempts of 1 s."""
    contents = [await _info_in_time(h) for _ in range(2)]
    expect(contents[0] == contents[1], f"the same response twice: {contents[0]}", contents[1])


async def _info_in_time(h: Harness) -> object:
    """Calls GetInfo until a response arrives in time, because a kubelet also repeats the call after 1 s, 2 s and 4 s."""
    error = ""
    for _ in range(_ATTEMPTS):
        try:
            return (await h.registration.get_info(h.plugin.info.socket, GET_INFO_TIMEOUT)).content
        except grpc.aio.AioRpcError as e:
            error = f"{e.code().name}: {e.details()}"
    raise CheckFailed(f"GetInfo succeeds within 1 s, at the latest at attempt {_ATTEMPTS}", error)


@must(
    "REG-003",
    "registers with a type, a name and an endpoint that kubelets of 1.34 to 1.37 accept",
    consequence="the kubelet rejects the registration, or calls of a later kubelet fail",
    source=f"{_PROTOCOL}: validation of a registration; kubernetes#140837",
    attach=True,
)
async def registration_content(h: Harness) -> None:
    """Reads type, name, endpoint and versions of the GetInfo response."""
    info = h.plugin.info
    expect(info.type == "DRAPlugin", "type DRAPlugin", repr(info.type))
    faults = driver_name(info.name, "name")
    expect(not faults, "a name that is a DNS subdomain of at most 63 characters", f"{info.name!r}: {faults}")
    expect(info.endpoint.startswith("/"), "an absolute path as endpoint", repr(info.endpoint))
    is_below = _is_below(h.path_of(info.endpoint), h.kubelet_root)
    expect(is_below, "an endpoint below KUBELET_ROOT, as kubelets of 1.37 require", info.endpoint)
    length = len(info.endpoint.encode())
    expect(length <= _MAX_SOCKET_PATH, f"an endpoint of at most {_MAX_SOCKET_PATH} bytes", f"{length} bytes")
    known = set(info.versions) & set(DRA_VERSIONS)
    expect(known, f"one of {', '.join(DRA_VERSIONS)} in supported_versions", info.versions)


def _is_below(path: Path, root: Path) -> bool:
    """Compares only the paths, like the kubelet."""
    return Path(os.path.normpath(path)).is_relative_to(root)


@must(
    "REG-004",
    "serves each version that it advertises",
    consequence="a kubelet that selects this version cannot prepare any claim",
    source="kubelet: pkg/kubelet/cm/dra/plugin; calls with an empty list of claims are legal",
    attach=True,
)
async def advertised_versions(h: Harness) -> None:
    """Calls NodePrepareResources without claims in each version, and opens a health stream in each version."""
    for version in [v for v in h.plugin.info.versions if v in DRA_VERSIONS]:
        found = await h.plugin.prepare(version=version)
        expect(not found.unserved, f"{version} responds to NodePrepareResources", found.unserved)
    for version in [v for v in h.plugin.info.versions if v in HEALTH_VERSIONS]:
        try:
            await first_message(h.plugin.health(version), 1.0)
        except grpc.aio.AioRpcError as e:
            unserved = e.code() is grpc.StatusCode.UNIMPLEMENTED
            expect(not unserved, f"{version} is served", f"{e.code().name}: {e.details()}")


@should(
    "REG-005",
    "serves its DRA endpoint when its registration socket appears",
    consequence="the first prepare fails, and its pod waits up to a minute for the kubelet's next attempt",
    source="kubelet: it calls the driver as soon as it is registered; e2e_node: a service that listens later is used, too",
)
async def endpoint_first(h: Harness) -> None:
    """Starts the driver again. Calls GetInfo when the socket appears, then connects to the endpoint for up to 1 s."""
    uid = h.driver.uid
    await h.stop()
    await h.start(uid, published=False, endpoint=False)
    began = asyncio.get_running_loop().time()
    found = await h.until(lambda: listens(h.plugin.endpoint), _ENDPOINT_TIMEOUT)
    got = f"no listener at {h.plugin.endpoint} after {asyncio.get_running_loop().time() - began:.1f} s"
    expect(found, "the endpoint responds as soon as GetInfo names it", got)


@should(
    "REG-006",
    "logs a rejected registration, and stops or stays available for the next attempt",
    consequence="operators do not see why the driver is not registered, or the kubelet's retry fails",
    source="kubelet: NotifyRegistrationStatus with plugin_registered=false, then retries after 1 s, 2 s, 4 s",
)
async def rejected_registration(h: Harness) -> None:
    """Calls NotifyRegistrationStatus with an error, waits for the error in the output, and calls GetInfo again."""
    reason = "rejected-by-the-conformance-suite"
    with contextlib.suppress(grpc.aio.AioRpcError):  # drivers in Go return an error, which the kubelet ignores
        await h.registration.notify(h.plugin.info.socket, registered=False, error=reason)
    logged = await h.until(lambda: any(reason in line for line in h.driver.output), h.profile.pace.rejection)
    expect(logged, f"a line of output with the kubelet's error {reason!r}", h.driver.last_lines)
    if h.driver.alive:
        try:
            await h.registration.get_info(h.plugin.info.socket)
        except grpc.aio.AioRpcError as e:
            stopped = await h.until(lambda: not h.driver.alive, _STOP)
            expect(stopped, "the next GetInfo succeeds, or the driver stops", f"{e.code().name}: {e.details()}")
    await h.kill()  # because a driver that ends some seconds after a rejection would fail the next check


@must(
    "REG-007",
    "can be registered again after a restart of the kubelet",
    consequence="after an update of the kubelet no pod with a claim of the driver starts on the node",
    source="e2e_node: the plugin is registered again after a kubelet restart",
)
async def kubelet_restart(h: Harness) -> None:
    """Closes the connections, reads the registry again, and calls NodePrepareResources without claims. SLC-004 deletes the slices."""
    await h.plugin.close()
    await h.connect()
    found = await h.plugin.prepare()
    expect(not found.unserved, "the driver responds after the second registration", found.unserved)


@should(
    "REG-008",
    "survives the keep-alives of an idle connection, or accepts a new connection",
    consequence="the first pod after a quiet hour fails to start",
    source="gRPC: keep-alive; kubelet: one connection for each instance",
)
async def idle_connection(h: Harness) -> None:
    """Sends keep-alives for 5 s, ten each second. Then calls NodePrepareResources, a second time after an error."""
    options = [
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    connection = PluginConnection(h.plugin.info, h.plugin.endpoint, h.transcript)
    await connection.close()
    connection.channel = grpc.aio.insecure_channel(f"unix:{h.plugin.endpoint}", options=options)
    try:
        await connection.prepare()
        await asyncio.sleep(h.profile.pace.pings)
        found = await connection.prepare(timeout=5.0)
        if found.unserved:  # the server closed the connection, after which a kubelet calls again
            found = await connection.prepare(timeout=5.0)
    finally:
        await connection.close()
    expected = "the driver responds after the keep-alives, at the latest at the second attempt"
    expect(not found.unserved, expected, found.unserved)
