"""The claim manager of the kubelet: prepares and unprepares claims, and keeps track of the pods that use them.

It saves its state in a checkpoint file, so that the state survives a restart. One call to a driver contains all claims
of a pod that have devices of this driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec

from dra_kubeletplugin.resourceapi.allocation import results_of

from ...kubernetes_releases import KubeletBehavior
from .plugins import PluginWatcher

log = logging.getLogger(__name__)
_PREPARE, _UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"


class PrepareError(Exception):
    """A claim could not be prepared or unprepared. The text is the same as a real kubelet's, and becomes the pod's event."""


@dataclass(frozen=True)
class PreparedDevice:
    """A driver's result for one device. If ``requests`` is empty, the device is for all requests of the claim."""

    requests: list[str]
    pool: str
    device: str
    cdi: list[str]
    share: str = ""

    def serves(self, request: str) -> bool:
        return not request or not self.requests or request in self.requests


@dataclass
class ClaimInfo:
    """A claim that at least one pod of this node uses.

    Attributes:
        devices: results by driver. A result is kept even if another claim in the same call failed.
        ready: whether a pod uses the claim for which all calls succeeded, for this claim and for the pod's other claims.
        skipped: by driver, the methods that all devices of the driver in this claim skip (KEP-5945).
        left: UIDs of pods that used the claim and have ended, while another pod still uses the claim.
    """

    namespace: str
    name: str
    uid: str
    drivers: list[str] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)
    devices: dict[str, list[PreparedDevice]] = field(default_factory=dict)
    ready: bool = False
    skipped: dict[str, list[str]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def calls(self, method: str) -> list[str]:
        """Returns the drivers whose ``method`` must be called: all drivers except those whose devices skip it."""
        return [d for d in self.drivers if method not in self.skipped.get(d, ())]

    @classmethod
    def from_checkpoint(cls, entry: Mapping[str, Any]) -> ClaimInfo:
        """Reads an entry of the checkpoint.

        Raises:
            KeyError, TypeError: the entry is malformed.
        """
        devices = {d: [PreparedDevice(**p) for p in prepared] for d, prepared in entry["devices"].items()}
        names = {k: entry[k] for k in ("namespace", "name", "uid", "drivers", "pods")}
        ready = entry.get("ready", all(d in devices for d in names["drivers"]))
        skipped, left = dict(entry.get("skipped") or {}), list(entry.get("left") or [])
        return cls(**names, devices=devices, ready=ready, skipped=skipped, left=left)


class ClaimManager:
    """Prepares and unprepares claims. ``claims`` contains the claims in use, by UID.

    Like a real kubelet, it refuses to prepare a claim while an older claim of the same name is prepared.

    Args:
        timeout: time limit of a call in seconds.
        behavior: the behavior of the simulated release's kubelet.
        named: returns namespace and name of each claim that a pending pod refers to, from the pod's UID. For other pods,
            returns an empty set.
    """

    def __init__(
        self,
        plugins: PluginWatcher,
        checkpoint: Path,
        timeout: float,
        behavior: KubeletBehavior,
        named: Callable[[str], Collection[tuple[str, str]]],
    ) -> None:
        self.plugins = plugins
        self.behavior = behavior
        self.named = named
        self.checkpoint = checkpoint
        self.timeout = timeout
        self.claims: dict[str, ClaimInfo] = {}
        self._saved = b""  # the content that this process last wrote to the checkpoint
        self._locks: dict[str, asyncio.Lock] = {}  # by UID of a claim: only one call at a time is in flight for a claim
        self._load()

    def _load(self) -> None:
        try:
            entries = json.loads(self.checkpoint.read_text())
            self.claims = {entry["uid"]: ClaimInfo.from_checkpoint(entry) for entry in entries}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as e:
            aside = self.checkpoint.with_suffix(".unreadable")
            with contextlib.suppress(OSError):
                self.checkpoint.rename(aside)
            log.error(
                "kubelet: cannot read the checkpoint %s (%s); it was renamed to %s, and its prepared claims are forgotten",
                self.checkpoint,
                e,
                aside,
            )

    def _save(self) -> None:
        """Writes the checkpoint if its content changed. Repeated attempts for a pod that cannot be prepared then write nothing."""
        content = msgspec.json.encode(list(self.claims.values()))
        if content == self._saved:
            return
        temporary = self.checkpoint.with_suffix(".tmp")
        with temporary.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        temporary.rename(self.checkpoint)
        self._saved = content

    def forget_prepared(self) -> None:
        """Marks every claim as not prepared, as after a reboot."""
        for info in self.claims.values():
            info.devices.clear()
            info.ready = False
        self._save()

    @contextlib.asynccontextmanager
    async def _locked(self, uids: Sequence[str]) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for uid in sorted(uids):
                await stack.enter_async_context(self._locks.setdefault(uid, asyncio.Lock()))
            yield
        for uid in uids:
            if uid not in self.claims and (lock := self._locks.get(uid)) and not lock.locked():
                del self._locks[uid]

    async def prepare(self, pod_uid: str, claims: Sequence[Mapping[str, Any]]) -> None:
        """Prepares a pod's claims, with one call per driver.

        Args:
            claims: ResourceClaim objects with an allocation.

        Raises:
            PrepareError: a driver is not registered, or it failed for a claim.
        """
        uids = [c["metadata"]["uid"] for c in claims]
        known = [info for uid in uids if (info := self.claims.get(uid)) is not None and info.ready]
        if self.behavior.joins_unprepare and len(known) == len(uids):
            self._join(pod_uid, known)
            return
        async with self._locked(uids):
            await self._prepare(pod_uid, claims)

    def _join(self, pod_uid: str, infos: Sequence[ClaimInfo]) -> None:
        for info in infos:
            if pod_uid not in info.pods:
                info.pods.append(pod_uid)
        self._save()

    async def _prepare(self, pod_uid: str, claims: Sequence[Mapping[str, Any]]) -> None:
        batches: dict[str, list[ClaimInfo]] = {}
        infos = [self._info(claim) for claim in claims]
        for info in infos:
            self.claims[info.uid] = info
            if not info.ready:
                for driver in info.calls(_PREPARE):
                    batches.setdefault(driver, []).append(info)
        self._join(pod_uid, infos)
        for driver in batches:
            if self.plugins.newest(driver) is None:
                raise PrepareError(f"DRA driver {driver} is not registered")
        for driver, batch in batches.items():
            response = await self._call(driver, _PREPARE, batch)
            for uid in response.claims:
                if uid not in {i.uid for i in batch}:
                    raise PrepareError(f"NodePrepareResources returned result for unknown claim UID {uid}")
            failed: PrepareError | None = None
            for info in batch:
                if info.uid not in response.claims:
                    continue
                result = response.claims[info.uid]
                if result.error:
                    failed = failed or PrepareError(
                        f"NodePrepareResources failed for ResourceClaim {info.name}: {result.error}"
                    )
                    continue
                kept = info.devices.get(driver, []) if self.behavior.prepares_again else []
                info.devices[driver] = kept + [_device(d) for d in result.devices]
            self._save()
            if failed:
                raise failed
            if missing := [i for i in batch if i.uid not in response.claims]:
                raise PrepareError(f"NodePrepareResources skipped {len(missing)} ResourceClaims")
        for info in infos:
            info.ready = True
        self._save()

    def _info(self, claim: Mapping[str, Any]) -> ClaimInfo:
        meta = claim["metadata"]
        info = self.claims.get(meta["uid"])
        if info is not None:
            return info
        for other in self.claims.values():
            if (other.namespace, other.name) == (meta["namespace"], meta["name"]):
                raise PrepareError(
                    f"old ResourceClaim with same name {other.name} and different UID {other.uid} still exists"
                )
        results = results_of(claim)
        drivers = sorted({r["driver"] for r in results})
        skipped = {d: found for d in drivers if (found := _skipped([r for r in results if r["driver"] == d]))}
        return ClaimInfo(meta["namespace"], meta["name"], meta["uid"], drivers, skipped=skipped)

    def uses(self, pod_uid: str) -> bool:
        """Returns whether claims may have to be unprepared when the pod ends."""
        return any(pod_uid in i.pods for i in self.claims.values()) or bool(self._claims_of_other_pod(pod_uid))

    def _claims_of_other_pod(self, pod_uid: str) -> list[ClaimInfo]:
        """Returns the claims that this pod refers to but does not use, and that exactly one other pod uses.

        Some kubelet releases unprepare such a claim when this pod ends, although the other pod still uses it.
        """
        if not self.behavior.unprepares_in_use:
            return []
        named = self.named(pod_uid)
        return [
            i
            for i in self.claims.values()
            if (i.namespace, i.name) in named and len(i.pods) == 1 and pod_uid not in {*i.pods, *i.left}
        ]

    def pods(self) -> set[str]:
        """Returns the UIDs of all pods that use claims."""
        return {uid for i in self.claims.values() for uid in i.pods}

    async def unprepare(self, pod_uid: str) -> None:
        """Unprepares the claims that only this pod uses, and :meth:`_claims_of_other_pod`. From other claims, removes the pod.

        Raises:
            PrepareError: a driver failed for a claim. The next call of this method retries it.
        """
        others = self._claims_of_other_pod(pod_uid)
        uids = [i.uid for i in self.claims.values() if pod_uid in i.pods]
        async with self._locked([*uids, *(i.uid for i in others)]):
            await self._unprepare(pod_uid, others)

    async def _unprepare(self, pod_uid: str, others: Sequence[ClaimInfo]) -> None:
        batches: dict[str, list[ClaimInfo]] = {}
        last = [i for i in self.claims.values() if i.pods == [pod_uid]] + [i for i in others if i.uid in self.claims]
        for info in self.claims.values():
            if pod_uid in info.pods and len(info.pods) > 1:
                info.pods.remove(pod_uid)
                info.left.append(pod_uid)
        for info in last:
            info.drivers = info.calls(_UNPREPARE)
            for driver in info.drivers:
                batches.setdefault(driver, []).append(info)
        failed: PrepareError | None = None
        for driver, infos in batches.items():
            try:
                response = await self._call(driver, _UNPREPARE, infos)
            except PrepareError as e:
                failed = failed or e
                continue
            for info in infos:
                if info.uid not in response.claims:
                    failed = failed or PrepareError("NodeUnprepareResources skipped 1 ResourceClaims")
                elif error := response.claims[info.uid].error:
                    failed = failed or PrepareError(
                        f"NodeUnprepareResources failed for ResourceClaim {info.name}: {error}"
                    )
                else:
                    info.devices.pop(driver, None)
                    info.drivers.remove(driver)
        for info in last:
            if not info.drivers:
                self.claims.pop(info.uid, None)
        self._save()
        if failed:
            raise failed

    async def _call(self, driver: str, method: str, infos: list[ClaimInfo]) -> Any:
        plugin = self.plugins.newest(driver)
        if plugin is None:
            raise PrepareError(f"DRA driver {driver} is not registered")
        pb = plugin.messages
        claims = [pb.Claim(namespace=i.namespace, name=i.name, uid=i.uid) for i in infos]
        request = getattr(pb, f"{method}Request")(claims=claims)
        try:
            return await getattr(plugin.stub, method)(request, timeout=self.timeout)
        except grpc.aio.AioRpcError as e:
            name = e.code().name.title().replace("_", "")
            raise PrepareError(f"{method}: rpc error: code = {name} desc = {e.details()}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The plugin's socket was removed during the call, which closed its connection.
            raise PrepareError(
                f"{method}: rpc error: code = Canceled desc = grpc: the client connection is closing"
            ) from None

    # --- devices of containers ------------------------------------------------------------------

    def devices(self, namespace: str, claim: str, request: str = "") -> Iterator[tuple[ClaimInfo, str, PreparedDevice]]:
        """Iterates over the prepared devices of a claim as (claim, driver, device).

        Args:
            request: the request whose devices are returned; empty for all requests.
        """
        for info in self.claims.values():
            if (info.namespace, info.name) == (namespace, claim):
                for driver, devices in info.devices.items():
                    for device in devices:
                        if device.serves(request):
                            yield info, driver, device

    def cdi_ids(self, namespace: str, wanted: Sequence[tuple[str, str]]) -> list[str]:
        """Returns the CDI ids for pairs of claim name and request, each id once. An empty request selects all requests."""
        found: dict[str, None] = {}
        for claim, request in wanted:
            for _, _, device in self.devices(namespace, claim, request):
                found.update(dict.fromkeys(device.cdi))
        return list(found)

    def in_use(self) -> dict[str, int]:
        """Returns the values of the metric ``dra_resource_claims_in_use``: claims by driver, and ``<any>`` for all drivers."""
        found = Counter(driver for info in self.claims.values() for driver in info.drivers)
        return {"<any>": len(self.claims), **found}


def _skipped(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the methods that all devices of a driver skip."""
    operations = [set(r.get("skipNodeOperations") or ()) for r in results]
    return [m for m in (_PREPARE, _UNPREPARE) if all({m, "*"} & found for found in operations)]


def _device(d: Any) -> PreparedDevice:
    share = d.share_id if "share_id" in d.DESCRIPTOR.fields_by_name else ""  # v1beta1 has no share ids
    return PreparedDevice(list(d.request_names), d.pool_name, d.device_name, list(d.cdi_device_ids), share)
