"""Decides whether a user may make a request, with the rules of Kubernetes' RBAC authorizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from .auth import User
from .status_errors import StatusError
from .storage import Storage

Rule = Mapping[str, Any]
GROUP = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class AccessRequest:
    """The access that a request needs. ``path`` is set only for a request that is not for a resource, such as ``/healthz``."""

    verb: str
    group: str = ""
    resource: str = ""
    sub: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full(self) -> str:
        return f"{self.resource}/{self.sub}" if self.sub else self.resource

    @property
    def denial(self) -> str:
        """The part of an error message that describes the denied access, as in Kubernetes."""
        if self.path:
            return f'cannot {self.verb} path "{self.path}"'
        place = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        return f'cannot {self.verb} resource "{self.full}" in API group "{self.group}" {place}'


class Access:
    """The RBAC authorizer of one server.

    Attributes:
        audit: called with the user, the request and the decision after each decision; tests use it as an audit log.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.audit: Callable[[User, AccessRequest, bool], None] = lambda *_: None

    def decide(self, user: User, *questions: AccessRequest) -> bool:
        """Returns whether at least one access in ``questions`` is allowed. The user needs only one of them."""
        granted = next((q for q in questions if self.allowed(user, q)), None)
        self.audit(user, granted or questions[0], granted is not None)
        return granted is not None

    def require(self, user: User, question: AccessRequest) -> None:
        """Raises :class:`StatusError` (403) if the user does not have the access ``question``."""
        if self.decide(user, question):
            return
        if question.path:
            raise StatusError(403, "Forbidden", f'forbidden: User "{user.name}" {question.denial}')
        key = f"{question.resource}.{question.group}" if question.group else question.resource
        named = f' "{question.name}"' if question.name else ""
        details = {"name": question.name, "group": question.group, "kind": question.resource}
        message = f'{key}{named} is forbidden: User "{user.name}" {question.denial}'
        raise StatusError(403, "Forbidden", message, details)

    def allowed(self, user: User, question: AccessRequest) -> str:
        """Returns the reason why the access is allowed; empty if it is denied."""
        if user.is_master:
            return "the user is in the group system:masters"
        for rule, binding in self.rules(user, question.namespace):
            if covers(rule, question):
                role, kind = binding["roleRef"], binding["kind"]
                meta = binding["metadata"]
                where = f"{meta['name']}/{meta['namespace']}" if kind == "RoleBinding" else meta["name"]
                named = f'{role.get("kind")} "{role.get("name")}" to {_subject(binding, user)}'
                return f'RBAC: allowed by {kind} "{where}" of {named}'
        return ""

    def rules(self, user: User, namespace: str) -> Iterator[tuple[Rule, JSON]]:
        """Yields each rule that applies to the user, cluster-wide and in ``namespace``, with the binding that grants it."""
        for binding in self.storage.list(f"clusterrolebindings.{GROUP}"):
            if _subject(binding, user):
                yield from self._of_binding({**binding, "kind": "ClusterRoleBinding"}, "")
        for binding in self.storage.list(f"rolebindings.{GROUP}", namespace) if namespace else ():
            if _subject(binding, user):
                yield from self._of_binding({**binding, "kind": "RoleBinding"}, namespace)

    def _of_binding(self, binding: JSON, namespace: str) -> Iterator[tuple[Rule, JSON]]:
        for rule in self.role_rules(binding.get("roleRef") or {}, namespace) or ():
            yield rule, binding

    def role_rules(self, reference: Mapping[str, Any], namespace: str) -> list[Rule] | None:
        """Returns the rules of the role that a binding refers to; None if the role does not exist."""
        if reference.get("kind") == "ClusterRole":
            role = self.storage.get(f"clusterroles.{GROUP}", "", reference.get("name", ""))
        else:
            role = self.storage.get(f"roles.{GROUP}", namespace, reference.get("name", ""))
        return None if role is None else list(role.get("rules") or ())


def _subject(binding: JSON, user: User) -> str:
    """Returns the subject through which a binding applies to a user; empty if it does not apply."""
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name", "")
        if (kind == "User" and name == user.name) or (kind == "Group" and name in user.groups):
            return f'{kind} "{name}"'
        if kind == "ServiceAccount" and (place := subject.get("namespace")):
            if user.name == f"system:serviceaccount:{place}:{name}":
                return f'{kind} "{name}/{place}"'
    return ""


def covers(rule: Rule, question: AccessRequest) -> bool:
    """Returns whether a role's rule allows the request."""

    def has(field: str, value: str) -> bool:
        found = rule.get(field) or ()
        return "*" in found or value in found

    if not has("verbs", question.verb):
        return False
    if question.path:
        paths = rule.get("nonResourceURLs") or ()
        return any(question.path == p or (p.endswith("*") and question.path.startswith(p[:-1])) for p in paths)
    if not has("apiGroups", question.group):
        return False
    resources = rule.get("resources") or ()
    every = question.sub and f"*/{question.sub}" in resources
    if not every and "*" not in resources and question.full not in resources:
        return False
    named = rule.get("resourceNames")
    return not named or question.name in named
