"""Sets the defaults of pods and pod templates.

Source: SetDefaults functions of the core API group, and the admission plugins that are on by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

_MODES = (("secret", 0o644), ("configMap", 0o644), ("downwardAPI", 0o644), ("projected", 0o644))
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_NODE_FAILURES = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION_SECONDS = 300


def set_defaults(obj: JSON, **values: Any) -> None:
    """Sets the fields that are absent or null."""
    for name, value in values.items():
        if obj.get(name) is None:
            obj[name] = value


def spec_defaults(spec: JSON) -> None:
    """Sets the defaults of a pod's or pod template's spec in place."""
    set_defaults(spec, restartPolicy="Always", terminationGracePeriodSeconds=30, dnsPolicy="ClusterFirst")
    set_defaults(spec, securityContext={}, schedulerName="default-scheduler")
    if account := spec.get("serviceAccountName"):
        spec["serviceAccount"] = account
    elif account := spec.get("serviceAccount"):
        spec["serviceAccountName"] = account
    for volume in spec.get("volumes") or ():
        _volume(volume)
    for container in containers(spec):
        _container(container, host_network=bool(spec.get("hostNetwork")))


def pod_defaults(spec: JSON) -> None:
    """Sets the defaults of a pod's spec in place: the defaults of a template, and the defaults that only pods have."""
    spec_defaults(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in containers(spec):
        resources = container.get("resources") or {}
        for name, amount in (resources.get("limits") or {}).items():
            requests = resources.get("requests") or {}
            if name not in requests:
                resources["requests"] = {**requests, name: amount}


def admission_defaults(spec: JSON) -> None:
    """Adds the service account, and the tolerations for nodes that are not ready or unreachable, as admission plugins of Kubernetes do."""
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    tolerations = spec.get("tolerations") or []
    for key in _NODE_FAILURES:
        if not any(t.get("key") in {None, "", key} and t.get("effect") in {None, "", "NoExecute"} for t in tolerations):
            added = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
            tolerations = [*tolerations, added]
    spec["tolerations"] = tolerations


def containers(spec: Mapping[str, Any]) -> Iterator[JSON]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def _container(container: JSON, *, host_network: bool) -> None:
    set_defaults(container, terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File")
    if not container.get("imagePullPolicy"):
        image = str(container.get("image") or "")
        last = image.rpartition("/")[2]
        tagged = "@" in last or (":" in last and not last.endswith(":latest"))
        container["imagePullPolicy"] = "IfNotPresent" if tagged else "Always"
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort")
    for name in _PROBES:
        if probe := container.get(name):
            _probe(probe)
    for env in container.get("env") or ():
        reference = (env.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")


def _probe(probe: JSON) -> None:
    for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        if not probe.get(name):
            probe[name] = value
    if http := probe.get("httpGet"):
        set_defaults(http, path="/", scheme="HTTP")


def _volume(volume: JSON) -> None:
    if not any(k != "name" for k in volume):
        volume["emptyDir"] = {}
    for name, mode in _MODES:
        source = volume.get(name)
        if source is not None:
            source.setdefault("defaultMode", mode)
    host = volume.get("hostPath")
    if host is not None:
        host.setdefault("type", "")
    for item in (volume.get("downwardAPI") or {}).get("items") or ():
        if item.get("fieldRef") is not None:
            item["fieldRef"].setdefault("apiVersion", "v1")


# --- quality of service -----------------------------------------------------------------------------


def qos_class(spec: Mapping[str, Any]) -> str:
    """Returns ``status.qosClass`` for the pod's cpu and memory requests and limits."""
    requests: set[str] = set()
    limits: set[str] = set()
    guaranteed = True
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        requested = _cpu_and_memory(resources.get("requests"))
        limited = _cpu_and_memory(resources.get("limits"))
        requests |= requested.keys()
        limits |= limited.keys()
        if limited.keys() != {"cpu", "memory"} or any(requested.get(k, v) != v for k, v in limited.items()):
            guaranteed = False
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _cpu_and_memory(amounts: Mapping[str, str] | None) -> dict[str, str]:
    return {k: v for k, v in (amounts or {}).items() if k in {"cpu", "memory"} and v not in {"0", 0}}
