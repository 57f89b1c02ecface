"""Defines the columns that `kubectl get` shows for each kind, and makes tables of objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ...schemas.object_fields import value_at
from .pod_columns import pod_row

ValueGetter = Callable[[ReadOnlyJSON], Any]
Column = tuple[str, int, ValueGetter]  # name, priority (1: only with -o wide), value
_NONE = "<none>"
_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


def duration(seconds: float) -> str:
    """Formats a duration as kubectl does: 5s, 3m20s, 125m, 3h5m, 3d4h, 2y35d."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    return f"{days // 365}y{days % 365}d" if days < 2920 and days % 365 else f"{days // 365}y"


def since(stamp: Any) -> str:
    """Formats the time since a timestamp."""
    try:
        return duration(time.time() - datetime.fromisoformat(str(stamp)).timestamp()) if stamp else "<unknown>"
    except ValueError:
        return "<invalid>"


def age(obj: ReadOnlyJSON) -> str:
    return since(obj["metadata"].get("creationTimestamp"))


def getter(*path: str, default: Any = "") -> ValueGetter:
    """Returns a function that reads the value at a path of an object, or ``default`` if the path has no value."""

    def found(obj: ReadOnlyJSON) -> Any:
        value = value_at(obj, *path)
        return default if value is None or value == "" else value

    return found


def _list(obj: ReadOnlyJSON, *path: str) -> list[Any]:
    found = value_at(obj, *path)
    return found if isinstance(found, list) else []


def _map(obj: ReadOnlyJSON, *path: str) -> Mapping[str, Any]:
    found = value_at(obj, *path)
    return found if isinstance(found, Mapping) else {}


# --- values of single kinds -------------------------------------------------------------------------


def _claim_state(claim: ReadOnlyJSON) -> str:
    status = claim.get("status") or {}
    states = ["deleted"] if claim["metadata"].get("deletionTimestamp") else []
    if status.get("allocation") is None:
        return ",".join([*states, "pending"])
    states.append("allocated")
    if status.get("reservedFor"):
        states.append("reserved")
    return ",".join(states)


def _claim_devices(claim: ReadOnlyJSON) -> str:
    return (
        ",".join(f"{r['pool']}/{r['device']}" for r in _list(claim, "status", "allocation", "devices", "results"))
        or _NONE
    )


def _restarts(pod: ReadOnlyJSON) -> str:
    row = pod_row(pod)
    return f"{row.restarts} ({since(row.restarted)} ago)" if row.restarts and row.restarted else str(row.restarts)


def _conditions(obj: ReadOnlyJSON) -> list[Any]:
    return [c for c in _list(obj, "status", "conditions") if isinstance(c, Mapping)]


def _node_status(node: ReadOnlyJSON) -> str:
    ready = {c.get("type"): c.get("status") for c in _conditions(node)}.get("Ready")
    shown = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return shown + (",SchedulingDisabled" if value_at(node, "spec", "unschedulable") else "")


def _roles(node: ReadOnlyJSON) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = _map(node, "metadata", "labels")
    found = {k.removeprefix(prefix) for k in labels if k.startswith(prefix)}
    if role := labels.get("kubernetes.io/role"):
        found.add(role)
    return ",".join(sorted(found - {""})) or _NONE


def _address(kind: str) -> ValueGetter:
    def found(node: ReadOnlyJSON) -> str:
        return next((a["address"] for a in _list(node, "status", "addresses") if a.get("type") == kind), _NONE)

    return found


def _event_object(event: ReadOnlyJSON) -> str:
    regarding = event.get("involvedObject") or event.get("regarding") or {}
    return f"{str(regarding.get('kind', '')).lower()}/{regarding.get('name', '')}"


def _event_seen(event: ReadOnlyJSON) -> str:
    series = _map(event, "series")
    last = event.get("lastTimestamp") or series.get("lastObservedTime") or event.get("eventTime")
    count = series.get("count") or event.get("count") or 1
    first = event.get("firstTimestamp") or event.get("eventTime")
    if count > 1 and first:
        return f"{since(last)} (x{count} over {since(first)})"
    return since(last or first or event["metadata"].get("creationTimestamp"))


def _selector(*path: str) -> ValueGetter:
    def found(obj: ReadOnlyJSON) -> str:
        selector = _map(obj, *path)
        terms = [f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or selector).items()) if isinstance(v, str)]
        return ",".join(terms) or _NONE

    return found


