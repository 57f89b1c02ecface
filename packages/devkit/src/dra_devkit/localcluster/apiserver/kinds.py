"""The served resources: groups, versions, names, subresources and selectable fields."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.conversion import GROUP

from ...kubernetes_releases import POD_GROUP_VERSIONS, Features, all_versions, versions_of
from ...scheduling.framework import pod_groups
from . import columns
from .columns import Column

ALL = ("all",)
_NAMES = ("metadata.name",)
_NAMESPACED = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True)
class ServedKind:
    """One resource in all its versions, the preferred version first.

    Attributes:
        stored_as: the storage key of the same kind in another group, if that kind stores the objects; empty otherwise.
        graceful: whether a deletion waits for another component. For example, the deletion of a pod waits for its kubelet.
        subresources: subresources other than ``status``.
        selectable: field paths that field selectors may use, in addition to name and namespace.
        refused: the reason why objects of this kind are rejected; empty for a served kind.
        virtual: whether the objects are reviews, which are created but never stored.
        schemas: the schemas of a custom resource, by version.
        scale: JSON paths of a custom resource's replicas and selector, by their names in the definition.
    """

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    namespaced: bool
    short: tuple[str, ...] = ()
    status: bool = False
    graceful: bool = False
    subresources: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    selectable: tuple[str, ...] = ()
    stored_as: str = ""
    refused: str = ""
    virtual: bool = False
    custom_columns: tuple[Column, ...] = ()
    schemas: Mapping[str, ReadOnlyJSON] = field(default_factory=dict, compare=False)
    scale: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        """The resource's name in messages: plural and group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def storage(self) -> str:
        return self.stored_as or self.key

    @property
    def structured(self) -> bool:
        """Whether this is one of the four main kinds of resource.k8s.io. They have their own validation and conversion."""
        return self.group == GROUP and self.kind in _STRUCTURED

    @property
    def counts_generations(self) -> bool:
        """Whether objects have a generation, which increases when their spec changes."""
        return self.storage not in _WITHOUT_GENERATION and self.group != _RBAC

    @property
    def custom(self) -> bool:
        return bool(self.schemas)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.custom_columns or columns.COLUMNS.get(self.storage, ())

    @property
    def fields(self) -> tuple[str, ...]:
        """Field paths that a field selector may use."""
        return (*(_NAMESPACED if self.namespaced else _NAMES), *self.selectable)

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


