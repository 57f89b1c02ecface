"""SLC: ResourceSlices."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc.aio

from dra_devkit.localcluster.apiserver.faults import GATED
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.validation import slices as slice_rules

from ..allocation import pool_faults, why_no_device
from ..api_server import NODE
from ..catalogue import CheckNotApplicable, DevicesMissing, expect, must, should
from ..harness import Harness
from ..kubelet_client import HEALTH_VERSIONS
from ..profile import DEFAULT_PACE

_FAULTS = (429, 500, 504, 503, 429, 409, 409)  # responses to the requests after the slices were deleted
_SETTLE = 1.5  # seconds from a start until the driver has compared its devices with the existing slices
_QUIET = 1.0  # seconds without a request after which the driver has finished the work of the previous check
_LIMITS = "API server: limits of ResourceSlices"


async def require_published(h: Harness) -> frozenset[tuple[str, str]]:
    """Returns the published devices. Raises :class:`DevicesMissing` if there are none."""
    if not (found := await h.until(h.published, h.publish_timeout)):
        raise DevicesMissing(why_not_published(h))
    return found


def why_not_published(h: Harness) -> str:
    """Returns why the published devices are too few."""
    if not (count := len(h.devices())):
        return why_no_device(h.name, h.slices, h.node)
    return f"the driver publishes only {count} usable devices in {len(h.slices)} slices"


async def returned(h: Harness, wanted: frozenset[tuple[str, str]]) -> bool:
    return bool(await h.until(lambda: h.published() == wanted, h.profile.pace.returned))


@must(
    "SLC-001",
    "publishes complete pools with its devices",
    consequence="the scheduler finds no device on the node",
    source="KEP-4381: ResourceSlice; the profile's ready_timeout and minimum",
)
async def publishes(h: Harness) -> None:
    """Waits for complete pools until the ready_timeout of the profile."""
    if not (minimum := h.profile.minimum):
        raise CheckNotApplicable("profile: [devices] minimum = 0")
    timeout = h.profile.ready_timeout
    found = await h.until_ready(h.published)
    expected = f"at least {minimum} devices in complete pools after {timeout:g} s ([devices] minimum in the profile)"
    rejected = [f"; {c.method} {c.path} -> {c.status} {c.error}" for c in h.transcript.writes_since(0.0) if c.error]
    expect(found, expected, why_not_published(h) + "".join(rejected[-1:]))


@must(
    "SLC-002",
    "publishes slices within the limits of the API server, and none that the API server rejects",
    consequence="the API server rejects the slice, and its devices are invisible",
    source=f"{_LIMITS}: 128 devices, or 64 with taints or counters; 32 attributes and capacities",
    attach=True,
)
async def valid_slices(h: Harness) -> None:
    """Reads the responses to the driver's writes, and counts the devices of each slice."""
    await require_published(h)
    refused = [c for c in h.transcript.writes_since(0.0) if c.status in {400, 422}]
    expect(not refused, "no write that the API server rejects", [f"{c.method} {c.path} -> {c.status}" for c in refused])
    for obj in h.slices:
        devices = obj["spec"].get("devices") or []
        extras = any(d.get("taints") or d.get("consumesCounters") for d in devices)
        most = slice_rules.MAX_DEVICES_WITH_EXTRAS if extras else slice_rules.MAX_DEVICES_IN_SLICE
        expect(len(devices) <= most, f"at most {most} devices in {obj['metadata']['name']}", len(devices))


@must(
    "SLC-003",
    "keeps each pool complete or visibly incomplete at every moment",
    consequence="the scheduler allocates devices that do not exist, or ignores the pool",
    source="KEP-4381: generation and resourceSliceCount of a pool",
    limit=300,
)
async def consistent_pools(h: Harness) -> None:
    """Deletes the slices, and starts the driver again. Examines the pools after each change of a slice."""
    found = await deletion(h)
    async with h.api.states_of_slices(h.name) as states:
        await h.stop()
        await h.start(h.driver.uid)
        await asyncio.sleep(_SETTLE)
    faults = [fault for state in (*found.states, *states) for fault in pool_faults(state, h.node)]
    expect(not faults, "one newest generation with as many slices as it declares", "; ".join(dict.fromkeys(faults)))


