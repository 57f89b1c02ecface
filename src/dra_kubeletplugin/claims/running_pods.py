"""The pods of this node, as far as claims need them: which pods wait for a claim, and which may still use a claim that was deleted.

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
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
from ..base.text import duration, join_names
from ..errors import DraError, StoppingError, clip, printable
from ..kube.event_recorder import EventRecorder, claim_subject, node_subject
from .claim_fields import ClaimIdentity
from .record import Record

log = logging.getLogger(__name__)
_TIMEOUT = 10.0  # seconds for one list
_LARGEST = 16 << 20  # bytes of a list; the kubelet's own limit for its clients
# The kubelet retries a prepare at least every two minutes. Without a call for this time in seconds, it does not want the claim any more.
_RETRIED_WITHIN = 180.0
_NAMED = 4  # pods that a sentence lists
_DETAILS = 200  # bytes of a gRPC error
_Key = tuple[str, float]  # claim UID and creation time of its record; a claim that is prepared again has the same UID


class _WaitingClaim(msgspec.Struct):
    """A claim that the kubelet asks to prepare. ``error`` is why its last prepare failed; empty if none has failed."""

    claim: ClaimIdentity
    since: float
    last: float
    pods: Set[str] = frozenset()  # names of the pods that wait for the claim, if the claim could be read
    error: str = ""
    tries: int = 0  # prepares that failed


class ClaimPods:
    """The pods that wait for claims, and the deleted claims whose devices stay held because a pod may use them.

    Args:
        socket: the kubelet's PodResources socket.
        node: the node's name, for Events.
        grace_period: seconds for which no pod may use a deleted claim before it has ended.
        clock: returns the time in seconds; it never goes back.
    """

    def __init__(
        self,
        socket: Path,
        events: EventRecorder,
        node: str,
        metrics: Metrics,
        grace_period: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = socket
        self._grace_period = grace_period
        self.clock = clock
        self._events = events
        self._node = node_subject(node)
        self._held: dict[_Key, str] = {}  # a sentence for each claim whose devices stay held
        self._users: dict[_Key, Set[str]] = {}  # the pods that could use the claim at the last check
        self._unused_since: dict[_Key, float] = {}  # when it was first seen that no pod can use the claim
        self._restarted_at = -math.inf  # a kubelet that has just started lists its pods only after it has read them
        self._waiting: dict[str, _WaitingClaim] = {}  # by UID
        metrics.measure("deleted_claims_held", lambda: len(self._held))

    # --- claims that the kubelet asks to prepare ------------------------------------------------

    def set_waiting(self, claim: ClaimIdentity, reserved_for: Sequence[Mapping[str, Any]]) -> None:
        """Call it when the kubelet asks to prepare a claim."""
        pods = frozenset(printable(c.get("name")) for c in reserved_for if c.get("resource") == "pods")
        self._waiting_claim(claim).pods = pods

    def set_failed(self, claim: ClaimIdentity, error: DraError) -> None:
        """Call it when a prepare has failed."""
        if not isinstance(error, StoppingError):
            waiting = self._waiting_claim(claim)
            waiting.error, waiting.tries = error.event(), waiting.tries + 1

    def set_done(self, uid: str) -> None:
        """Call it when a claim is prepared or unprepared."""
        self._waiting.pop(uid, None)

    def failing_prepares(self) -> Iterator[str]:
        """Yields a sentence for each claim that cannot be prepared now: the claim, its pod, the error, since when, and the last try."""
        now = self.clock()
        for waiting in self._all_waiting():
            if waiting.error:
                pod = f"pod {waiting.claim.namespace}/{min(waiting.pods)}" if len(waiting.pods) == 1 else "its pod"
                last = f"last try {duration(now - waiting.last)} ago"
                tries = f"for {duration(now - waiting.since)}, {waiting.tries} tries, " if waiting.tries > 1 else ""
                yield f"claim {waiting.claim} cannot be prepared, and {pod} does not start ({tries}{last}): {waiting.error}"

    def _waiting_claim(self, claim: ClaimIdentity) -> _WaitingClaim:
        now = self.clock()
        self._all_waiting()
        waiting = self._waiting.setdefault(claim.uid, _WaitingClaim(claim, now, now))
        waiting.last = now
        return waiting

    def _all_waiting(self) -> Sequence[_WaitingClaim]:
        """Forgets the claims that the kubelet does not want any more, and returns the others."""
        oldest = self.clock() - _RETRIED_WITHIN
        self._waiting = {uid: waiting for uid, waiting in self._waiting.items() if waiting.last > oldest}
        return list(self._waiting.values())

    # --- deleted claims -------------------------------------------------------------------------

    @property
    def notes(self) -> Sequence[str]:
        """A sentence for each claim whose devices stay held."""
        return list(self._held.values())

    def restart_grace_periods(self) -> None:
        """Call it when a kubelet has just started, or does not respond: it ends and unprepares claims later."""
        self._users.clear()
        self._unused_since.clear()
        self._restarted_at = self.clock()

    def is_unused(self, record: Record) -> bool:
        """Whether no pod could use a deleted claim when :meth:`ended` last checked it, and its grace period was not restarted since."""
        return (record.uid, record.created) in self._unused_since

    def set_live(self, record: Record) -> None:
        """Call it for a claim that the API server has with its devices: other pods may use it from now on."""
        self._users.pop((record.uid, record.created), None)
        self._unused_since.pop((record.uid, record.created), None)
        self._held.pop((record.uid, record.created), None)

    async def ended(self, gone: Sequence[Record], known: Sequence[Record]) -> list[Record]:
        """Returns the claims in ``gone`` that no pod could use for the whole grace period. Reports the claims that a pod may use.

        Args:
            gone: claims that the API server did not have with their devices when it was last asked.
            known: all records. Claims that are not among them are forgotten.
        """
        recorded = {(r.uid, r.created) for r in known}
        self._held = {key: text for key, text in self._held.items() if key in recorded}
        self._users = {key: pods for key, pods in self._users.items() if key in recorded}
        self._unused_since = {key: since for key, since in self._unused_since.items() if key in recorded}
        pods = await self._pods() if gone else {}
        now, waiting = self.clock(), self._all_waiting()
        out = []
        for record in gone:
            key = (record.uid, record.created)
            if isinstance(pods, str):
                reason = f"a pod may still use it, because {pods}"
            else:
                running = pods.get(record.namespace, set())
                # A pod that starts later cannot use the claim: the kubelet reads the claim before it starts a pod.
                users = self._users.get(key, running) & running
                if now - self._restarted_at >= self._grace_period:
                    self._users[key] = users
                for other in waiting:
                    if other.claim.namespace == record.namespace:
                        users = users - other.pods
                names = join_names(sorted(users), _NAMED)
                reason = f"pods of its namespace on this node may still use it ({names}): delete them" if users else ""
            if reason:
                self._unused_since.pop(key, None)
                self._report(key, record, reason)
                continue
            self._held.pop(key, None)
            if now - self._unused_since.setdefault(key, now) >= self._grace_period:
                out.append(record)
        return out

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

    async def _pods(self) -> Mapping[str, set[str]] | str:
        """Returns the names of the kubelet's pods by namespace, or why they are not known."""
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
            return f"the kubelet's pods cannot be listed at {self._socket} ({why}): mount its folder into the plugin's pod as deploy/ does"
        out: dict[str, set[str]] = {}
        for pod in listed.pod_resources:
            out.setdefault(pod.namespace, set()).add(printable(pod.name))
        return out
