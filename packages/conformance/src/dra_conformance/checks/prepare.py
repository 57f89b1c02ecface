"""PRE: NodePrepareResources."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.resourceapi.allocation import results_of

from ..api_server import new_uid
from ..catalogue import CheckNotApplicable, expect, may, must, should
from ..harness import Harness
from ..kubelet_client import CallResponse, ClaimResponse

_CALLS = "kubelet: pkg/kubelet/cm/dra, NodePrepareResources"
_CANCEL = 0.3  # seconds after which the suite cancels a call
_MAX_ERROR = 1024  # bytes
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^goroutine \d+ \[|panicked at|^\s+at .+\(.+:\d+\)", re.M)


def faults_of(claim: Mapping[str, Any], found: ClaimResponse) -> list[str]:
    """Returns the differences between a response and the claim's allocation. Empty names are allowed, as in the kubelet."""
    results = results_of(claim)
    out = []
    for device in found.devices:
        own = [r for r in results if device.device in {"", r["device"]} and device.pool in {"", r["pool"]}]
        requests = {r["request"].partition("/")[0] for r in own}  # a kubelet ignores the alternative
        where = f"device {device.pool}/{device.device}"
        if not own:
            out.append(f"{where} is not allocated to the claim")
        else:
            out += [f"{name!r} is no request of {where}" for name in device.requests if name not in requests]
    return out


def expect_allocated(claim: Mapping[str, Any], found: ClaimResponse) -> None:
    """Raises :class:`CheckFailed` if a response differs from the claim's allocation."""
    faults = faults_of(claim, found)
    expect(not faults, "devices and requests of the allocation", "; ".join(faults))


def refusal(found: CallResponse, claim: Mapping[str, Any], reason: str) -> str:
    """Returns the driver's error for a claim that it must refuse.

    Args:
        reason: why the driver must refuse the claim, as a noun phrase that follows ``an error for``.

    Raises :class:`CheckFailed` if the claim was prepared, or if the response has no entry for the claim.
    """
    entry = found.of(claim)
    expect(entry.error, f"an error for {reason}", "success")
    expect(not entry.missing, f"an entry with an error for {reason}", "a response without an entry for the claim")
    return entry.error


async def check_configured(h: Harness, claim: Mapping[str, Any], *, configured: bool) -> None:
    """Runs the profile's hook ``is_configured`` for each device of the claim, if there is one."""
    for result in results_of(claim):
        device, wanted = result["device"], "configured" if configured else "not configured"
        if (code := await h.hook("is_configured", device=device)) is not None:
            expect((code == 0) is configured, f"device {device} is {wanted}", f"is_configured ended with {code}")


@must(
    "PRE-001",
    "prepares an allocated claim, and its response names the claim's UID and the allocated devices",
    consequence="pods with a claim do not start, or containers get no device or a wrong device",
    source=f"{_CALLS}: each claim of the request must be in the response",
)
async def prepares(h: Harness) -> None:
    """Prepares a claim and compares the response with the allocation. Runs the hook is_configured."""
    claim = await h.claim()
    uid = claim["metadata"]["uid"]
    found = await h.plugin.prepare(claim)
    expect(not found.error, "NodePrepareResources succeeds", found.error)
    expect(set(found.claims) == {uid}, f"one entry in the response, for claim {uid}", sorted(found.claims))
    expect(not found.claims[uid].error, "no error for the claim", found.claims[uid].error)
    expect_allocated(claim, found.claims[uid])
    await check_configured(h, claim, configured=True)


@must(
    "PRE-002",
    "returns the same response each time a claim is prepared again",
    consequence="after a restart of the kubelet a container gets other devices, or the pod does not start",
    source="kubelet: prepare is repeated after restarts, for retries, and for pods that share a claim",
)
async def repeats(h: Harness) -> None:
    """Prepares a claim ten times and compares the responses."""
    claim = await h.claim()
    first = await h.prepared(claim)
    for number in range(2, 11):
        again = await h.prepared(claim)
        expect(again.content == first.content, f"call {number} returns {first.content}", again.content)


@must(
    "PRE-003",
    "prepares the other claims of a call if one claim fails",
    consequence="a pod's event does not name the claim that fails, and its other claims are not prepared",
    source=f"{_CALLS}: an error for each claim in the response",
)
async def one_fails(h: Harness) -> None:
    """Prepares two claims in one call. The allocation of the second claim names an unknown device."""
    good = await h.claim()
    bad = unknown_device(h, good)
    found = await h.plugin.prepare(good, bad)
    expect(not found.error, "a response with an entry for each claim", found.error)
    ok = found.of(good)
    expect(not ok.error, "the good claim is prepared", ok.error)
    if not found.of(bad).error:
        raise CheckNotApplicable("the driver prepares a claim with an unknown device: see PRE-011")
    refusal(found, bad, "the claim with an unknown device")


