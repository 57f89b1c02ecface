"""Decides whether a pod of this node may still use a claim that the API server no longer has with its devices.

A user can delete a claim while its pod runs, so an absent claim never frees a device. The source is the kubelet's list of its pods
(PodResources API, `<kubelet root>/pod-resources/kubelet.sock`). Every pod of the claim's namespace counts, whatever the list says about
claims: it omits init containers, kubelets before 1.34 list no claims, and a kubelet without its checkpoint knows none. Folders `pods/<uid>`
are no source: the kubelet does not call the plugin for the second pod of a claim, so the plugin does not know all UIDs.
A kubelet unprepares the claims of pods that end, so this decision is needed only for claims that the kubelet has lost.
A pod for which the kubelet asks to prepare a claim does not count: its containers start after all its claims are prepared.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
from ..base.text import join_names
from ..errors import clip, printable
from ..kube.event_recorder import EventRecorder, claim_subject, node_subject
from .claim_fields import ClaimIdentity
from .record import Record

log = logging.getLogger(__name__)
_TIMEOUT = 10.0  # seconds for one list
_LARGEST = 16 << 20  # bytes of a list; the kubelet's own limit for its clients
_RETRIED_WITHIN = 180.0  # seconds within which the kubelet asks again to prepare the claims of a pod that waits
_MAX_WAITING = 1_000  # claims
_NAMED = 4  # pods that a sentence lists
_DETAILS = 200  # bytes of a gRPC error
_Key = tuple[str, float]  # claim UID and creation time of its record


class PodsUnknownError(Exception):
    """The kubelet's list cannot be read; the text says why."""


class ClaimPods:
    """Asks the kubelet for its pods, and reports claims whose devices stay held because a pod may use them.

    Args:
        socket: the kubelet's PodResources socket.
        node: the node's name, for Events.
        settles: seconds within which a kubelet that has just started lists all its pods.
    """

    def __init__(self, socket: Path, events: EventRecorder, node: str, metrics: Metrics, settles: float = 0.0) -> None:
        self._socket = socket
        self._settles = settles
        self._listed_since = -math.inf  # when the kubelet registered the plugin last
        self._events = events
        self._node = node_subject(node)
        self._users: dict[_Key, frozenset[str]] = {}
        self._held: dict[_Key, str] = {}
        # The pods that wait for a claim and when the kubelet last asked to prepare it, by claim UID.
        self._waiting: dict[str, tuple[float, str, frozenset[str]]] = {}
        metrics.measure("deleted_claims_held", lambda: len(self._held))

    @property
    def notes(self) -> Sequence[str]:
        """A sentence for each claim whose devices stay held."""
        return list(self._held.values())

    def forget_users(self) -> None:
        """Forgets which pods could use the claims. A kubelet that has just started may list its pods later."""
        self._users.clear()
        self._listed_since = time.monotonic()

    def set_waiting(self, claim: ClaimIdentity, reserved_for: Sequence[Mapping[str, Any]]) -> None:
        """Call it when the kubelet asks to prepare a claim."""
        pods = frozenset(printable(c.get("name")) for c in reserved_for if c.get("resource") == "pods")
        self._waiting.pop(claim.uid, None)
        self._waiting[claim.uid] = (time.monotonic(), claim.namespace, pods)
        while len(self._waiting) > _MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def set_done(self, uid: str) -> None:
        """Call it when a claim is prepared or unprepared."""
        self._waiting.pop(uid, None)

    async def held(self, gone: Sequence[Record], known: Sequence[Record]) -> set[str]:
        """Returns the UIDs of those claims in ``gone`` that a pod may still use, and reports each.

        Args:
            gone: claims that the API server did not have with their devices when it was last asked.
            known: all records. Claims that are not among them are forgotten.
        """
        wanted = {(r.uid, r.created): r for r in gone}
        reasons: dict[_Key, str] = {}
        if wanted:
            try:
                pods = await self._pods()
                reasons = {key: why for key, record in wanted.items() if (why := self._reason(key, record, pods))}
            except PodsUnknownError as e:
                reasons = dict.fromkeys(wanted, f"a pod may still use it, because {e}")
        recorded = {(r.uid, r.created) for r in known}
        self._users = {key: pods for key, pods in self._users.items() if key in recorded}
        for key in [k for k in self._held if k not in recorded or (k in wanted and k not in reasons)]:
            del self._held[key]
        for key, reason in reasons.items():
            self._report(key, wanted[key], reason)
        return {uid for uid, _ in reasons}

    def set_live(self, record: Record) -> None:
        """Call it for a claim that the API server has with its devices: other pods may use it from now on."""
        self._users.pop((record.uid, record.created), None)
        self._held.pop((record.uid, record.created), None)

    def _reason(self, key: _Key, record: Record, pods: Mapping[str, frozenset[str]]) -> str:
        """Returns why a pod may use the claim; empty if no pod can."""
        running = pods.get(record.namespace, frozenset())
        # A pod that starts later cannot use the claim: the kubelet reads the claim before it starts a pod.
        users = self._users.get(key, running) & running
        if time.monotonic() - self._listed_since >= self._settles:
            self._users[key] = users
        oldest = time.monotonic() - _RETRIED_WITHIN
        for requested_at, namespace, waiting in self._waiting.values():
            if namespace == record.namespace and requested_at > oldest:
                users -= waiting
        names = join_names(sorted(users), _NAMED)
        return f"pods of its namespace on this node may still use it ({names}): delete them" if users else ""

    def _report(self, key: _Key, record: Record, reason: str) -> None:
        text = printable(
            f"devices stay held by claim {record.shown}, which was deleted or deallocated before the kubelet unprepared it: {reason}"
        )
        self._events.warn(self._node, "DeletedClaimHeld", text)
        self._events.warn_claim(claim_subject(record.namespace, record.name, record.uid), "DeletedClaimHeld", text)
        if self._held.get(key) != text:
            fields = {**claim_fields(record), "devices": [str(d["device"]) for d in record.devices]}
            log.warning("claim without its object keeps its devices: %s", reason, extra=fields)
        self._held[key] = text

    async def _pods(self) -> Mapping[str, frozenset[str]]:
        """Returns the names of the kubelet's pods by namespace. Raises :class:`PodsUnknownError`."""
        import grpc  # not needed by the commands that read records
        import grpc.aio

        from .._proto import podresources_v1_pb2 as pb
        from .._proto import podresources_v1_pb2_grpc as pb_grpc

        options = [("grpc.max_receive_message_length", _LARGEST)]
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._socket}", options) as channel:
                listed = await pb_grpc.PodResourcesListerStub(channel).List(
                    pb.ListPodResourcesRequest(), timeout=_TIMEOUT
                )
        except grpc.aio.AioRpcError as e:
            why = clip(printable(e.details() or e.code().name), _DETAILS)
            raise PodsUnknownError(
                f"the kubelet's pods cannot be listed at {self._socket} ({why}): mount its folder into the plugin's pod as deploy/ does"
            ) from None
        out: dict[str, set[str]] = {}
        for pod in listed.pod_resources:
            out.setdefault(pod.namespace, set()).add(printable(pod.name))
        return {namespace: frozenset(names) for namespace, names in out.items()}
