"""Names the parts of an input on which a command gives no verdict. All commands print them in the same words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

_GROUPS = frozenset(
    {
        "",
        "apps",
        "autoscaling",
        "batch",
        "extensions",
        "policy",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    }
)
"""The API groups of Kubernetes itself. A custom resource never has one of these groups."""


@dataclass(frozen=True)
class UnevaluatedPart:
    """An object, or a part of an object, on which the command gives no verdict.

    Args:
        subject: kind, namespace and name of the object.
        why: the part that was not evaluated, and the consequence.
    """

    subject: str
    why: str

    def __str__(self) -> str:
        return f"not evaluated: {self.subject}: {self.why}"


def group_of(obj: ReadOnlyJSON) -> str:
    return str(obj["apiVersion"]).rpartition("/")[0]


def is_builtin(obj: ReadOnlyJSON) -> bool:
    """Returns whether Kubernetes itself defines the kind of an object."""
    return group_of(obj) in _GROUPS


def subject_of(obj: ReadOnlyJSON, namespace: str = "") -> str:
    """Returns kind, namespace and name of an object; ``namespace`` is for an object that does not set it."""
    meta = obj["metadata"]
    name = meta.get("name") or f"{meta.get('generateName', '')}0"
    where = meta.get("namespace") or namespace
    return f"{obj['kind']} {where}/{name}" if where else f"{obj['kind']} {name}"


def merged(found: Iterable[UnevaluatedPart]) -> tuple[UnevaluatedPart, ...]:
    """Returns the parts with each subject once; the reasons of one subject are joined."""
    by_subject: dict[str, dict[str, None]] = {}
    for one in found:
        by_subject.setdefault(one.subject, {})[one.why] = None
    return tuple(UnevaluatedPart(subject, "; ".join(reasons)) for subject, reasons in by_subject.items())


def unread_kinds(objects: Iterable[ReadOnlyJSON]) -> str:
    """Returns a sentence with the kinds of objects that a question does not read; empty if there are none."""
    kinds = Counter(str(o["kind"]) for o in objects)
    listed = ", ".join(f"{kind} ({number})" if number > 1 else kind for kind, number in sorted(kinds.items()))
    return f"not evaluated: objects of kinds that this command does not read: {listed}" if listed else ""
