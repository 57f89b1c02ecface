"""The records of bound claims: one ConfigMap for each claim in the controller's namespace, written before ``bind`` is called.

A deallocation removes the claim's ``status.devices``, and a deletion removes the claim, so the claim does not show which devices must be
unbound. To write a ConfigMap, the controller needs no permission to change users' claims. A ConfigMap is created once and deleted by
resource version, so a former leader cannot undo the work of its successor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from dataclasses import dataclass

import msgspec

from ....base.json_types import JSON
from ....claims.claim_fields import DeviceKey
from ....driver import BoundClaim, BoundDevice
from ....errors import describe
from ....kube import KubeClient
from ....kube.errors import NotFoundError
from ....kube.resource import CONFIG_MAPS
from .claims import AllocatedClaim, BoundClaimIdentity

log = logging.getLogger(__name__)
_LABEL = "dra-kubeletplugin.dev/bound-by"
_FIELD = "claim"
_VERSION = 1


class _RecordedDevice(msgspec.Struct):
    request: str
    pool: str
    name: str
    share: str = ""
    admin: bool = False


class _Doc(msgspec.Struct):
    version: int
    namespace: str
    name: str
    uid: str
    node: str
    stamp: str
    devices: list[_RecordedDevice]


@dataclass(frozen=True)
class BindingRecord:
    """The record of a claim whose devices are bound, or may be bound."""

    claim: BoundClaim
    stamp: str
    exclusive: frozenset[DeviceKey]
    object: str = ""  # name of the ConfigMap
    version: str = ""  # its resource version

    @property
    def identity(self) -> BoundClaimIdentity:
        devices = frozenset((d.pool, d.name, d.share_id or "") for d in self.claim.devices)
        return BoundClaimIdentity(self.claim.node, self.stamp, devices)


class BindingRecords:
    """The records of one driver."""

    def __init__(self, client: KubeClient, namespace: str, driver: str) -> None:
        self.client = client
        self.namespace = namespace
        self.driver = driver
        self.unreadable: dict[str, str] = {}
        """ConfigMaps that cannot be read, by name with the reason; they are kept unchanged."""

    async def load(self) -> list[BindingRecord]:
        """Reads all records.

        Raises:
            ApiError: the records cannot be listed.
        """
        out = []
        self.unreadable = {}
        found = await self.client.list(CONFIG_MAPS, self.namespace, labels=f"{_LABEL}={self.driver}")
        for obj in found["items"]:
            try:
                out.append(_read(obj))
            except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError) as e:
                self.unreadable[obj["metadata"]["name"]] = describe(e)
        for name, why in self.unreadable.items():
            log.error(
                "cannot read the record of a bound claim, so it stays bound: ConfigMap %s/%s: %s",
                self.namespace,
                name,
                why,
            )
        return out

    async def create(self, of: AllocatedClaim) -> BindingRecord:
        """Writes the record of a claim, before ``bind`` is called for it.

        Raises:
            ApiError: the record cannot be written; ``ConflictError`` if another leader has written one.
        """
        doc = _Doc(
            _VERSION,
            of.claim.namespace,
            of.claim.name,
            of.claim.uid,
            of.node,
            of.stamp,
            [_RecordedDevice(r.request, r.pool, r.device, r.share_id or "", bool(r.admin_access)) for r in of.waiting],
        )
        made = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": f"{self.driver}-{of.claim.uid}",
                "namespace": self.namespace,
                "labels": {_LABEL: self.driver, "app.kubernetes.io/managed-by": "dra-kubeletplugin"},
            },
            "immutable": True,
            "data": {_FIELD: msgspec.json.encode(doc).decode()},
        }
        meta = (await self.client.create(CONFIG_MAPS, made))["metadata"]
        return dataclasses.replace(_record_from(doc), object=meta["name"], version=meta["resourceVersion"])

    async def delete(self, record: BindingRecord) -> None:
        """Deletes a record after ``unbind``. A missing record is not an error.

        Raises:
            ApiError: the record cannot be deleted; ``ConflictError`` if it was replaced.
        """
        with contextlib.suppress(NotFoundError):
            await self.client.delete(CONFIG_MAPS, record.object, self.namespace, version=record.version)


def _read(obj: JSON) -> BindingRecord:
    meta = obj["metadata"]
    doc = msgspec.json.decode(obj["data"][_FIELD].encode(), type=_Doc)
    if doc.version > _VERSION:
        raise ValueError(f"version {doc.version} is newer than {_VERSION}: use the newer controller")
    return dataclasses.replace(_record_from(doc), object=meta["name"], version=meta["resourceVersion"])


def _record_from(doc: _Doc) -> BindingRecord:
    devices = [BoundDevice(request=d.request, pool=d.pool, name=d.name, share_id=d.share or None) for d in doc.devices]
    claim = BoundClaim(namespace=doc.namespace, name=doc.name, uid=doc.uid, node=doc.node, devices=devices)
    return BindingRecord(claim, doc.stamp, frozenset((d.pool, d.name, d.share) for d in doc.devices if not d.admin))
