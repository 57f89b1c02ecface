"""Resource quotas: rejects objects over quota, and updates the quotas' status."""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import JSON

from ...quotas import Amounts, applies, charges, exceeded, hard_of, missing_resources, used_of
from .requests import RequestInfo, forbidden
from .storage import Storage

_QUOTAS, _CLASSES = "resourcequotas", "deviceclasses.resource.k8s.io"


class Quotas:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def admit(self, target: RequestInfo, obj: JSON, old: JSON | None) -> None:
        """Raises :class:`StatusError` if an object would exceed a quota of its namespace."""
        if not target.namespace or target.storage == _QUOTAS or target.sub:
            return
        quotas = self.storage.list(_QUOTAS, target.namespace)
        if not quotas:
            return
        new = charges(target.storage, obj, self._extended_name)
        before = charges(target.storage, old, self._extended_name) if old is not None else {}
        additional = {
            k: v - before[k] if k in before else v for k, v in new.items() if k not in before or v > before[k]
        }
        for quota in quotas:
            if applies(quota, target.storage, obj):
                self._admit(target, obj, quota, additional)

    def _admit(self, target: RequestInfo, obj: JSON, quota: JSON, additional: Amounts) -> None:
        meta, quota_name = obj["metadata"], quota["metadata"]["name"]
        if target.storage == "pods" and (missing := missing_resources(obj, hard_of(quota))):
            raise forbidden(target, meta, f"failed quota: {quota_name}: must specify {missing}")
        over = exceeded(quota, self._used(target.namespace, quota), additional)
        if not over:
            return
        parts = (
            "requested: " + ",".join(f"{e.resource}={e.wanted}" for e in over),
            "used: " + ",".join(f"{e.resource}={e.used}" for e in over),
            "limited: " + ",".join(f"{e.resource}={e.hard}" for e in over),
        )
        raise forbidden(target, meta, f"exceeded quota: {quota_name}, " + ", ".join(parts))

    def update_status(self, namespace: str) -> None:
        """Updates the status of a namespace's quotas."""
        for quota in self.storage.list(_QUOTAS, namespace):
            hard = {k: str(v) for k, v in ((quota.get("spec") or {}).get("hard") or {}).items()}
            used = {k: str(v) for k, v in self._used(namespace, quota).items()}
            status = {"hard": hard, "used": used}
            if (quota.get("status") or {}) != status:
                self.storage.put(_QUOTAS, {**quota, "status": status})

    def _used(self, namespace: str, quota: JSON) -> Amounts:
        return used_of(quota, self.storage.in_namespace(namespace), self._extended_name)

    def _extended_name(self, device_class: str) -> str:
        found = self.storage.get(_CLASSES, "", device_class) or {}
        return str((found.get("spec") or {}).get("extendedResourceName") or "")
