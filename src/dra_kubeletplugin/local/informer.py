"""What the cluster's components share: copies of objects, one wake-up for all changes, events, writes that may lose a race."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ApiError
from ..kube import KubeClient, Reflector, Resource
from ..resources.convert import GROUP
from ..resources.defaults import now

log = logging.getLogger(__name__)
JSON = dict[str, Any]

PODS = Resource("", "v1", "pods", namespaced=True)
NODES = Resource("", "v1", "nodes")
EVENTS = Resource("", "v1", "events", namespaced=True)
CLAIMS = Resource(GROUP, "v1", "resourceclaims", namespaced=True)
TEMPLATES = Resource(GROUP, "v1", "resourceclaimtemplates", namespaced=True)
CLASSES = Resource(GROUP, "v1", "deviceclasses")
SLICES = Resource(GROUP, "v1", "resourceslices")

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


class Informers:
    """Copies of some resources. ``changed`` is set whenever one of them changes."""

    def __init__(self, client: KubeClient, resources: Mapping[Resource, str]) -> None:
        self.client = client
        self.changed = asyncio.Event()
        self._reflectors = {r: Reflector(client, r, fields=fields) for r, fields in resources.items()}
        self._synced = dict.fromkeys(resources, False)

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        for resource, reflector in self._reflectors.items():
            tasks.create_task(self._follow(resource, reflector), name=f"informer {resource.plural}")

    async def _follow(self, resource: Resource, reflector: Reflector) -> None:
        async for event in reflector.events():
            if event.type == "SYNCED":
                self._synced[resource] = True
            self.changed.set()

    @property
    def synced(self) -> bool:
        return all(self._synced.values())

    def all(self, resource: Resource) -> list[JSON]:
        return list(self._reflectors[resource].items.values())

    def find(self, resource: Resource, name: str, namespace: str = "") -> JSON | None:
        for obj in self._reflectors[resource].items.values():
            meta = obj["metadata"]
            if meta["name"] == name and (not namespace or meta.get("namespace") == namespace):
                return obj
        return None

    async def loop(self, reconcile: Callable[[], Any], resync: float = 5.0) -> None:
        """Calls ``reconcile`` after changes, and every ``resync`` seconds. Never returns."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(resync):
                    await self.changed.wait()
            self.changed.clear()
            if not self.synced:
                continue
            try:
                await reconcile()
            except ApiError as e:
                # A lost race shows as a conflict; the next event or resync brings the newer object.
                log.debug("%s, trying again", e)
                await asyncio.sleep(0.02)
                self.changed.set()


async def record_event(
    client: KubeClient, obj: Mapping[str, Any], kind: str, type: str, reason: str, message: str, component: str
) -> None:
    """An Event about ``obj``; a server that is away loses it."""
    meta = obj["metadata"]
    namespace = meta.get("namespace", "default")
    event = {
        "metadata": {"generateName": f"{meta['name']}.", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1" if kind == "Pod" else f"{GROUP}/v1",
            "kind": kind,
            "name": meta["name"],
            "namespace": namespace,
            "uid": meta["uid"],
        },
        "type": type,
        "reason": reason,
        "message": message[:1024],
        "source": {"component": component},
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "count": 1,
    }
    with contextlib.suppress(ApiError):
        await client.create(EVENTS, event, namespace)


def pod_claim_names(pod: Mapping[str, Any]) -> dict[str, str | None]:
    """Name in the pod → name of the ResourceClaim; None while it is not made, empty where none is needed."""
    made = {s["name"]: s.get("resourceClaimName") for s in (pod.get("status") or {}).get("resourceClaimStatuses") or []}
    out: dict[str, str | None] = {}
    for entry in pod["spec"].get("resourceClaims") or []:
        if direct := entry.get("resourceClaimName"):
            out[entry["name"]] = direct
        elif entry["name"] in made:
            out[entry["name"]] = made[entry["name"]] or ""
        else:
            out[entry["name"]] = None
    return out


def is_finished(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def owned_by(obj: Mapping[str, Any], uid: str) -> bool:
    return any(o["uid"] == uid for o in obj["metadata"].get("ownerReferences") or [])
