"""The served resources: groups, versions, names, subresources and selectable fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    def singular(self) -> str:
        return self.kind.lower()

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
_V1 = ("v1",)
_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_REVIEWS = "authorization.k8s.io"
_NO_MUTATION = "the local cluster does not evaluate MutatingAdmissionPolicies: use a mutating webhook, which it calls"
_NO_REPLICATION = "the local cluster has no controller for replication controllers: use a Deployment"
_NO_METRICS = "the local cluster does not measure load, so an autoscaler would have no effect: use `kubectl scale`"
_NO_NETWORK = "the local cluster has no pod network, so the object would have no effect"
_NO_STORAGE = "the local cluster has no persistent volumes"
_EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)


def _dra(kind: str, plural: str, *, namespaced: bool = False, **more: Any) -> ServedKind:
    """Returns a kind of resource.k8s.io in the versions of all releases."""
    return ServedKind(GROUP, all_versions(kind), kind, plural, namespaced, **more)


KINDS = (
    ServedKind(
        "",
        _V1,
        "Namespace",
        "namespaces",
        False,
        ("ns",),
        True,
        subresources=("finalize",),
        selectable=("status.phase",),
    ),
    ServedKind("", _V1, "Node", "nodes", False, ("no",), True, selectable=("spec.unschedulable",)),
    ServedKind(
        "",
        _V1,
        "Pod",
        "pods",
        True,
        ("po",),
        True,
        graceful=True,
        categories=ALL,
        subresources=("binding", "eviction", "log", "exec", "attach", "portforward"),
        selectable=(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
    ),
    ServedKind("", _V1, "Event", "events", True, ("ev",), selectable=_EVENT_FIELDS),
    ServedKind("", _V1, "ServiceAccount", "serviceaccounts", True, ("sa",), subresources=("token",)),
    ServedKind("", _V1, "ConfigMap", "configmaps", True, ("cm",)),
    ServedKind("", _V1, "Secret", "secrets", True, selectable=("type",)),
    ServedKind(
        "", _V1, "Service", "services", True, ("svc",), True, categories=ALL, selectable=("spec.clusterIP", "spec.type")
    ),
    ServedKind("", _V1, "ResourceQuota", "resourcequotas", True, ("quota",), True),
    ServedKind("", _V1, "LimitRange", "limitranges", True, ("limits",)),
    ServedKind("", _V1, "PersistentVolumeClaim", "persistentvolumeclaims", True, ("pvc",), refused=_NO_STORAGE),
    ServedKind("", _V1, "PersistentVolume", "persistentvolumes", False, ("pv",), refused=_NO_STORAGE),
    ServedKind("apps", _V1, "DaemonSet", "daemonsets", True, ("ds",), True, categories=ALL),
    ServedKind(
        "apps", _V1, "Deployment", "deployments", True, ("deploy",), True, categories=ALL, subresources=("scale",)
    ),
    ServedKind(
        "apps",
        _V1,
        "ReplicaSet",
        "replicasets",
        True,
        ("rs",),
        True,
        categories=ALL,
        subresources=("scale",),
        selectable=("status.replicas",),
    ),
    ServedKind(
        "apps",
        _V1,
        "StatefulSet",
        "statefulsets",
        True,
        ("sts",),
        categories=ALL,
        refused="the local cluster has no controller for stateful sets: use a Deployment or Pods",
    ),
    ServedKind("batch", _V1, "Job", "jobs", True, (), True, categories=ALL, selectable=("status.successful",)),
    ServedKind(
        "batch",
        _V1,
        "CronJob",
        "cronjobs",
        True,
        ("cj",),
        categories=ALL,
        refused="the local cluster has no controller for cron jobs: use a Job",
    ),
    ServedKind(
        "",
        _V1,
        "ReplicationController",
        "replicationcontrollers",
        True,
        ("rc",),
        categories=ALL,
        refused=_NO_REPLICATION,
    ),
    ServedKind(
        "autoscaling",
        ("v2", "v1"),
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        True,
        ("hpa",),
        categories=ALL,
        refused=_NO_METRICS,
    ),
    ServedKind("networking.k8s.io", _V1, "Ingress", "ingresses", True, ("ing",), refused=_NO_NETWORK),
    ServedKind("networking.k8s.io", _V1, "NetworkPolicy", "networkpolicies", True, ("netpol",)),
    ServedKind("coordination.k8s.io", _V1, "Lease", "leases", True),
    ServedKind(
        "events.k8s.io",
        _V1,
        "Event",
        "events",
        True,
        ("ev",),
        stored_as="events",
        selectable=(
            "reason",
            "reportingController",
            "type",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
        ),
    ),
    ServedKind(_RBAC, _V1, "Role", "roles", True),
    ServedKind(_RBAC, _V1, "RoleBinding", "rolebindings", True),
    ServedKind(_RBAC, _V1, "ClusterRole", "clusterroles", False),
    ServedKind(_RBAC, _V1, "ClusterRoleBinding", "clusterrolebindings", False),
    ServedKind(_ADMISSION, _V1, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", False, (), True),
    ServedKind(_ADMISSION, _V1, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", False),
    ServedKind(_ADMISSION, _V1, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False),
    ServedKind(_ADMISSION, _V1, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False),
    ServedKind(_ADMISSION, _V1, "MutatingAdmissionPolicy", "mutatingadmissionpolicies", False, refused=_NO_MUTATION),
    ServedKind(
        _ADMISSION,
        _V1,
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
        False,
        refused=_NO_MUTATION,
    ),
    ServedKind("scheduling.k8s.io", _V1, "PriorityClass", "priorityclasses", False, ("pc",)),
    ServedKind(pod_groups.GROUP, POD_GROUP_VERSIONS, pod_groups.KIND, pod_groups.RESOURCE, True, (), True),
    ServedKind(
        pod_groups.GROUP,
        POD_GROUP_VERSIONS,
        "Workload",
        "workloads",
        True,
        refused="the local cluster has no controller that creates PodGroups from a Workload: create the PodGroups",
    ),
    ServedKind("policy", _V1, "PodDisruptionBudget", "poddisruptionbudgets", True, ("pdb",), True),
    ServedKind(
        "apiextensions.k8s.io",
        _V1,
        "CustomResourceDefinition",
        "customresourcedefinitions",
        False,
        ("crd", "crds"),
        True,
        categories=("api-extensions",),
    ),
    ServedKind(_REVIEWS, _V1, "SelfSubjectAccessReview", "selfsubjectaccessreviews", False, virtual=True),
    ServedKind(_REVIEWS, _V1, "SubjectAccessReview", "subjectaccessreviews", False, virtual=True),
    ServedKind(_REVIEWS, _V1, "LocalSubjectAccessReview", "localsubjectaccessreviews", True, virtual=True),
    ServedKind(_REVIEWS, _V1, "SelfSubjectRulesReview", "selfsubjectrulesreviews", False, virtual=True),
    ServedKind("authentication.k8s.io", _V1, "SelfSubjectReview", "selfsubjectreviews", False, virtual=True),
    ServedKind("authentication.k8s.io", _V1, "TokenReview", "tokenreviews", False, virtual=True),
    _dra("ResourceSlice", "resourceslices"),
    _dra("ResourceClaim", "resourceclaims", namespaced=True, status=True, subresources=("binding", "driver")),
    _dra("ResourceClaimTemplate", "resourceclaimtemplates", namespaced=True),
    _dra("DeviceClass", "deviceclasses"),
    _dra("DeviceTaintRule", "devicetaintrules", status=True),
    _dra("ResourcePoolStatusRequest", "resourcepoolstatusrequests", status=True),
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


def table(
    kind: ServedKind, objects: Sequence[ReadOnlyJSON], metadata: ReadOnlyJSON, *, include: str = "Metadata"
) -> dict[str, Any]:
    """Returns a meta.k8s.io/v1 Table of the objects."""
    return columns.table(kind.columns, objects, metadata, include=include)