def unknown_device(h: Harness, model: Mapping[str, Any]) -> dict[str, Any]:
    """Creates a claim like another claim, but its allocation names a device that the driver does not publish."""
    status = copy.deepcopy(model["status"])
    status["allocation"]["devices"]["results"][0]["device"] = "no-such-device"
    return h.put_claim(model["spec"], status)


@must(
    "PRE-004",
    "returns an error for a claim that does not exist or has another UID",
    consequence="a pod runs with the devices of another claim",
    source=f"{_CALLS}: the kubelet passes namespace, name and UID only, so the driver verifies the claim",
)
async def wrong_claim(h: Harness) -> None:
    """Prepares a claim with a UID that differs from the object's, then a claim that does not exist."""
    claim = await h.claim()
    replaced = {"metadata": {**claim["metadata"], "uid": new_uid()}}
    refusal(await h.plugin.prepare(replaced), replaced, "a claim whose UID differs from the object's")
    absent = {"metadata": {**claim["metadata"], "uid": new_uid(), "name": "does-not-exist"}}
    refusal(await h.plugin.prepare(absent), absent, "a claim that does not exist")


@must(
    "PRE-005",
    "returns an error for a claim without an allocation, and changes nothing",
    consequence="a device is configured although no claim has it",
    source=f"{_CALLS}; KEP-4381: only allocated claims are prepared",
)
async def no_allocation(h: Harness) -> None:
    """Prepares a claim without an allocation, and compares the CDI folder before and after the call."""
    spec, _ = await h.free_claim()
    claim = h.put_claim(spec, {})
    before = h.cdi.content()
    refusal(await h.plugin.prepare(claim), claim, "a claim without an allocation")
    after = h.cdi.content()
    expect(after == before, "the CDI folder is unchanged", f"{sorted(after)} instead of {sorted(before)}")


@must(
    "PRE-006",
    "ignores devices of other drivers in a claim",
    consequence="a claim with devices of two drivers never becomes ready",
    source="e2e_node: two drivers in one pod are prepared and unprepared",
)
async def other_drivers(h: Harness) -> None:
    """Prepares a claim whose allocation also contains a device and parameters of another driver."""
    spec, status = await h.free_claim()
    other = {"request": "other", "driver": "other.example.com", "pool": "other", "device": "other"}
    status["allocation"]["devices"]["results"].append(other)
    config = {"source": "FromClaim", "opaque": {"driver": "other.example.com", "parameters": {"kind": "Other"}}}
    status["allocation"]["devices"].setdefault("config", []).append(config)
    found = await h.prepared(h.put_claim(spec, status))
    foreign = [d for d in found.devices if d.device == "other" or "other" in d.requests]
    expect(not foreign, "only devices of the driver in the response", ", ".join(d.device for d in foreign))


@must(
    "PRE-007",
    "prepares a claim once if calls for it overlap",
    consequence="a device is configured twice, and unprepare leaves a part of it configured",
    source="kubelet: a retry after the deadline overlaps with the first call; pods may share a claim",
)
async def overlapping_calls(h: Harness) -> None:
    """Prepares a claim with eight calls at the same time, compares the responses, and unprepares the claim."""
    before = await h.cdi_baseline()
    claim = await h.claim()
    calls = await asyncio.gather(*(h.plugin.prepare(claim) for _ in range(8)))
    good = [entry for found in calls if not (entry := found.of(claim)).error]
    final = await h.prepared_after_retries(claim)
    different = next((g for g in good if g.content != final.content), None)
    expect(different is None, f"each call that succeeds returns {final.content}", different)
    await h.unprepared(claim)
    await h.expect_no_new_spec(before)


@should(
    "PRE-008",
    "prepares a claim while another claim takes long",
    consequence="one slow claim delays every pod of the node",
    source="kubelet: calls for different pods run in parallel, each for at most 45 s",
)
async def slow_claim(h: Harness) -> None:
    """Delays the read of one claim by 3 s, and prepares another claim during the delay."""
    slow, fast = await h.claim(), await h.claim()
    name = slow["metadata"]["name"]
    h.api.slow_claims[name] = wait = h.profile.pace.slow
    delayed = asyncio.create_task(h.plugin.prepare(slow))
    try:
        if not await h.until(lambda: name in h.api.delayed_claims or delayed.done(), wait) or delayed.done():
            raise CheckNotApplicable("the suite delays requests that read one claim by name, and the driver sent none")
        found = await h.plugin.prepare(fast)
        is_first = not delayed.done()
    finally:
        await delayed
    error = found.of(fast).error
    expect(not error, "the other claim is prepared", error)
    expect(is_first, "the other claim is prepared first", f"it was prepared after {found.seconds:.1f} s")


@must(
    "PRE-009",
    "prepares a claim after the kubelet cancelled an earlier call at its deadline",
    consequence="a pod whose first attempt was slow never starts",
    source="kubelet: a call is cancelled after 45 s and retried",
)
async def cancelled_call(h: Harness) -> None:
    """Delays the read of a claim, cancels the call after 0.3 s, and repeats the call for up to 15 s."""
    claim = await h.claim()
    h.api.slow_claims[claim["metadata"]["name"]] = h.profile.pace.slow / 2
    await h.plugin.prepare(claim, timeout=_CANCEL)
    h.api.slow_claims.clear()
    expect_allocated(claim, await h.prepared_after_retries(claim))


