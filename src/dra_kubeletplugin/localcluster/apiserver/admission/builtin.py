"""Admission plugins that are always on: a new object's namespace, a pod's priority class and service account."""

from __future__ import annotations

from typing import Any

from ..requests import RequestInfo, forbidden
from ..status_errors import StatusError
from ..storage import Storage

JSON = dict[str, Any]
_PRIORITIES = "priorityclasses.scheduling.k8s.io"
_COMPUTED = (
    "the {what} ({given}) must not be provided in pod spec; priority admission controller computed {computed} from the given "
    "PriorityClass name"
)
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def check_namespace(storage: Storage, target: RequestInfo, meta: JSON) -> JSON:
    """The namespace of a new object, which gets its name. Raises :class:`StatusError` where it is missing or on its way out."""
    name = target.namespace
    given = meta.get("namespace")
    if given not in (None, "", name):
        raise StatusError(
            400,
            "BadRequest",
            f"the namespace of the provided object does not match the namespace sent on the request ({given} is not {name})",
        )
    namespace = storage.get("namespaces", "", name)
    if namespace is None:
        raise StatusError(404, "NotFound", f'namespaces "{name}" not found', {"name": name, "kind": "namespaces"})
    meta["namespace"] = name
    if namespace["metadata"].get("deletionTimestamp"):
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {name} is being terminated",
            "field": "metadata.namespace",
        }
        why = f"unable to create new content in namespace {name} because it is being terminated"
        raise forbidden(target, meta.get("name") or meta.get("generateName", ""), why, {"causes": [cause]})
    return namespace


def set_priority(storage: Storage, target: RequestInfo, pod: JSON) -> None:
    """A new pod's priority, from its class or the one that is everybody's. Raises :class:`StatusError` for an unknown class."""
    spec = pod["spec"]
    name = spec.get("priorityClassName", "")
    asked = spec.get("priority")
    found = storage.get(_PRIORITIES, "", name) if name else _default_class(storage)
    meta = pod["metadata"]
    if name and found is None:
        shown = meta.get("name") or meta.get("generateName", "")
        raise forbidden(target, shown, f"no PriorityClass with name {name} was found")
    value = int(found.get("value") or 0) if found else 0
    if found and not name:
        spec["priorityClassName"] = found["metadata"]["name"]
    if asked is not None and asked != value:
        why = _COMPUTED.format(what="integer value of priority", given=asked, computed=value)
        raise forbidden(target, meta.get("name") or meta.get("generateName", ""), why)
    spec["priority"] = value
    policy = (found or {}).get("preemptionPolicy") or "PreemptLowerPriority"
    if spec.get("preemptionPolicy") not in (None, policy):
        why = _COMPUTED.format(what="string value of PreemptionPolicy", given=spec["preemptionPolicy"], computed=policy)
        raise forbidden(target, meta.get("name") or meta.get("generateName", ""), why)
    spec["preemptionPolicy"] = policy


def _default_class(storage: Storage) -> JSON | None:
    defaults = [c for c in storage.list(_PRIORITIES) if c.get("globalDefault")]
    return min(defaults, key=lambda c: int(c.get("value") or 0)) if defaults else None


def check_runtime_class(target: RequestInfo, pod: JSON) -> None:
    """Raises :class:`StatusError` for a RuntimeClass, of which there are none here, and for what only a RuntimeClass brings."""
    spec, meta = pod["spec"], pod["metadata"]
    shown = meta.get("name") or meta.get("generateName", "")
    if name := spec.get("runtimeClassName"):
        raise forbidden(target, shown, f'pod rejected: RuntimeClass "{name}" not found')
    if spec.get("overhead"):
        raise forbidden(target, shown, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined")


def check_account(storage: Storage, target: RequestInfo, pod: JSON) -> None:
    """Raises :class:`StatusError` for a service account that there is not."""
    name = pod["spec"].get("serviceAccountName", "default")
    if storage.get("serviceaccounts", target.namespace, name) is None:
        meta = pod["metadata"]
        shown = meta.get("name") or meta.get("generateName", "")
        why = f'error looking up service account {target.namespace}/{name}: serviceaccount "{name}" not found'
        raise forbidden(target, shown, why)
