"""The admission plugins for namespace lifecycle, pod priority, runtime class and service account. They are always on."""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import JSON

from ..requests import RequestInfo, forbidden
from ..status_errors import bad_request, unknown_object
from ..storage import Storage

_PRIORITIES = "priorityclasses.scheduling.k8s.io"
_COMPUTED = (
    "the {field} ({requested}) must not be provided in pod spec; priority admission controller computed {computed} from the given "
    "PriorityClass name"
)
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def check_namespace(storage: Storage, target: RequestInfo, meta: JSON) -> JSON:
    """Returns the namespace of a new object and writes its name into the object's metadata.

    Raises:
        StatusError: The namespace does not match the request, does not exist, or is being deleted.
    """
    name = target.namespace
    requested = meta.get("namespace")
    if requested not in (None, "", name):
        raise bad_request(
            f"the namespace of the provided object does not match the namespace sent on the request ({requested} is not {name})"
        )
    namespace = storage.get("namespaces", "", name)
    if namespace is None:
        raise unknown_object("namespaces", name)
    meta["namespace"] = name
    if namespace["metadata"].get("deletionTimestamp"):
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {name} is being terminated",
            "field": "metadata.namespace",
        }
        why = f"unable to create new content in namespace {name} because it is being terminated"
        raise forbidden(target, meta, why, {"causes": [cause]})
    return namespace


def set_priority(storage: Storage, target: RequestInfo, pod: JSON) -> None:
    """Sets a new pod's priority from its class or from the global default class.

    Raises:
        StatusError: The class does not exist, or the pod's own values contradict the class.
    """
    spec = pod["spec"]
    name = spec.get("priorityClassName", "")
    requested = spec.get("priority")
    found = storage.get(_PRIORITIES, "", name) if name else _default_class(storage)
    meta = pod["metadata"]
    if name and found is None:
        raise forbidden(target, meta, f"no PriorityClass with name {name} was found")
    value = int(found.get("value") or 0) if found else 0
    if found and not name:
        spec["priorityClassName"] = found["metadata"]["name"]
    if requested is not None and requested != value:
        why = _COMPUTED.format(field="integer value of priority", requested=requested, computed=value)
        raise forbidden(target, meta, why)
    spec["priority"] = value
    policy = (found or {}).get("preemptionPolicy") or "PreemptLowerPriority"
    if spec.get("preemptionPolicy") not in (None, policy):
        why = _COMPUTED.format(
            field="string value of PreemptionPolicy", requested=spec["preemptionPolicy"], computed=policy
        )
        raise forbidden(target, meta, why)
    spec["preemptionPolicy"] = policy


def _default_class(storage: Storage) -> JSON | None:
    defaults = [c for c in storage.list(_PRIORITIES) if c.get("globalDefault")]
    return min(defaults, key=lambda c: int(c.get("value") or 0)) if defaults else None


def check_runtime_class(target: RequestInfo, pod: JSON) -> None:
    """Rejects pods that need a RuntimeClass, because the local cluster has none.

    Raises:
        StatusError: The pod names a RuntimeClass, or has ``overhead``, which only a RuntimeClass may set.
    """
    spec, meta = pod["spec"], pod["metadata"]
    if name := spec.get("runtimeClassName"):
        raise forbidden(target, meta, f'pod rejected: RuntimeClass "{name}" not found')
    if spec.get("overhead"):
        raise forbidden(target, meta, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined")


def check_account(storage: Storage, target: RequestInfo, pod: JSON) -> None:
    """Raises :class:`StatusError` if the pod's service account does not exist."""
    name = pod["spec"].get("serviceAccountName", "default")
    if storage.get("serviceaccounts", target.namespace, name) is None:
        why = f'error looking up service account {target.namespace}/{name}: serviceaccount "{name}" not found'
        raise forbidden(target, pod["metadata"], why)