_STRUCTURED = frozenset({"ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"})
_WITHOUT_GENERATION = frozenset(
    {
        "namespaces",
        "nodes",
        "events",
        "serviceaccounts",
        "configmaps",
        "secrets",
        "services",
        "resourcequotas",
        "limitranges",
        "leases.coordination.k8s.io",
        "resourceclaims.resource.k8s.io",
        "resourceclaimtemplates.resource.k8s.io",
        "resourcepoolstatusrequests.resource.k8s.io",
        "podgroups.scheduling.k8s.io",
    }
)
_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
_NO_MUTATION = "the local cluster does not evaluate MutatingAdmissionPolicies: use a mutating webhook, which it calls"
_NO_METRICS = "the local cluster does not measure load, so an autoscaler would have no effect: use `kubectl scale`"
_NO_NETWORK = "the local cluster has no pod network, so the object would have no effect"
_NO_STORAGE = "the local cluster has no persistent volumes"
_NO_WORKLOADS = "the local cluster has no controller that creates PodGroups from a Workload: create the PodGroups"
_NO_CONTROLLER = "the local cluster has no controller for {}: use {}".format
_POD_FIELDS = (
    *(f"spec.{name}" for name in ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName", "hostNetwork")),
    *(f"status.{name}" for name in ("phase", "podIP", "nominatedNodeName")),
)
_OF_REFERENCES = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_FIELDS = (*(f"involvedObject.{f}" for f in _OF_REFERENCES), "reason", "reportingComponent", "source", "type")
_NEW_EVENT_FIELDS = ("reason", "reportingController", "type", *(f"regarding.{f}" for f in _OF_REFERENCES))


def _kind(group: str, kind: str, *short: str, cluster_scoped: bool = False, **more: Any) -> ServedKind:
    """Returns a kind with the regular plural of its name, by default in version v1."""
    name = kind.lower()
    plural = f"{name}es" if name.endswith("s") else f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"
    return ServedKind(group, more.pop("versions", ("v1",)), kind, plural, not cluster_scoped, short, **more)


_core, _apps = functools.partial(_kind, ""), functools.partial(_kind, "apps", categories=ALL)
_rbac, _admission = functools.partial(_kind, _RBAC), functools.partial(_kind, _ADMISSION, cluster_scoped=True)
_review = functools.partial(_kind, "authorization.k8s.io", virtual=True)


def _dra(kind: str, **more: Any) -> ServedKind:
    """Returns a kind of resource.k8s.io in the versions of all releases."""
    return _kind(GROUP, kind, versions=all_versions(kind), **more)


_POD = _core(
    "Pod",
    "po",
    status=True,
    graceful=True,
    categories=ALL,
    subresources=("binding", "eviction", "log", "exec", "attach", "portforward"),
    selectable=_POD_FIELDS,
)
_CRD = _kind(
    "apiextensions.k8s.io",
    "CustomResourceDefinition",
    "crd",
    "crds",
    cluster_scoped=True,
    status=True,
    categories=("api-extensions",),
)
KINDS = (
    _core(
        "Namespace", "ns", cluster_scoped=True, status=True, subresources=("finalize",), selectable=("status.phase",)
    ),
    _core("Node", "no", cluster_scoped=True, status=True, selectable=("spec.unschedulable",)),
    _POD,
    _core("Event", "ev", selectable=_EVENT_FIELDS),
    _core("ServiceAccount", "sa", subresources=("token",)),
    _core("ConfigMap", "cm"),
    _core("Secret", selectable=("type",)),
    _core("Service", "svc", status=True, categories=ALL, selectable=("spec.clusterIP", "spec.type")),
    _core("ResourceQuota", "quota", status=True),
    _core("LimitRange", "limits"),
    _core("PersistentVolumeClaim", "pvc", refused=_NO_STORAGE),
    _core("PersistentVolume", "pv", cluster_scoped=True, refused=_NO_STORAGE),
    _apps("DaemonSet", "ds", status=True),
    _apps("Deployment", "deploy", status=True, subresources=("scale",)),
    _apps("ReplicaSet", "rs", status=True, subresources=("scale",), selectable=("status.replicas",)),
    _apps("StatefulSet", "sts", refused=_NO_CONTROLLER("stateful sets", "a Deployment or Pods")),
    _kind("batch", "Job", status=True, categories=ALL, selectable=("status.successful",)),
    _kind("batch", "CronJob", "cj", categories=ALL, refused=_NO_CONTROLLER("cron jobs", "a Job")),
    _core(
        "ReplicationController", "rc", categories=ALL, refused=_NO_CONTROLLER("replication controllers", "a Deployment")
    ),
    _kind("autoscaling", "HorizontalPodAutoscaler", "hpa", versions=("v2", "v1"), categories=ALL, refused=_NO_METRICS),
    _kind("networking.k8s.io", "Ingress", "ing", refused=_NO_NETWORK),
    _kind("networking.k8s.io", "NetworkPolicy", "netpol"),
    _kind("coordination.k8s.io", "Lease"),
    _kind("events.k8s.io", "Event", "ev", stored_as="events", selectable=_NEW_EVENT_FIELDS),
    _rbac("Role"),
    _rbac("RoleBinding"),
    _rbac("ClusterRole", cluster_scoped=True),
    _rbac("ClusterRoleBinding", cluster_scoped=True),
    _admission("ValidatingAdmissionPolicy", status=True),
    _admission("ValidatingAdmissionPolicyBinding"),
    _admission("ValidatingWebhookConfiguration"),
    _admission("MutatingWebhookConfiguration"),
    _admission("MutatingAdmissionPolicy", refused=_NO_MUTATION),
    _admission("MutatingAdmissionPolicyBinding", refused=_NO_MUTATION),
    _kind("scheduling.k8s.io", "PriorityClass", "pc", cluster_scoped=True),
    _kind(pod_groups.GROUP, pod_groups.KIND, versions=POD_GROUP_VERSIONS, status=True),
    _kind(pod_groups.GROUP, "Workload", versions=POD_GROUP_VERSIONS, refused=_NO_WORKLOADS),
    _kind("policy", "PodDisruptionBudget", "pdb", status=True),
    _CRD,
    _review("SelfSubjectAccessReview", cluster_scoped=True),
    _review("SubjectAccessReview", cluster_scoped=True),
    _review("LocalSubjectAccessReview"),
    _review("SelfSubjectRulesReview", cluster_scoped=True),
    _kind("authentication.k8s.io", "SelfSubjectReview", cluster_scoped=True, virtual=True),
    _kind("authentication.k8s.io", "TokenReview", cluster_scoped=True, virtual=True),
    _dra("ResourceSlice", cluster_scoped=True),
    _dra("ResourceClaim", status=True, subresources=("binding", "driver")),
    _dra("ResourceClaimTemplate"),
    _dra("DeviceClass", cluster_scoped=True),
    _dra("DeviceTaintRule", cluster_scoped=True, status=True),
    _dra("ResourcePoolStatusRequest", cluster_scoped=True, status=True),
)

BY_PLURAL = {(k.group, v, k.plural): k for k in KINDS for v in k.versions}


class Registry:
    """The kinds of one server: the kinds in ``KINDS`` that the release serves, and the kinds of CustomResourceDefinitions."""

    def __init__(self, features: Features) -> None:
        self._builtin = [k for kind in KINDS if (k := _as_of(kind, features)).versions]
        self._by_plural = {(k.group, v, k.plural): k for k in self._builtin for v in k.versions}
        self._by_key = {k.key: k for k in self._builtin}
        self._custom: dict[str, ServedKind] = {}  # by the definition's name

    def __iter__(self) -> Iterator[ServedKind]:
        yield from self._builtin
        yield from self._custom.values()

    def stored(self) -> Iterator[ServedKind]:
        """Returns the kinds that store objects under their own storage key."""
        return (k for k in self if not (k.stored_as or k.virtual or k.refused))

    def find(self, group: str, version: str, plural: str) -> ServedKind | None:
        found = self._by_plural.get((group, version, plural))
        if found is None:
            found = self._custom.get(f"{plural}.{group}")
            if found is not None and version not in found.versions:
                return None
        return found

    def by_key(self, key: str) -> ServedKind | None:
        return self._by_key.get(key) or self._custom.get(key)

    def by_kind(self, api_version: str, kind: str) -> ServedKind | None:
        group, _, version = api_version.rpartition("/")
        return next((k for k in self if k.kind == kind and k.group == group and version in k.versions), None)

    def define(self, kind: ServedKind) -> None:
        self._custom[kind.key] = kind

    def forget(self, key: str) -> None:
        self._custom.pop(key, None)


def _as_of(kind: ServedKind, features: Features) -> ServedKind:
    """Returns a kind as the release serves it. It has no versions if the release does not serve it."""
    if kind.group == GROUP:
        needs_gate = kind.kind == "ResourcePoolStatusRequest"
        versions = features.pool_status_requests if needs_gate else versions_of(kind.kind, features.release)
        selectable = features.slice_fields if kind.kind == "ResourceSlice" else ()
        return replace(kind, versions=versions, selectable=selectable)
    if kind.versions == POD_GROUP_VERSIONS:
        return replace(kind, versions=(features.pod_groups,) if features.pod_groups else ())
    return kind
