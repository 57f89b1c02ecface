"""UNP: NodeUnprepareResources."""

from __future__ import annotations

from ..api_server import NAMESPACE, new_uid
from ..catalogue import must
from ..harness import Harness
from .prepare import check_configured

_CALLS = "kubelet: pkg/kubelet/cm/dra, NodeUnprepareResources"


@must(
    "UNP-001",
    "unprepares a claim repeatedly, and succeeds for a claim that it does not know",
    consequence="pods stay in Terminating forever, because the kubelet repeats the call until it succeeds",
    source=f"{_CALLS}; e2e_node: unprepare is retried",
)
async def repeats(h: Harness) -> None:
    """Prepares a claim and unprepares it ten times. Then unprepares a claim that was never prepared."""
    claim = await h.prepared_claim()
    for _ in range(10):
        await h.unprepared(claim)
    await check_configured(h, claim, configured=False)
    await h.unprepared({"metadata": {"namespace": NAMESPACE, "name": "never-prepared", "uid": new_uid()}})


@must(
    "UNP-002",
    "unprepares a claim that was deleted, also while the API server is away",
    consequence="pods stay in Terminating until the control plane is back, or forever",
    source=f"{_CALLS}; e2e_node: unprepare is called for a deleted pod",
)
async def without_claim(h: Harness) -> None:
    """Prepares a claim, deletes it and unprepares it. Then stops the API server and unprepares another claim."""
    deleted = await h.prepared_claim()
    h.release(deleted)
    await h.unprepared(deleted)
    claim = await h.prepared_claim()
    with h.api.outage():
        await h.unprepared(claim)


@must(
    "UNP-003",
    "leaves no CDI spec of the claim, and the device can be prepared for another claim",
    consequence="devices leak: the next pod on the device fails",
    source=f"{_CALLS}; e2e: devices are used again after use",
)
async def leaves_nothing(h: Harness) -> None:
    """Prepares and unprepares a claim, compares the CDI folder, and prepares the same device for another claim."""
    before = await h.cdi_baseline()
    first = await h.prepared_claim()
    await h.unprepared(first)
    await h.expect_no_new_spec(before)
    device = first["status"]["allocation"]
    h.release(first)
    second = h.put_claim(first["spec"], {"allocation": device})
    await h.prepared(second)