@must(
    "SLC-004",
    f"creates deleted slices again within {DEFAULT_PACE.returned:g} s",
    consequence="after a restart of the kubelet, which deletes the slices, the node has no devices",
    source="kubelet: it deletes the slices of its node at its start; e2e_node: slices are removed at kubelet start",
    limit=300,
)
async def deleted_slices(h: Harness) -> None:
    """Deletes the slices and waits until the same devices are published."""
    found = await deletion(h)
    expect(found.returned, f"the same devices published again within {h.profile.pace.returned:g} s", "they are missing")
    h.facts["figures"].append(f"the slices were complete again after {found.seconds:.1f} s")


@dataclass(frozen=True)
class Deletion:
    """The result of :func:`deletion`: whether the slices returned, after how many seconds, and all states of the slices until then."""

    returned: bool
    seconds: float
    states: list[list[JSON]]


async def deletion(h: Harness) -> Deletion:
    """Deletes the slices and waits until they return. All checks share the result of the first call."""
    if "deletion" not in h.facts:
        wanted = await require_published(h)
        async with h.api.states_of_slices(h.name) as states:
            began = h.transcript.now
            h.api.remove_slices(h.name)
            found = await returned(h, wanted)
            took = h.transcript.now - began
        h.facts["deletion"] = Deletion(found, took, states)
    out: Deletion = h.facts["deletion"]
    return out


async def idle(h: Harness) -> Mapping[str, Any]:
    """Observes the idle driver. Returns its requests, its writes and its health messages. All checks share the result of the first call."""
    if "idle" not in h.facts:
        await require_published(h)
        await h.prepare_if_possible()
        await h.until(lambda: not h.transcript.calls_since(h.transcript.now - _QUIET), h.profile.pace.quiet)
        began = h.transcript.now
        messages = await health_messages(h, h.profile.limits.idle)
        writes = h.transcript.writes_since(began)
        h.facts["idle"] = {"calls": h.transcript.calls_since(began), "writes": writes, "health": messages}
    found: Mapping[str, Any] = h.facts["idle"]
    return found


async def health_messages(h: Harness, seconds: float) -> list[tuple[float, Mapping[tuple[str, str], Any]]]:
    """Returns after ``seconds``, with the messages of the driver's health stream and their time, if the driver announces one."""
    messages: list[tuple[float, Mapping[tuple[str, str], Any]]] = []
    end = asyncio.get_running_loop().time() + seconds
    if version := next((v for v in HEALTH_VERSIONS if v in h.plugin.info.versions), ""):
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
            async with asyncio.timeout_at(end), contextlib.aclosing(h.plugin.health(version)) as stream:
                async for message in stream:
                    messages.append((h.transcript.now, message))
    await asyncio.sleep(end - asyncio.get_running_loop().time())  # the stream is absent, or ended early
    return messages


@should(
    "SLC-005",
    "writes no slice while nothing changes",
    consequence="each write reaches every scheduler and watcher of the cluster",
    source="scalability: writes of 5,000 nodes; the profile's idle time",
)
async def no_idle_writes(h: Harness) -> None:
    """Prepares a claim and waits until the driver is quiet. Then counts writes for the idle time of the profile."""
    writes = (await idle(h))["writes"]
    expect(not writes, f"no write within {h.profile.limits.idle:g} s", [f"{c.method} {c.path}" for c in writes])


@must(
    "SLC-006",
    "publishes its devices again after conflicts, throttling, server errors, timeouts and a watch that ends",
    consequence="after a short outage of the control plane the node has no devices until the driver restarts",
    source="API conventions: clients retry 409, 429, 5xx and timeouts",
    limit=300,
)
async def api_faults(h: Harness) -> None:
    """Deletes the slices, ends all watches, and responds to the next requests for slices with errors."""
    wanted = await require_published(h)
    began = h.transcript.now
    h.api.failures.extend(_FAULTS)
    h.api.drop_connections()
    h.api.storage.cut_watches()
    h.api.remove_slices(h.name)
    found = await returned(h, wanted)
    expected = (
        f"{len(wanted)} devices within {h.profile.pace.returned:g} s after the responses {', '.join(map(str, _FAULTS))}"
    )
    calls = len(h.transcript.calls_since(began))
    expect(found, expected, f"{len(h.published())} devices; the driver sent {calls} requests meanwhile")