def _containers(field: str) -> ValueGetter:
    def found(obj: ReadOnlyJSON) -> str:
        return ",".join(str(c.get(field, "")) for c in _list(obj, "spec", "template", "spec", "containers"))

    return found


def _number(*path: str) -> ValueGetter:
    return getter(*path, default=0)


def _ratio(part: ValueGetter, whole: ValueGetter) -> ValueGetter:
    return lambda obj: f"{part(obj)}/{whole(obj)}"


def _job_status(job: ReadOnlyJSON) -> str:
    true = {c.get("type") for c in _conditions(job) if c.get("status") == "True"}
    if job["metadata"].get("deletionTimestamp"):
        true.add("Terminating")
    order = ("Complete", "Failed", "Terminating", "Suspended", "FailureTarget")
    return next((kind for kind in order if kind in true), "Running")


def _job_duration(job: ReadOnlyJSON) -> str:
    start, end = value_at(job, "status", "startTime"), value_at(job, "status", "completionTime")
    if not start:
        return ""
    if not end:
        return since(start)
    return duration(datetime.fromisoformat(end).timestamp() - datetime.fromisoformat(start).timestamp())


def _ports(service: ReadOnlyJSON) -> str:
    shown = []
    for port in _list(service, "spec", "ports"):
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        shown.append(f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}")
    return ",".join(shown) or _NONE


def _quota(prefix: str, *, exclude: bool) -> ValueGetter:
    def found(quota: ReadOnlyJSON) -> str:
        hard, used = _map(quota, "status", "hard"), _map(quota, "status", "used")
        return ", ".join(
            f"{k}: {used.get(k, '0')}/{v}" for k, v in sorted(hard.items()) if k.startswith(prefix) is not exclude
        )

    return found


def _subjects(binding: ReadOnlyJSON) -> str:
    return ", ".join(str(s.get("name")) for s in _list(binding, "subjects") if s.get("kind") == "User")


def _role(binding: ReadOnlyJSON) -> str:
    return f"{value_at(binding, 'roleRef', 'kind')}/{value_at(binding, 'roleRef', 'name')}"


def _size(*fields: str) -> ValueGetter:
    return lambda obj: sum(len(obj.get(f) or {}) for f in fields)


def _pool_sum(field: str) -> ValueGetter:
    return lambda obj: sum(pool.get(field, 0) for pool in _list(obj, "status", "pools"))


def _ended(obj: ReadOnlyJSON) -> ReadOnlyJSON | None:
    """Returns the condition with which a ResourcePoolStatusRequest has ended."""
    return next((c for c in _list(obj, "status", "conditions") if c["type"] in {"Complete", "Failed"}), None)


def _pool_request_state(obj: ReadOnlyJSON) -> str:
    ended = _ended(obj)
    if ended is None:
        return "Pending"
    shown, count = len(_list(obj, "status", "pools")), value_at(obj, "status", "poolCount")
    return f"Complete ({shown}/{count} pools)" if ended["type"] == "Complete" and shown < count else ended["type"]


def _pool_request_end(obj: ReadOnlyJSON) -> str:
    ended = _ended(obj)
    return since(ended["lastTransitionTime"]) if ended else ""


NAME: Column = ("Name", 0, lambda o: o["metadata"]["name"])
AGE: Column = ("Age", 0, age)
_CREATED: Column = ("Created At", 0, getter("metadata", "creationTimestamp"))
_WEBHOOKS: Column = ("Webhooks", 0, lambda o: len(_list(o, "webhooks")))
_WORKLOAD: tuple[Column, ...] = (
    ("Containers", 1, _containers("name")),
    ("Images", 1, _containers("image")),
    ("Selector", 1, _selector("spec", "selector")),
)
_DAEMONS = (
    ("Desired", "desiredNumberScheduled"),
    ("Current", "currentNumberScheduled"),
    ("Ready", "numberReady"),
    ("Up-to-date", "updatedNumberScheduled"),
    ("Available", "numberAvailable"),
)

COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "namespaces": (NAME, ("Status", 0, getter("status", "phase")), AGE),
    "nodes": (
        NAME,
        ("Status", 0, _node_status),
        ("Roles", 0, _roles),
        AGE,
        ("Version", 0, getter("status", "nodeInfo", "kubeletVersion")),
        ("Internal-IP", 1, _address("InternalIP")),
        ("External-IP", 1, _address("ExternalIP")),
        ("OS-Image", 1, getter("status", "nodeInfo", "osImage", default="<unknown>")),
        ("Kernel-Version", 1, getter("status", "nodeInfo", "kernelVersion", default="<unknown>")),
        ("Container-Runtime", 1, getter("status", "nodeInfo", "containerRuntimeVersion", default="<unknown>")),
    ),
    "pods": (
        NAME,
        ("Ready", 0, lambda o: pod_row(o).ready),
        ("Status", 0, lambda o: pod_row(o).status),
        ("Restarts", 0, _restarts),
        AGE,
        ("IP", 1, getter("status", "podIP", default=_NONE)),
        ("Node", 1, getter("spec", "nodeName", default=_NONE)),
        ("Nominated Node", 1, getter("status", "nominatedNodeName", default=_NONE)),
        ("Readiness Gates", 1, lambda o: pod_row(o).gates or _NONE),
    ),
    "events": (
        ("Last Seen", 0, _event_seen),
        ("Type", 0, getter("type")),
        ("Reason", 0, getter("reason")),
        ("Object", 0, _event_object),
        ("Subobject", 1, getter("involvedObject", "fieldPath")),
        ("Source", 1, getter("source", "component")),
        ("Message", 0, lambda o: str(o.get("message") or o.get("note") or "").strip()),
        ("Name", 1, lambda o: o["metadata"]["name"]),
    ),
    "leases.coordination.k8s.io": (NAME, ("Holder", 0, getter("spec", "holderIdentity")), AGE),
    "configmaps": (NAME, ("Data", 0, _size("data", "binaryData")), AGE),
    "secrets": (NAME, ("Type", 0, getter("type")), ("Data", 0, _size("data")), AGE),
    "services": (
        NAME,
        ("Type", 0, getter("spec", "type")),
        ("Cluster-IP", 0, getter("spec", "clusterIP", default=_NONE)),
        ("External-IP", 0, lambda o: _NONE),
        ("Port(s)", 0, _ports),
        AGE,
        ("Selector", 1, _selector("spec", "selector")),
    ),
    "resourcequotas": (
        NAME,
        ("Request", 0, _quota("limits.", exclude=True)),
        ("Limit", 0, _quota("limits.", exclude=False)),
        AGE,
    ),
    "limitranges": (NAME, _CREATED),
    "daemonsets.apps": (
        NAME,
        *((n, 0, _number("status", f)) for n, f in _DAEMONS),
        ("Node Selector", 0, _selector("spec", "template", "spec", "nodeSelector")),
        AGE,
        *_WORKLOAD,
    ),
    "deployments.apps": (
        NAME,
        ("Ready", 0, _ratio(_number("status", "readyReplicas"), _number("spec", "replicas"))),
        ("Up-to-date", 0, _number("status", "updatedReplicas")),
        ("Available", 0, _number("status", "availableReplicas")),
        AGE,
        *_WORKLOAD,
    ),
    "replicasets.apps": (
        NAME,
        ("Desired", 0, _number("spec", "replicas")),
        ("Current", 0, _number("status", "replicas")),
        ("Ready", 0, _number("status", "readyReplicas")),
        AGE,
        *_WORKLOAD,
    ),
    "jobs.batch": (
        NAME,
        ("Status", 0, _job_status),
        ("Completions", 0, _ratio(_number("status", "succeeded"), _number("spec", "completions"))),
        ("Duration", 0, _job_duration),
        AGE,
        *_WORKLOAD,
    ),
    "roles.rbac.authorization.k8s.io": (NAME, _CREATED),
    "clusterroles.rbac.authorization.k8s.io": (NAME, _CREATED),
    "rolebindings.rbac.authorization.k8s.io": (NAME, ("Role", 0, _role), AGE, ("Users", 1, _subjects)),
    "clusterrolebindings.rbac.authorization.k8s.io": (NAME, ("Role", 0, _role), AGE, ("Users", 1, _subjects)),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        ("Value", 0, _number("value")),
        ("Global-Default", 0, lambda o: str(bool(o.get("globalDefault"))).lower()),
        AGE,
        ("PreemptionPolicy", 0, getter("preemptionPolicy")),
    ),
    "networkpolicies.networking.k8s.io": (NAME, ("Pod-Selector", 0, _selector("spec", "podSelector")), AGE),
    "poddisruptionbudgets.policy": (
        NAME,
        ("Min Available", 0, getter("spec", "minAvailable", default="N/A")),
        ("Max Unavailable", 0, getter("spec", "maxUnavailable", default="N/A")),
        ("Allowed Disruptions", 0, _number("status", "disruptionsAllowed")),
        AGE,
    ),
    "validatingadmissionpolicies.admissionregistration.k8s.io": (
        NAME,
        ("Validations", 0, lambda o: len(_list(o, "spec", "validations"))),
        ("ParamKind", 0, getter("spec", "paramKind", "kind", default="<unset>")),
        AGE,
    ),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": (
        NAME,
        ("PolicyName", 0, getter("spec", "policyName")),
        ("ParamRef", 0, getter("spec", "paramRef", "name", default="<unset>")),
        AGE,
    ),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": (NAME, _WEBHOOKS, AGE),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": (NAME, _WEBHOOKS, AGE),
    "customresourcedefinitions.apiextensions.k8s.io": (NAME, _CREATED),
    "resourceslices.resource.k8s.io": (
        NAME,
        ("Node", 0, getter("spec", "nodeName", default=_NONE)),
        ("Driver", 0, getter("spec", "driver")),
        ("Pool", 0, getter("spec", "pool", "name")),
        AGE,
        ("Devices", 1, lambda o: len(_list(o, "spec", "devices"))),
    ),
    "resourceclaims.resource.k8s.io": (NAME, ("State", 0, _claim_state), AGE, ("Devices", 1, _claim_devices)),
    "resourcepoolstatusrequests.resource.k8s.io": (
        NAME,
        ("Driver", 0, getter("spec", "driver")),
        *(
            (name, 0, _pool_sum(f"{name.lower()}Devices"))
            for name in ("Total", "Available", "Allocated", "Unavailable")
        ),
        ("Errors", 0, lambda o: sum("validationError" in pool for pool in _list(o, "status", "pools"))),
        ("Pools", 0, getter("status", "poolCount", default=0)),
        ("Status", 0, _pool_request_state),
        ("Completed", 0, _pool_request_end),
    ),
}


def table(
    columns: Sequence[Column], objects: Sequence[ReadOnlyJSON], metadata: ReadOnlyJSON, *, include: str = "Metadata"
) -> dict[str, Any]:
    """Returns a meta.k8s.io/v1 Table of the objects.

    Args:
        include: how much of each object its row contains: None, Metadata or Object.
    """
    columns = columns or (NAME, AGE)
    definitions = [
        {"name": n, "type": "string", "format": "name" if n == "Name" else "", "description": n, "priority": p}
        for n, p, _ in columns
    ]
    rows = []
    for obj in objects:
        row: dict[str, Any] = {"cells": [_cell(value(obj)) for _, _, value in columns]}
        if include == "Metadata":
            row["object"] = {**_PARTIAL, "metadata": obj["metadata"]}
        elif include == "Object":
            row["object"] = obj
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _cell(value: Any) -> Any:
    return value if isinstance(value, (int, str)) else str(value)
