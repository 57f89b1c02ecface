"""Decides whether a pod that is bound to this node may run on it.

The kubelet checks each pod, because a user may have bound a pod without the scheduler.
Source: pkg/kubelet/lifecycle/predicate.go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from dra_kubeletplugin.base.json_types import JSON

from ...scheduling.framework import filters, node_info, pod_info
from ...scheduling.framework.node_info import NodeInfo, pods_allowed
from ...scheduling.framework.pod_info import PODS, PodInfo
from ...scheduling.framework.status import Rejection

_OS = "kubernetes.io/os"
_LINUX = "linux"
_SAFE_SYSCTLS = {  # pkg/kubelet/sysctl/safe_sysctls.go
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}


@dataclass(frozen=True)
class AdmissionRefusal:
    """The refusal of a pod. ``reason`` and ``message`` go into the pod's status."""

    reason: str
    message: str


def refusal(pod: JSON, node: JSON, others: Iterable[JSON]) -> AdmissionRefusal | None:
    """Checks whether ``node`` can run ``pod`` in addition to the pods that it already runs.

    Args:
        others: the pods that are already admitted to the node.

    Returns:
        The refusal, or None if the pod is admitted.

    Raises:
        TypeError, KeyError, ValueError, AttributeError: the pod or the node is malformed, see :func:`pod_info.read` and
            :func:`node_info.read`.
    """
    if (pod["metadata"].get("labels") or {}).get(_OS, _LINUX) != _LINUX:
        text = f"Failed to admit pod as the `{_OS}` label doesn't match node label"
        return AdmissionRefusal("PodOSSelectorNodeLabelDoesNotMatch", text)
    if (pod["spec"].get("os") or {}).get("name", _LINUX) != _LINUX:
        return AdmissionRefusal("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    for sysctl in (pod["spec"].get("securityContext") or {}).get("sysctls") or []:
        if (name := str(sysctl.get("name")).replace("/", ".")) not in _SAFE_SYSCTLS:
            return AdmissionRefusal("SysctlForbidden", f'forbidden sysctl: "{name}" not allowlisted')
    place = node_info.read(node)
    for other in others:
        with contextlib.suppress(TypeError, KeyError, ValueError, AttributeError):  # a malformed pod uses no resources
            place = place.with_pod(_read(other, place))
    return _general(_read(pod, place), place)


def _read(pod: JSON, node: NodeInfo) -> PodInfo:
    """Reads a pod without its requests for extended resources that are not in the node's allocatable.

    The kubelet does not check such resources, because another component assigns them, for example a DRA driver.
    """
    info = pod_info.read(pod)
    counted = {
        name: amount
        for name, amount in info.requests.items()
        if name in node.allocatable or not pod_info.is_extended(name)
    }
    return replace(info, requests=counted)


def _general(pod: PodInfo, node: NodeInfo) -> AdmissionRefusal | None:
    if len(node.pods) + 1 > pods_allowed(node):
        return _out_of(PODS, 1, len(node.pods), pods_allowed(node))
    for name, wanted in pod.wanted:
        used, has = node.requested.get(name, 0), node.allocatable.get(name, 0)
        if wanted > has - used:
            return _out_of(name, wanted, used, has)
    for plugin, check in _CHECKS.items():
        if found := check(pod, node):
            return AdmissionRefusal(plugin, f"Predicate {plugin} failed: {found.reasons[0]}")
    return None


def _out_of(name: str, requested: int, used: int, capacity: int) -> AdmissionRefusal:
    figures = f"requested: {requested}, used: {used}, capacity: {capacity}"
    return AdmissionRefusal(f"OutOf{name}", f"Node didn't have enough resource: {name}, {figures}")


def _no_execute(pod: PodInfo, node: NodeInfo) -> Rejection | None:
    """Checks only the node's ``NoExecute`` taints, because a kubelet ignores taints that would not evict the pod."""
    return filters.taints(pod, replace(node, taints=tuple(t for t in node.taints if t["effect"] == "NoExecute")))


_CHECKS: Mapping[str, Callable[[PodInfo, NodeInfo], Rejection | None]] = {
    "NodeAffinity": filters.node_affinity,
    "NodePorts": filters.ports,
    "TaintToleration": _no_execute,
}
