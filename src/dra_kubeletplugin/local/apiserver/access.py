"""What a user may do: role-based access control, and the reviews that ask for it (``kubectl auth can-i``, ``whoami``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...observe.http import Request, Response
from .auth import Tokens, User
from .bodies import read_object
from .refusals import bad_request
from .requests import Target, json_response
from .storage import Storage

JSON = dict[str, Any]
_GROUP = "rbac.authorization.k8s.io"
_EVERYBODY = {  # what each user may ask, as the role system:basic-user has it
    ("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
    ("create", "authorization.k8s.io", "selfsubjectrulesreviews"),
    ("create", "authentication.k8s.io", "selfsubjectreviews"),
}


@dataclass(frozen=True)
class Question:
    """``path`` is that of a request which is for no resource."""

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


class Access:
    def __init__(self, storage: Storage, tokens: Tokens) -> None:
        self.storage, self.tokens = storage, tokens

    def allowed(self, user: User, question: Question) -> str:
        """Why it is allowed; empty where it is not."""
        if user.is_master:
            return "the user is of system:masters"
        if (question.verb, question.group, question.resource) in _EVERYBODY or (
            question.path and question.verb == "get"
        ):
            return "everybody may"
        for rule, binding in self._rules(user, question.namespace):
            if _covers(rule, question):
                return f'RBAC: allowed by {binding["kind"]} "{binding["metadata"]["name"]}"'
        return ""

    def _rules(self, user: User, namespace: str) -> Iterator[tuple[Mapping[str, Any], JSON]]:
        for binding in self.storage.list(f"clusterrolebindings.{_GROUP}"):
            if _binds(binding, user, ""):
                yield from self._of_role({**binding, "kind": "ClusterRoleBinding"}, "")
        for binding in self.storage.list(f"rolebindings.{_GROUP}", namespace) if namespace else ():
            if _binds(binding, user, namespace):
                yield from self._of_role({**binding, "kind": "RoleBinding"}, namespace)

    def _of_role(self, binding: JSON, namespace: str) -> Iterator[tuple[Mapping[str, Any], JSON]]:
        reference = binding.get("roleRef") or {}
        if reference.get("kind") == "ClusterRole":
            role = self.storage.get(f"clusterroles.{_GROUP}", "", reference.get("name", ""))
        else:
            role = self.storage.get(f"roles.{_GROUP}", namespace, reference.get("name", ""))
        for rule in (role or {}).get("rules") or ():
            yield rule, binding

    # --- reviews --------------------------------------------------------------------------------

    def review(self, request: Request, target: Target, user: User) -> Response:
        body = read_object(request).value
        spec = body.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        head = {"kind": target.kind.kind, "apiVersion": target.kind.api_version(target.version), "metadata": {}}
        match target.kind.kind:
            case "SelfSubjectReview":
                return json_response({**head, "status": {"userInfo": _info(user)}}, 201)
            case "TokenReview":
                found = self.tokens.user_of(str(spec.get("token", "")))
                status: JSON = {"authenticated": True, "user": _info(found)} if found else {"authenticated": False}
                return json_response({**head, "spec": spec, "status": status}, 201)
            case "SelfSubjectRulesReview":
                return json_response(
                    {**head, "spec": spec, "status": self._all_rules(user, str(spec.get("namespace", "")))}, 201
                )
            case "SubjectAccessReview" | "LocalSubjectAccessReview":
                groups = spec.get("groups")
                user = User(str(spec.get("user", "")), tuple(map(str, groups)) if isinstance(groups, list) else ())
        reason = self.allowed(user, _question(spec))
        return json_response({**head, "spec": spec, "status": {"allowed": bool(reason), "reason": reason}}, 201)

    def _all_rules(self, user: User, namespace: str) -> JSON:
        rules = [dict(rule) for rule, _ in self._rules(user, namespace)]
        if user.is_master:
            rules = [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]
        resources = [r for r in rules if not r.get("nonResourceURLs")]
        paths = [r for r in rules if r.get("nonResourceURLs")]
        return {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}


def _info(user: User) -> JSON:
    return {"username": user.name, "groups": list(user.groups)}


def _question(spec: Mapping[str, Any]) -> Question:
    asked, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if isinstance(asked, dict):
        fields = {k: str(asked.get(f) or "") for k, f in _ATTRIBUTES}
        return Question(**fields)
    if isinstance(path, dict):
        return Question(str(path.get("verb", "")), path=str(path.get("path", "")))
    raise bad_request("spec needs resourceAttributes or nonResourceAttributes")


_ATTRIBUTES = (
    ("verb", "verb"),
    ("group", "group"),
    ("resource", "resource"),
    ("sub", "subresource"),
    ("namespace", "namespace"),
    ("name", "name"),
)


def _binds(binding: JSON, user: User, namespace: str) -> bool:
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name")
        if kind == "User" and name == user.name:
            return True
        if kind == "Group" and name in user.groups:
            return True
        if kind == "ServiceAccount":
            place = subject.get("namespace") or namespace
            if user.name == f"system:serviceaccount:{place}:{name}":
                return True
    return False


def _covers(rule: Mapping[str, Any], question: Question) -> bool:
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
    if "*" not in resources and question.full not in resources and f"*/{question.sub}" not in resources:
        return False
    named = rule.get("resourceNames")
    return not named or question.name in named