@should(
    "SLC-007",
    "reports fields that the API server drops, without writing again and again",
    consequence="on a cluster without a feature gate the driver writes endlessly, or operators do not learn the cause",
    source="API server: it drops fields of disabled feature gates",
)
async def dropped_fields(h: Harness) -> None:
    """Starts the driver on an API server that drops fields. Counts its writes, and looks for a new line of output."""
    await require_published(h)
    content = str([s["spec"] for s in h.slices])
    used = {key for key in GATED - {"bools", "ints", "strings", "versions"} if key in content}
    if not used:
        raise CheckNotApplicable("the driver's slices have no field that a feature gate controls")
    await h.restart()  # the output of a usual start, for comparison: its lines about feature gates are no reports
    await asyncio.sleep(_SETTLE)
    usual = {_pattern(line) for line in h.driver.output}
    await h.kill()
    h.api.remove_slices(h.name)
    h.api.injected_faults.drop(used)
    started = h.transcript.now
    await h.start(h.driver.uid, published=False)
    await h.until(lambda: h.slices, h.profile.ready_timeout)
    await asyncio.sleep(_SETTLE)
    began = h.transcript.now
    pace = h.profile.pace
    await asyncio.sleep(pace.watched)
    writes = len(h.transcript.writes_since(began))
    words = re.compile("|".join(["drop", "feature", *used]), re.IGNORECASE)

    def is_reported() -> bool:
        if any(c.access.resource == "events" for c in h.transcript.calls_since(started)):
            return True
        return any(words.search(line) and _pattern(line) not in usual for line in h.driver.output)

    reported = await h.until(is_reported, pace.report)
    remaining = h.slices
    await h.kill()  # so that the next instance publishes all fields again
    h.api.clear_faults()
    h.api.remove_slices(h.name)
    expected = f"at most {pace.writes} writes within {pace.watched:g} s"
    expect(writes <= pace.writes, expected, f"{writes} writes")
    expect(reported, f"a line of output or an event about dropped fields ({', '.join(sorted(used))})", "neither")
    expect(remaining, "slices without the dropped fields", "no slices")


def _pattern(line: str) -> str:
    """Returns a line of output without digits, because they differ between two starts."""
    return re.sub(r"\d+", "", line)


@must(
    "SLC-008",
    "leaves slices of other drivers and nodes alone",
    consequence="devices of other drivers or nodes disappear",
    source="KEP-4381: a driver owns the slices with its name and its node",
)
async def foreign_slices(h: Harness) -> None:
    """Starts the driver beside a slice of another driver and a slice of another node."""
    wanted = await require_published(h)
    foreign = {"foreign-driver": ("other.example.com", NODE), "foreign-node": (h.name, "another-node")}
    try:
        await h.stop()
        h.api.remove_slices("")
        for name, owner_and_node in foreign.items():
            h.api.put_slice(name, *owner_and_node)
        await h.start(h.driver.uid)
        await returned(h, wanted)
        await asyncio.sleep(1.0)
        kept = [s for s in h.api.slices() if (s["spec"].get("devices") or [{}])[0].get("name") == "foreign"]
        missing = ", ".join(sorted(foreign.keys() - {s["metadata"]["name"] for s in kept}))
        expect(not missing, "slices of other drivers and nodes are unchanged", f"changed or deleted: {missing}")
    finally:
        for name in foreign:
            h.api.remove_slice(name)


@should(
    "SLC-009",
    "names its Node as owner of the slices of the node",
    consequence="slices stay behind when a node is deleted",
    source="e2e: slices are owned by the Node as controller",
    attach=True,
)
async def owner(h: Harness) -> None:
    """Reads the owner references of the slices."""
    await require_published(h)
    for obj in [s for s in h.slices if s["spec"].get("nodeName")]:
        owners = obj["metadata"].get("ownerReferences") or []
        owned = any(o.get("kind") == "Node" and o.get("uid") == h.node["metadata"]["uid"] for o in owners)
        expect(owned, f"an owner reference to Node {NODE} in {obj['metadata']['name']}", owners)


@should(
    "SLC-010",
    "sends few requests while it is idle",
    consequence="many nodes together overload the API server",
    source="scalability: requests of 5,000 nodes; the profile's idle_requests",
)
async def idle_requests(h: Harness) -> None:
    """Counts the requests of the idle driver, in the time of SLC-005."""
    found = await idle(h)
    limits = h.profile.limits
    count = len(found["calls"])
    allowed = max(1.0, limits.idle_requests * limits.idle / 60)
    h.facts["figures"].append(f"{count} requests in {limits.idle:g} s")
    expect(count <= allowed, f"at most {allowed:g} requests within {limits.idle:g} s", f"{count} requests")
