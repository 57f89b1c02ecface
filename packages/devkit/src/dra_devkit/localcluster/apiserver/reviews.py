"""Processes reviews, which are created but never stored: token reviews, access reviews and self reviews (``kubectl auth``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.validation.field_errors import invalid

from .access import Access, AccessRequest
from .auth import AUDIENCE, Tokens, User
from .request_decoding import decoded, read_object
from .requests import RequestInfo, json_response
from .status_errors import bad_request, invalid_object

_ATTRIBUTES = {"verb": "verb", "group": "group", "resource": "resource", "subresource": "sub"}
_ATTRIBUTES |= {"namespace": "namespace", "name": "name"}
_EVERYTHING: JSON = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


class Reviews:
    def __init__(self, access: Access, tokens: Tokens) -> None:
        self.access, self.tokens = access, tokens

    def respond(self, request: Request, target: RequestInfo, user: User) -> Response:
        """Returns the review with its status. Raises :class:`StatusError`."""
        kind = target.kind
        spec = decoded(read_object(request).value, kind.group, target.version, kind.kind).get("spec") or {}
        head: JSON = {"kind": kind.kind, "apiVersion": kind.api_version(target.version), "metadata": {}}
        if spec:
            head["spec"] = spec
        return json_response({**head, "status": self._status(target, spec, user)}, 201)

    def _status(self, target: RequestInfo, spec: JSON, user: User) -> JSON:
        match target.kind.kind:
            case "SelfSubjectReview":
                return {"userInfo": user.info}
            case "TokenReview":
                return self._token(spec)
            case "SelfSubjectRulesReview":
                if not spec.get("namespace"):
                    raise bad_request("no namespace on request")
                return self._rules(user, spec["namespace"])
            case "SelfSubjectAccessReview":
                return self._decision(user, _question(spec))
        question = _question(spec)
        if target.namespace and question.namespace != target.namespace:
            path, why = "spec.resourceAttributes.namespace", "must match metadata.namespace"
            raise invalid_object(target.kind.kind, target.kind.group, "", invalid(path, question.namespace, why))
        return self._decision(_user(spec), question)

    def _decision(self, user: User, question: AccessRequest) -> JSON:
        reason = self.access.allowed(user, question)
        return {"allowed": bool(reason)} | ({"reason": reason} if reason else {})

    def _token(self, spec: JSON) -> JSON:
        audiences = spec.get("audiences") or [AUDIENCE]
        found = self.tokens.user_of(spec.get("token", ""), self.access.storage, audiences)
        if found is None:
            return {"user": {}, "error": "[invalid bearer token]"}
        return {"authenticated": True, "user": found.info, "audiences": audiences}

    def _rules(self, user: User, namespace: str) -> JSON:
        if user.is_master:
            return _EVERYTHING
        rules = [dict(rule) for rule, _ in self.access.rules(user, namespace)]
        resources = [r for r in rules if not r.get("nonResourceURLs")]
        paths = [r for r in rules if r.get("nonResourceURLs")]
        return {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}


def _user(spec: JSON) -> User:
    name, groups, extra = spec.get("user", ""), spec.get("groups") or (), spec.get("extra") or {}
    if not name and not groups:
        fault = invalid("spec.user", "", "at least one of user or group must be specified")
        raise invalid_object("SubjectAccessReview", "authorization.k8s.io", "", fault)
    known = {key.lower(): tuple(values or ()) for key, values in extra.items()}
    return User(name, tuple(groups), spec.get("uid", ""), known)


def _question(spec: Mapping[str, Any]) -> AccessRequest:
    attributes, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if attributes is not None and path is None:
        return AccessRequest(**{field: attributes.get(key, "") for key, field in _ATTRIBUTES.items()})
    if path is not None and attributes is None:
        return AccessRequest(path.get("verb", ""), path=path.get("path", ""))
    raise bad_request("spec needs exactly one of resourceAttributes and nonResourceAttributes")
