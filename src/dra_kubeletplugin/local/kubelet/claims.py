"""The claim manager: what is prepared for which pods, kept in a file over restarts, calls in batches per driver."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from .plugins import PluginWatcher

log = logging.getLogger(__name__)
JSON = dict[str, Any]


class PrepareError(Exception):
    """In the kubelet's own words, as they show in the pod's event."""


@dataclass
class ClaimInfo:
    """A claim that some pod of this node uses. ``devices`` are a driver's answers once it is prepared."""

    namespace: str
    name: str
    uid: str
    drivers: list[str] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)
    devices: dict[str, list[JSON]] = field(default_factory=dict)

    @property
    def prepared(self) -> bool:
        return all(d in self.devices for d in self.drivers)


class ClaimManager:
    def __init__(self, plugins: PluginWatcher, checkpoint: Path, timeout: float) -> None:
        self.plugins = plugins
        self.checkpoint = checkpoint
        self.timeout = timeout
        self.claims: dict[str, ClaimInfo] = {}
        self.calls: list[tuple[str, str, list[str]]] = []  # driver, method, claim UIDs
        self._load()

    def _load(self) -> None:
        if self.checkpoint.exists():
            for entry in json.loads(self.checkpoint.read_text()):
                self.claims[entry["uid"]] = ClaimInfo(**entry)

    def _save(self) -> None:
        temporary = self.checkpoint.with_suffix(".tmp")
        temporary.write_text(json.dumps([vars(c) for c in self.claims.values()]))
        temporary.rename(self.checkpoint)

    def forget_prepared(self) -> None:
        """After a reboot every claim is prepared again."""
        for info in self.claims.values():
            info.devices.clear()
        self._save()

    async def prepare(self, pod_uid: str, claims: Sequence[Mapping[str, Any]]) -> None:
        """Prepares a pod's claims, in one call per driver.

        Raises :class:`PrepareError`.
        """
        batches: dict[str, list[ClaimInfo]] = {}
        for claim in claims:
            info = self._info(claim)
            if pod_uid not in info.pods:
                info.pods.append(pod_uid)
            for driver in info.drivers:
                if driver not in info.devices:
                    batches.setdefault(driver, []).append(info)
        self._save()
        for driver, infos in batches.items():
            answer = await self._call(driver, "NodePrepareResources", infos)
            for uid in answer.claims:
                if uid not in {i.uid for i in infos}:
                    raise PrepareError(f"NodePrepareResources returned result for unknown claim UID {uid}")
            failed: PrepareError | None = None
            for info in infos:
                if info.uid not in answer.claims:
                    continue
                result = answer.claims[info.uid]
                if result.error:
                    failed = failed or PrepareError(
                        f"NodePrepareResources failed for ResourceClaim {info.name}: {result.error}"
                    )
                    continue
                info.devices[driver] = [_device(d) for d in result.devices]
            self._save()
            if failed:
                raise failed
            if missing := [i for i in infos if i.uid not in answer.claims]:
                raise PrepareError(f"NodePrepareResources skipped {len(missing)} ResourceClaims")

    def _info(self, claim: Mapping[str, Any]) -> ClaimInfo:
        meta = claim["metadata"]
        info = self.claims.get(meta["uid"])
        if info is None:
            results = claim["status"]["allocation"]["devices"].get("results") or []
            drivers = sorted({r["driver"] for r in results})
            info = ClaimInfo(meta["namespace"], meta["name"], meta["uid"], drivers)
            self.claims[info.uid] = info
        return info

    async def unprepare(self, pod_uid: str) -> None:
        """Unprepares what no other pod uses.

        Raises :class:`PrepareError`; what failed is tried again by the next call.
        """
        batches: dict[str, list[ClaimInfo]] = {}
        last = [i for i in self.claims.values() if pod_uid in i.pods and len(i.pods) == 1]
        for info in self.claims.values():
            if pod_uid in info.pods and len(info.pods) > 1:
                info.pods.remove(pod_uid)
        for info in last:
            for driver in info.drivers:
                batches.setdefault(driver, []).append(info)
        failed: PrepareError | None = None
        for driver, infos in batches.items():
            try:
                answer = await self._call(driver, "NodeUnprepareResources", infos)
            except PrepareError as e:
                failed = failed or e
                continue
            for info in infos:
                if info.uid not in answer.claims:
                    failed = failed or PrepareError("NodeUnprepareResources skipped 1 ResourceClaims")
                elif error := answer.claims[info.uid].error:
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
        self.calls.append((driver, method, [i.uid for i in infos]))
        try:
            return await getattr(plugin.stub, method)(request, timeout=self.timeout)
        except grpc.aio.AioRpcError as e:
            name = e.code().name.title().replace("_", "")
            raise PrepareError(f"{method}: rpc error: code = {name} desc = {e.details()}") from None

    def cdi_ids(self, names: Mapping[str, str], wanted: Sequence[Mapping[str, Any]], namespace: str) -> list[str]:
        """CDI ids for a container's ``resources.claims``; ``names`` maps the pod's names to claims."""
        out: list[str] = []
        for entry in wanted:
            for info in self.claims.values():
                if info.namespace != namespace or info.name != names.get(entry["name"]):
                    continue
                for devices in info.devices.values():
                    for d in devices:
                        if not entry.get("request") or not d["requests"] or entry["request"] in d["requests"]:
                            out += [i for i in d["cdi"] if i not in out]
        return out


def _device(d: Any) -> JSON:
    return {
        "requests": list(d.request_names),
        "pool": d.pool_name,
        "device": d.device_name,
        "cdi": list(d.cdi_device_ids),
    }
