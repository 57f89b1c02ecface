"""The scheduling queue: pods to be tried now, pods in backoff, and pods that wait for a change of the cluster.

As in Kubernetes, pods are tried by priority, then by time in the queue. After an error, a pod waits 1 s. Each further
error doubles the wait, up to 10 s. A rejected pod is parked: it waits for a change that may make it schedulable, but at
most about five minutes. Changes during the pod's own scheduling cycle count too.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dra_kubeletplugin.base.wakeup import is_set_within

from ...scheduling.framework.pod_info import PodInfo
from ...scheduling.framework.queueing_hints import ChangeKind, ClusterChange, helps
from ...scheduling.framework.status import Plugin

FIRST_BACKOFF = 1.0
MAX_BACKOFF = 10.0
MAX_PARKED = 300.0  # seconds after which a rejected pod is tried again without a change


@dataclass(eq=False)
class QueuedPod:
    """A pod in the queue. ``rejectors`` is empty after an error."""

    info: PodInfo
    since: float  # loop time at which the pod was added, or at which its last cycle failed
    number: int
    rejectors: frozenset[Plugin] = frozenset()
    failures: int = 0
    errors: int = 0
    not_before: float = 0.0

    @property
    def order(self) -> tuple[int, float, int]:
        return -self.info.priority, self.since, self.number


@dataclass
class _Cycle:
    entry: QueuedPod
    seen: int  # number of changes logged before the cycle began


class SchedulingQueue:
    """The pods that wait for the scheduler.

    Args:
        gate: returns the plugin that rejects a pod before it is tried, or None.
        uses: returns whether a pod uses a claim. It is called with the pod and the claim's UID.
        pause: length of the first backoff in seconds.
    """

    def __init__(
        self,
        gate: Callable[[PodInfo], Plugin | None],
        uses: Callable[[PodInfo, str], bool],
        pause: float = FIRST_BACKOFF,
    ) -> None:
        self._gate = gate
        self._uses = uses
        self._pause = pause
        self._entries: dict[str, QueuedPod] = {}
        self._active: list[tuple[tuple[int, float, int], str]] = []
        self._ready: set[str] = set()  # UIDs of the entries that are in the heap
        self._backing_off: set[str] = set()
        self._parked: dict[str, QueuedPod] = {}  # pods that wait for a change
        # UIDs of parked pods that the gate rejected; they wait until the pod or one of its claims changes
        self._gated: set[str] = set()
        self._by_claim: dict[str, set[str]] = {}  # UIDs of parked pods, by the key of each claim that they use
        self._last_flush = 0.0
        self._cycles: dict[str, _Cycle] = {}
        self._log: deque[ClusterChange] = deque()
        self._logged = 0
        self._number = 0
        self._wake = asyncio.Event()

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries or uid in self._cycles

    # --- pods -----------------------------------------------------------------------------------

    def add(self, info: PodInfo) -> None:
        """Adds a new pod."""
        self._number += 1
        entry = self._entries[info.uid] = QueuedPod(info, self._now(), self._number)
        self._activate(entry)

    def update(self, info: PodInfo, changes: list[ClusterChange]) -> None:
        """Updates a pod that is in the queue or in a scheduling cycle. Adds the pod if it is unknown."""
        if cycle := self._cycles.get(info.uid):
            cycle.entry.info = info
        elif entry := self._entries.get(info.uid):
            parked, gated = info.uid in self._parked, info.uid in self._gated
            self._unpark(info.uid)
            entry.info = info
            if parked:
                self._park(entry)
            if gated:
                self._gated.add(info.uid)
        else:
            self.add(info)
            return
        for change in changes:
            self.move(change)

    def remove(self, uid: str) -> None:
        """Removes a pod that was deleted or has a node."""
        self._entries.pop(uid, None)
        self._ready.discard(uid)
        self._backing_off.discard(uid)
        self._unpark(uid)
        self._cycles.pop(uid, None)
        self._trim()

    async def pop(self) -> QueuedPod:
        """Waits for the next pod, and begins its cycle. Call :meth:`failed` or :meth:`done` at the end of the cycle."""
        while True:
            self._activate_due_pods()
            while self._active:
                order, uid = heapq.heappop(self._active)
                entry = self._entries.get(uid)
                if entry is None or uid not in self._ready or entry.order != order:
                    continue
                self._ready.discard(uid)
                del self._entries[uid]
                self._cycles[uid] = _Cycle(entry, self._logged)
                return entry
            self._wake.clear()
            await is_set_within(self._wake, self._time_to_next_pod())

    def done(self, uid: str) -> None:
        """Ends the cycle of a pod that has a node."""
        self._cycles.pop(uid, None)
        self._trim()

    def failed(self, entry: QueuedPod, rejectors: frozenset[Plugin]) -> None:
        """Ends a failed cycle, and puts the pod back into the queue unless it was removed during the cycle.

        Args:
            rejectors: the plugins that rejected the pod; empty after an error.
        """
        cycle = self._cycles.pop(entry.info.uid, None)
        if cycle is None:
            return
        missed = list(self._log)[len(self._log) - (self._logged - cycle.seen) :] if self._logged > cycle.seen else []
        self._trim()
        entry.rejectors = rejectors
        entry.failures += 1
        entry.errors = 0 if rejectors else entry.errors + 1
        entry.since = self._now()
        self._entries[entry.info.uid] = entry
        if not rejectors:
            entry.not_before = self._now() + min(MAX_BACKOFF, self._pause * 2 ** min(entry.errors - 1, 16))
            self._backing_off.add(entry.info.uid)
            self._wake.set()
        elif any(self._helps(c, entry) for c in missed):
            self._activate(entry)
        else:
            self._park(entry)

    # --- changes --------------------------------------------------------------------------------

    def move(self, change: ClusterChange) -> None:
        """Activates the pods that a change may make schedulable."""
        if self._cycles:
            self._log.append(change)
        self._logged += 1
        for entry in [e for e in self._concerned(change) if self._helps(change, e)]:
            self._activate(entry)

    def _concerned(self, change: ClusterChange) -> list[QueuedPod]:
        """Returns the parked pods that a change may make schedulable, so that not every pod must be checked."""
        if change.kind is ChangeKind.OWN:
            return [self._parked[change.pod]] if change.pod in self._parked else []
        if change.kind is ChangeKind.CLAIM and not change.frees:
            return [self._parked[uid] for uid in self._by_claim.get(change.claim, ())]
        return [e for uid, e in self._parked.items() if uid not in self._gated]

    def _helps(self, change: ClusterChange, entry: QueuedPod) -> bool:
        return helps(change, entry.info.uid, entry.rejectors, lambda claim: self._uses(entry.info, claim))

    def _activate(self, entry: QueuedPod) -> None:
        self._unpark(entry.info.uid)
        blocked = self._gate(entry.info)
        if blocked is not None:
            entry.rejectors = frozenset({blocked})
            self._gated.add(entry.info.uid)
            self._park(entry)
            return
        self._ready.add(entry.info.uid)
        heapq.heappush(self._active, (entry.order, entry.info.uid))
        self._wake.set()

    def _park(self, entry: QueuedPod) -> None:
        uid = entry.info.uid
        self._parked[uid] = entry
        for claim in entry.info.claim_keys:
            self._by_claim.setdefault(claim, set()).add(uid)

    def _unpark(self, uid: str) -> None:
        self._gated.discard(uid)
        entry = self._parked.pop(uid, None)
        if entry is None:
            return
        for claim in entry.info.claim_keys:
            waiting = self._by_claim[claim]
            waiting.discard(uid)
            if not waiting:
                del self._by_claim[claim]

    # --- time -----------------------------------------------------------------------------------

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _activate_due_pods(self) -> None:
        moment = self._now()
        for uid in [u for u in self._backing_off if self._entries[u].not_before <= moment]:
            self._backing_off.discard(uid)
            self._activate(self._entries[uid])
        if moment - self._last_flush < MAX_PARKED / 10:
            return
        self._last_flush = moment
        for entry in [
            e for e in self._parked.values() if e.info.uid not in self._gated and moment - e.since > MAX_PARKED
        ]:
            self._activate(entry)

    def _time_to_next_pod(self) -> float:
        soonest = min((self._entries[u].not_before for u in self._backing_off), default=self._now() + MAX_PARKED / 10)
        return max(0.0, min(soonest - self._now(), MAX_PARKED / 10))

    def _trim(self) -> None:
        """Deletes the logged changes that happened before all running cycles began."""
        oldest = min((f.seen for f in self._cycles.values()), default=self._logged)
        while self._log and len(self._log) > self._logged - oldest:
            self._log.popleft()
