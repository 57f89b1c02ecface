"""Checks the cluster: whether the API server responds, its versions, this account's permissions, clock drift.
Sources: KEP-4381 (versions), the API server's metric ``kubernetes_feature_enabled``, authorization.k8s.io/v1
SelfSubjectAccessReview.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import ForbiddenError, NotFoundError, UnauthorizedError
from dra_kubeletplugin.kube.resource import (
    CLAIMS,
    CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    QUOTAS,
    SLICES,
    TAINT_RULES,
    TEMPLATES,
)
from dra_kubeletplugin.resourceapi.conversion import GROUP

from ..reader import CONSEQUENCES, OPTIONAL, served_as
from .findings import Finding, failure, ok, unknown, warning

_GATE = re.compile(rb'kubernetes_feature_enabled\{name="(D(?:RA\w*|ynamicResourceAllocation))",stage="(\w*)"\} (\d)')
# Clock drift in seconds above which the finding is a warning, or a failure. Above the second limit, tokens and certificates are
# rejected.
_DRIFT_WARNING, _DRIFT_FAILURE = 5.0, 60.0


@dataclass(frozen=True)
class Permission:
    """A permission that an account needs. If it is optional, ``otherwise`` is the consequence of its absence."""

    verb: str
    resource: str
    group: str = GROUP
    otherwise: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}"


_READ = (SLICES, CLAIMS, CLASSES, TEMPLATES, TAINT_RULES, PODS, NODES, NAMESPACES, EVENTS)
READER = (
    *(Permission("list", r.plural, r.group) for r in _READ),
    *(Permission("list", r.plural, r.group, CONSEQUENCES[r.plural]) for r in (POD_GROUPS, QUOTAS)),
)
"""Permissions that ``explain`` and ``doctor`` need to read a cluster. Not every API server serves DeviceTaintRules and PodGroups."""

PLUGIN = (
    Permission("get", "resourceclaims"),
    Permission("get", "nodes", ""),
    *(Permission(v, "resourceslices") for v in ("list", "watch", "create", "update", "delete")),
    Permission("create", "events", "", "faults of devices are only in the log and in readiness"),
    Permission("patch", "events", "", "the count of repeated events is not updated"),
    Permission("patch", "resourceclaims/status", GROUP, "the status of devices is not written to claims"),
)
"""Permissions of a node's plugin."""


async def look(client: KubeClient, permissions: Sequence[Permission]) -> AsyncIterator[Finding]:
    before = time.time()
    try:
        response = await client.raw("GET", "/version")
        after = time.time()
        version = await client.call("GET", "/version")
    except ApiError as e:
        yield failure(
            "API server",
            e.message,
            "check the address and credentials in the kubeconfig or service account, and the network",
        )
        return
    yield ok("API server", f"{client.config.server} is Kubernetes {version.get('gitVersion', '?')}")
    yield clock_finding(response.header(b"date"), before, after)
    async for finding in _served(client):
        yield finding
    yield await _gates(client)
    async for finding in _allowed(client, permissions):
        yield finding


def clock_finding(date: str, before: float, after: float) -> Finding:
    """Compares the clocks.

    Args:
        date: the server's time, from its response.
        before, after: this machine's time before and after the request. The duration of the request is not drift.
    """
    try:
        server_time = email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return unknown("clock", "the API server sent no valid Date header", "compare `date` on both machines by hand")
    drift = before - server_time if server_time < before else min(after - server_time, 0.0)
    if abs(drift) > _DRIFT_WARNING:
        text = f"{abs(drift):.0f} s {'ahead of' if drift > 0 else 'behind'} the API server's clock"
        todo = "synchronize the clock with chrony or systemd-timesyncd: tokens, Leases and taints depend on it"
        return (failure if abs(drift) > _DRIFT_FAILURE else warning)("clock", text, todo)
    return ok("clock", "agrees with the API server's clock")


async def _served(client: KubeClient) -> AsyncIterator[Finding]:
    try:
        found = await client.call("GET", f"/apis/{GROUP}")
    except ApiError as e:
        if isinstance(e, NotFoundError):
            yield failure(
                "API versions",
                f"this cluster does not serve {GROUP}",
                "use Kubernetes 1.34 or later, or enable DynamicResourceAllocation and its API",
            )
        else:
            yield failure("API versions", e.message)
        return
    versions = [v["version"] for v in found.get("versions") or () if isinstance(v, dict) and "version" in v]
    usable = [v for v in versions if v in {"v1", "v1beta2", "v1beta1"}]
    if usable:
        yield ok("API versions", f"{GROUP} {', '.join(versions)}")
    else:
        yield failure(
            "API versions", f"{GROUP} {', '.join(versions)}: none that a driver can use", "use Kubernetes 1.34 or later"
        )


async def _gates(client: KubeClient) -> Finding:
    """Reports the feature gates of the API server. The scheduler and the kubelets have their own gates."""
    try:
        response = await client.raw("GET", "/metrics")
    except ApiError as e:
        todo = "to read them, an account needs nonResourceURLs [/metrics], verb get"
        return unknown("feature gates", e.message, todo if isinstance(e, (UnauthorizedError, ForbiddenError)) else "")
    gates = {name.decode(): (stage.decode(), on == b"1") for name, stage, on in _GATE.findall(response.body)}
    if not gates:
        return unknown("feature gates", "the API server's metrics contain no feature gate of DRA")
    off = [f"{n} ({stage or 'GA'})" for n, (stage, on) in sorted(gates.items()) if not on]
    on = sum(1 for _, is_on in gates.values() if is_on)
    return ok("feature gates", f"{on} gates of DRA are on" + (f"; off: {', '.join(off)}" if off else ""))


async def _allowed(client: KubeClient, permissions: Sequence[Permission]) -> AsyncIterator[Finding]:
    checked: list[Permission] = []
    missing: list[Permission] = []
    for p in permissions:
        resource, _, sub = p.resource.partition("/")
        attributes = {"verb": p.verb, "group": p.group, "resource": resource, "subresource": sub}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {k: v for k, v in attributes.items() if v}},
        }
        try:
            optional = next((r for r in OPTIONAL if r.plural == p.resource), None)
            if optional is not None and not await served_as(client, optional):
                continue
            result = await client.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        except ApiError as e:
            yield unknown("permissions", f"{p}: {e.message}")
            return
        checked.append(p)
        if not (result.get("status") or {}).get("allowed"):
            missing.append(p)
    for p in missing:
        if p.otherwise:
            yield warning(
                "permissions", f"this account may not {p}: {p.otherwise}", "grant the permission if you need this"
            )
        else:
            yield failure(
                "permissions",
                f"this account may not {p}",
                "apply the roles of the plugin's deployment"
                if permissions is PLUGIN
                else "bind the cluster role `view` to the account, and a role with this permission",
            )
    if not missing:
        yield ok("permissions", f"this account may {', '.join(map(str, checked))}")