@should(
    "PRE-010",
    "refuses an exclusive device that another claim holds",
    consequence="two pods use one device, for example after an allocation that was forced or restored",
    source="kubernetes#128981: drivers check allocations before prepare",
)
async def held_device(h: Harness) -> None:
    """Prepares a claim. Then prepares a second claim with the same allocation."""
    if not h.profile.exclusive:
        raise CheckNotApplicable("profile: [devices] exclusive = false")
    first = await h.claim()
    if results_of(first)[0].get("shareID"):
        raise CheckNotApplicable("the driver's devices can be shared")
    await h.prepared(first)
    second = h.put_claim(first["spec"], copy.deepcopy(first["status"]))
    refusal(await h.plugin.prepare(second), second, "the second claim of the device")


@should(
    "PRE-011",
    "returns a clear error of at most 1 KiB for an unknown device",
    consequence="the user sees a stack trace, or an event without the device's name",
    source="kubelet: the error becomes the pod's event FailedPrepareDynamicResources",
)
async def clear_error(h: Harness) -> None:
    """Prepares a claim whose allocation names the device no-such-device, and reads the error."""
    claim = unknown_device(h, await h.claim())
    error = refusal(await h.plugin.prepare(claim), claim, "an unknown device")
    expect(len(error.encode()) <= _MAX_ERROR, f"an error of at most {_MAX_ERROR} bytes", f"{len(error.encode())} bytes")
    expect(not _TRACEBACK.search(error), "an error without a stack trace", error)
    expect("no-such-device" in error, "an error that names the device", error)


@may(
    "PRE-012",
    "prepares a prepared claim again while the API server is away",
    consequence="pods cannot restart on the node during an outage of the control plane",
    source="kubelet: after its restart it prepares the claims of running pods again",
)
async def without_api_server(h: Harness) -> None:
    """Prepares a claim, stops the API server, and prepares the claim again."""
    claim = await h.claim()
    first = await h.prepared(claim)
    with h.api.outage():
        found = (await h.plugin.prepare(claim, timeout=20.0)).of(claim)
    if found.error:
        raise CheckNotApplicable(f"optional: the driver needs the API server to prepare again: {found.error[:200]}")
    expect(found.content == first.content, f"the same response: {first.content}", found.content)


@must(
    "PRE-013",
    "prepares a claim with two requests, and names the request of each device",
    consequence="a container that uses one request of the claim gets the device of the other request",
    source="kubelet: pkg/kubelet/cm/dra: a container gets the CDI devices of its request; e2e: several requests",
)
async def two_requests(h: Harness) -> None:
    """Prepares a claim with the requests first and second, and compares the requests of each device. Each request must have a device."""
    await _prepare_requests(h, "first", "second")


@must(
    "PRE-014",
    "names the request of a device without the alternative that was allocated",
    consequence="a container that uses the request starts without its device",
    source="kubelet: pkg/kubelet/cm/dra: a request with alternatives is sent as its name; e2e: the first alternative that fits",
)
async def alternative(h: Harness) -> None:
    """Prepares a claim whose request device has the alternative first, and compares the request of the device."""
    await _prepare_requests(h, "device/first")


async def _prepare_requests(h: Harness, *requests: str) -> None:
    claim = await h.claim(*requests)
    found = await h.prepared(claim)
    faults = faults_of(claim, found)
    expect(not faults, f"devices with the requests of the allocation: {', '.join(requests)}", "; ".join(faults))
    for result in _unnamed(claim, found):
        await h.unprepared(claim)
        alone = h.put_claim(*_claim_of_request(claim, result))
        is_returned = (await h.prepared(alone)).devices
        await h.unprepared(alone)
        name, device = result["request"], result["device"]
        expect(not is_returned, f"a device for request {name}, as for a claim with {device} alone", "none")


def _claim_of_request(claim: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns spec and status of a claim that has only the request of one result."""
    spec, status = copy.deepcopy(claim["spec"]), copy.deepcopy(claim["status"])
    request = result["request"].partition("/")[0]
    spec["devices"]["requests"] = [r for r in spec["devices"]["requests"] if r["name"] == request]
    allocated = status["allocation"]["devices"]
    allocated["results"] = [result]
    for devices in (spec["devices"], allocated):
        if config := devices.get("config"):
            names = {request, result["request"]}
            devices["config"] = [c for c in config if not c.get("requests") or names & set(c["requests"])]
    return spec, status


def _unnamed(claim: Mapping[str, Any], found: ClaimResponse) -> list[Any]:
    """Returns the results of requests without a device. A driver may return no entry for devices that need no CDI device."""
    if not found.devices or any(not d.requests for d in found.devices):
        return []
    named = {name for d in found.devices for name in d.requests}
    results = results_of(claim)
    return [r for r in results if r["request"].partition("/")[0] not in named]
