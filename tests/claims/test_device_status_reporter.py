"""The reporter with a scripted API client: each response of the API server, each retry, and the result that each caller
gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from dra_kubeletplugin import Condition, DeviceStatus, NetworkData
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims.claim_fields import ClaimFields, ClaimIdentity
from dra_kubeletplugin.claims.device_status import DeviceStatusReporter, merged
from dra_kubeletplugin.claims.waits import Waits
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from dra_kubeletplugin.kube.http1 import HttpResponse
from tests.helpers.waiting import wait_until

NAME = "net.example.com"
CLAIM = ClaimIdentity("ns", "c", "u")
KEY = ("p", "d", "")
STATUS = DeviceStatus(data={"vlan": 1})
NOT_FOUND = NotFoundError("gone", details={"details": {"name": "c"}})


def claim(*devices: str, uid: str = "u", **fields: Any) -> dict[str, Any]:
    results = [{"driver": NAME, "pool": "p", "device": d, "request": "r"} for d in devices]
    status = {"allocation": {"devices": {"results": results}}, **fields.pop("status", {})}
    return {
        "metadata": {"name": "c", "namespace": "ns", "uid": uid, "resourceVersion": "7", **fields},
        "status": status,
    }


class Client:
    """Returns the claim for each GET and applies each PATCH. Responses and exceptions in ``reads`` and ``writes`` come
    first.
    """

    def __init__(self, claim_object: Any = None) -> None:
        self.claim = claim_object or claim("d")
        self.reads: list[Any] = []
        self.writes: list[Any] = []
        self.get_count = 0
        self.patched: list[Any] = []
        self.go = asyncio.Event()
        self.go.set()

    async def dra(self, plural: str) -> Resource:
        return Resource("resource.k8s.io", "v1", plural, namespaced=True)

    async def raw(
        self, method: str, path: str, body: Any = None, *, query: Any = None, content_type: str = ""
    ) -> HttpResponse:
        if method == "GET":
            self.get_count += 1
            await self.go.wait()
            return self._respond(self.reads, self.claim)
        self.patched.append(SimpleNamespace(path=path, query=query, method=method, body=body, type=content_type))
        return self._respond(self.writes, {**self.claim, "status": body["status"]})

    @staticmethod
    def _respond(script: list[Any], default: Any) -> HttpResponse:
        response = script.pop(0) if script else default
        if isinstance(response, Exception):
            raise response
        return HttpResponse(200, {}, response if isinstance(response, bytes) else json.dumps(response).encode())


def make_reporter(client: Client, manager: str = "m", retry_for: float = 600.0) -> DeviceStatusReporter:
    waits = Waits(report_retries=(0.0, 0.0), report_retry_for=retry_for)
    return DeviceStatusReporter(client, NAME, manager, Metrics(), waits)  # type: ignore[arg-type]


# --- one write ---------------------------------------------------------------------------------------------


async def test_a_write_applies_the_status_to_the_version_that_was_read() -> None:
    client = Client()
    assert await make_reporter(client, "m/node").write(CLAIM, {KEY: STATUS}) is True
    (patch,) = client.patched
    assert patch.path == "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c/status"
    assert (patch.method, patch.type) == ("PATCH", "application/apply-patch+yaml")
    assert patch.query == {"fieldManager": "m/node", "force": "true"}
    assert patch.body == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ns", "name": "c", "uid": "u", "resourceVersion": "7"},
        "status": {"devices": [{"driver": NAME, "pool": "p", "device": "d", "data": {"vlan": 1}}]},
    }


@pytest.mark.parametrize(
    ("read", "is_same_claim"),
    [(NOT_FOUND, True), (claim("d", uid="another"), True), (claim("other"), True), (claim("d"), False)],
    ids=["no claim", "another claim", "other devices", "not the same"],
)
async def test_nothing_is_written_to_a_claim_that_is_deleted_or_replaced(read: Any, is_same_claim: bool) -> None:
    client = Client()
    client.reads = [read]
    assert await make_reporter(client).write(CLAIM, {KEY: STATUS}, lambda _: is_same_claim) is False
    assert (client.get_count, client.patched) == (1, [])


BROKEN = [b"[]", b"{", b"[" * 100_000]
ODD_MANAGERS = [{"manager": "m", "operation": "Apply", "subresource": "status", "fieldsV1": {"f:status": 5}}]


@pytest.mark.parametrize(
    "read",
    [
        *(NotFoundError("no such resource"), ApiError("away"), *BROKEN, claim("d", managedFields=[5])),
        *(claim("d", managedFields=ODD_MANAGERS), claim("d", status={"devices": [5]})),
    ],
)
async def test_an_unreadable_claim_is_an_error(read: Any) -> None:
    client = Client()
    client.reads = [read]
    with pytest.raises(ApiError):
        await make_reporter(client).write(CLAIM, {KEY: STATUS})
    assert client.patched == []


async def test_a_conflict_reads_the_claim_again_a_few_times() -> None:
    client = Client()
    client.writes = [ConflictError("changed")] * 4
    assert await make_reporter(client).write(CLAIM, {KEY: STATUS}) is True
    assert (client.get_count, len(client.patched)) == (5, 5)
    client.writes = [ConflictError("changed")] * 9
    with pytest.raises(ConflictError, match="again and again"):
        await make_reporter(client).write(CLAIM, {KEY: STATUS})
    assert len(client.patched) == 10


async def test_a_server_that_drops_the_field_or_returns_no_claim_is_an_error() -> None:
    client = Client()
    client.writes = [claim("d")]
    with pytest.raises(BadRequestError, match="dropped"):
        await make_reporter(client).write(CLAIM, {KEY: STATUS})
    for body in BROKEN:
        client.writes = [body]
        with pytest.raises(ApiError, match="response to a status write is not a ResourceClaim"):
            await make_reporter(client).write(CLAIM, {KEY: STATUS})


def test_the_field_manager_has_at_most_128_bytes_and_no_partial_character() -> None:
    client = Client.__new__(Client)
    assert make_reporter(client, "m" * 128).manager == "m" * 128
    assert make_reporter(client, "m" * 129).manager == "m" * 128
    assert make_reporter(client, "m" * 127 + "ü").manager == "m" * 127


# --- the applied entries -----------------------------------------------------------------------------------


def owned(*keys: tuple[str, str, str], manager: str = "m", **other_fields: Any) -> dict[str, Any]:
    """Returns managed fields of an apply that contains ``data`` and the condition A of each device."""
    fields = {"f:data": {}, "f:conditions": {'k:{"type":"A"}': {}, "x": {}}}
    items = {
        "k:" + json.dumps({"driver": d, "pool": "p", "device": n} | ({"shareID": s} if s else {})): fields
        for d, n, s in keys
    }
    return {
        "manager": manager,
        "operation": "Apply",
        "subresource": "status",
        "fieldsV1": {"f:status": {"f:devices": {".": {}, **items}}},
        **other_fields,
    }


def entry(device: str, driver: str = NAME, **fields: Any) -> dict[str, Any]:
    conditions = [{"type": t, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"} for t in "AB"]
    return {"driver": driver, "pool": "p", "device": device, "conditions": conditions, "data": {"old": 1}, **fields}


def decode(obj: dict[str, Any]) -> ClaimFields:
    return ClaimFields.decode(json.dumps(obj).encode())


A = [{"type": "A", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
KEPT = {"driver": NAME, "pool": "p", "device": "d1", "conditions": A, "data": {"old": 1}}
NEW = {"driver": NAME, "pool": "p", "device": "d0", "data": {"vlan": 1}}


@pytest.mark.parametrize(
    ("managed", "current", "expected"),
    [
        ([], [], [NEW]),
        ([owned((NAME, "d1", ""))], [entry("d1")], [NEW, KEPT]),
        # Fields of the entry that the manager does not own stay with their managers.
        ([owned((NAME, "d1", ""))], [entry("d1", networkData={"interfaceName": "eth1"})], [NEW, KEPT]),
        ([owned((NAME, "d1", ""))], [entry("d1", data=None)], [NEW, {k: v for k, v in KEPT.items() if k != "data"}]),
        (
            [owned((NAME, "d1", ""))],
            [entry("d1", conditions=None)],
            [NEW, {k: v for k, v in KEPT.items() if k != "conditions"}],
        ),
        # Entries that the manager does not own, or that are no longer in the claim.
        ([owned((NAME, "d1", ""), manager="other")], [entry("d1")], [NEW]),
        ([owned((NAME, "d1", ""), operation="Update")], [entry("d1")], [NEW]),
        ([owned((NAME, "d1", ""), subresource="")], [entry("d1")], [NEW]),
        ([owned((NAME, "d1", ""), fieldsV1=None)], [entry("d1")], [NEW]),
        ([owned(("other.example.com", "d1", ""))], [entry("d1"), entry("d1", "other.example.com")], [NEW]),
        ([owned((NAME, "d1", ""))], [entry("d1", "other.example.com")], [NEW]),
        ([owned((NAME, "d1", ""))], [], [NEW]),
        ([owned((NAME, "d9", ""))], [entry("d9")], [NEW]),
        ([owned((NAME, "d1", "s"))], [entry("d1")], [NEW]),
        # Other managers come first.
        ([owned((NAME, "d1", ""), manager="other"), owned((NAME, "d1", ""))], [entry("d1")], [NEW, KEPT]),
        ([owned((NAME, "d9", ""), (NAME, "d1", ""))], [entry("d1")], [NEW, KEPT]),
        # A new status replaces the manager's earlier one.
        ([owned((NAME, "d0", ""))], [entry("d0")], [NEW]),
    ],
)
def test_a_write_repeats_exactly_the_fields_that_the_manager_owns(managed: Any, current: Any, expected: Any) -> None:
    fields_read = decode(claim("d0", "d1", status={"devices": current}, managedFields=managed))
    assert merged(fields_read, NAME, "m", {("p", "d0", ""): STATUS}) == expected


def test_a_condition_keeps_its_time_and_network_data_of_the_manager_is_kept() -> None:
    fields = owned((NAME, "d1", ""))
    for item in fields["fieldsV1"]["f:status"]["f:devices"].values():
        item.update({"f:networkData": {}}) if item else None
    current = [entry("d0"), entry("d1", networkData=NetworkData(interface_name="eth1").json())]
    fields_read = decode(claim("d0", "d1", status={"devices": current}, managedFields=[fields]))
    entries = merged(fields_read, NAME, "m", {("p", "d0", ""): DeviceStatus(conditions=[Condition("A", True)])})
    assert entries
    assert entries[0]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert entries[1] == KEPT | {"networkData": {"interfaceName": "eth1"}}


# --- pending reports ---------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running_reporter(reporter: DeviceStatusReporter) -> AsyncIterator[DeviceStatusReporter]:
    task = asyncio.create_task(reporter.run())
    await asyncio.sleep(0)
    try:
        yield reporter
    finally:
        assert not task.done(), "run() never returns"
        task.cancel()
        await asyncio.wait([task])


def counts(reporter: DeviceStatusReporter) -> dict[str, int]:
    out = {}
    for result in ("written", "dropped", "failed"):
        line = f'status_reports_total{{result="{result}"}} '
        lines = [t for t in reporter.metrics.text().decode().splitlines() if line in t]
        out[result] = int(float(lines[0].rpartition(" ")[2])) if lines else 0
    return out


async def test_reports_are_written_also_from_threads_and_from_before_the_start() -> None:
    reporter = make_reporter(Client())
    early = reporter.queue(CLAIM, {KEY: STATUS})
    async with running_reporter(reporter):
        assert await early is True
        assert await reporter.queue(CLAIM, {KEY: STATUS}) is True
        assert await asyncio.to_thread(lambda: reporter.of(CLAIM)(KEY, STATUS).wait()) is True
    assert counts(reporter) == {"written": 3, "dropped": 0, "failed": 0}


async def test_a_failed_write_is_retried_logged_once_and_reported_until_a_write_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = Client()
    client.reads = [ApiError("away")] * 3 + [ForbiddenError("no")]
    async with running_reporter(make_reporter(client)) as reporter:
        assert await reporter.queue(CLAIM, {KEY: STATUS}) is True
        assert reporter.fault == ""
    assert counts(reporter) == {"written": 1, "dropped": 0, "failed": 4}
    unreachable_line, forbidden_line = (r.getMessage() for r in caplog.records)
    assert "away" in unreachable_line
    assert "set the feature deviceStatus in values.yaml" in forbidden_line


@pytest.mark.parametrize("error", [BadRequestError("no"), InvalidError("no")])
async def test_a_report_that_the_server_refuses_is_dropped_at_once(error: ApiError) -> None:
    client = Client()
    client.writes = [error]
    async with running_reporter(make_reporter(client)) as reporter:
        assert await reporter.queue(CLAIM, {KEY: STATUS}) is False
        assert "cannot write device status to claims: " in reporter.fault
        assert await reporter.queue(CLAIM, {KEY: STATUS}) is True


@pytest.mark.parametrize(("retry_for", "failures"), [(600.0, 1), (0.3, 100_000)])
async def test_an_unexpected_failure_is_logged_with_its_traceback_and_retried_for_a_bounded_time(
    retry_for: float, failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    client.reads = [KeyError("odd")] * failures
    async with running_reporter(make_reporter(client, retry_for=retry_for)) as reporter:
        assert await reporter.queue(CLAIM, {KEY: STATUS}) is (failures == 1)
        client.reads.clear()
        assert await reporter.queue(CLAIM, {KEY: STATUS}) is True
    assert any(r.exc_info for r in caplog.records)
    assert (counts(reporter)["written"], counts(reporter)["failed"] > 1) == (1 + (failures == 1), failures > 1)


@pytest.mark.parametrize(
    ("failures", "is_first_written", "expected"),
    [
        ([], True, [[1, 1], [3]]),
        ([InvalidError("no such thing")], False, [[1, 1], [3]]),
        ([ApiError("away")], True, [[1, 1], [3, 1]]),
    ],
)
async def test_a_status_during_a_write_is_written_next_and_the_newest_of_each_device_wins(
    failures: list[Any], is_first_written: bool, expected: list[list[int]]
) -> None:
    client = Client(claim("d", "e"))
    client.writes = list(failures)
    async with running_reporter(make_reporter(client)) as reporter:
        client.go.clear()
        first = reporter.queue(CLAIM, {KEY: STATUS, ("p", "e", ""): STATUS})
        await wait_until(lambda: client.get_count)
        second = reporter.queue(CLAIM, {KEY: DeviceStatus(data={"vlan": 2})})
        third = reporter.queue(CLAIM, {KEY: DeviceStatus(data={"vlan": 3})})
        await asyncio.sleep(0)
        assert client.get_count == 1, "one write of a claim at a time"
        client.go.set()
        assert [await r for r in (first, second, third)] == [is_first_written, True, True]
    assert [[e["data"]["vlan"] for e in p.body["status"]["devices"]] for p in client.patched] == expected
