"""Kubernetes' authorizer library: expressions that check the permissions of the request's user or of a service account.

Source: Kubernetes' documentation, "Common Expression Language in Kubernetes", authorizer library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .declarations import Overload, overloads
from .registry import FUNCTIONS, need
from .values import Record

_TYPES = "kubernetes.authorization"
AUTHORIZER_FUNCTIONS: Mapping[str, list[Overload]] = overloads(
    f"""
{_TYPES}.Authorizer.path(string) -> {_TYPES}.PathCheck
{_TYPES}.Authorizer.group(string) -> {_TYPES}.GroupCheck
{_TYPES}.Authorizer.serviceAccount(string, string) -> {_TYPES}.Authorizer
{_TYPES}.PathCheck.check(string) -> {_TYPES}.Decision
{_TYPES}.GroupCheck.resource(string) -> {_TYPES}.ResourceCheck
{_TYPES}.ResourceCheck.subresource(string) -> {_TYPES}.ResourceCheck
{_TYPES}.ResourceCheck.namespace(string) -> {_TYPES}.ResourceCheck
{_TYPES}.ResourceCheck.name(string) -> {_TYPES}.ResourceCheck
{_TYPES}.ResourceCheck.fieldSelector(string) -> {_TYPES}.ResourceCheck
{_TYPES}.ResourceCheck.labelSelector(string) -> {_TYPES}.ResourceCheck
{_TYPES}.ResourceCheck.check(string) -> {_TYPES}.Decision
{_TYPES}.Decision.allowed() -> bool
{_TYPES}.Decision.reason() -> string
{_TYPES}.Decision.errored() -> bool
{_TYPES}.Decision.error() -> string
""".strip().splitlines()
)


@dataclass(frozen=True)
class Check:
    """The access to check: a verb on a resource or on a path. Role-based access control ignores the selectors."""

    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    field_selector: str = ""
    label_selector: str = ""


Authorize = Callable[[str, Check], str]
"""Returns why a user may have the access, or an empty text if it is denied.

The first argument is the name of a service account, or empty for the request's user; the second is the access to check.
"""


@dataclass(frozen=True)
class Authorizer(Record):
    authorize: Authorize = field(compare=False)
    user: str = ""


@dataclass(frozen=True)
class _CheckBuilder:
    """A check that is not complete yet."""

    authorizer: Authorizer
    check: Check


class PathCheck(_CheckBuilder):
    pass


class GroupCheck(_CheckBuilder):
    pass


class ResourceCheck(_CheckBuilder):
    pass


@dataclass(frozen=True)
class Decision:
    reason: str
    allowed: bool


def _path(a: object, path: object) -> PathCheck:
    return PathCheck(need(a, Authorizer), Check(path=need(path, str)))


def _group(a: object, group: object) -> GroupCheck:
    return GroupCheck(need(a, Authorizer), Check(group=need(group, str)))


def _account(a: object, namespace: object, name: object) -> Authorizer:
    authorizer: Authorizer = need(a, Authorizer)
    return replace(authorizer, user=f"system:serviceaccount:{need(namespace, str)}:{need(name, str)}")


def _resource(a: object, resource: object) -> ResourceCheck:
    group = need(a, GroupCheck)
    return ResourceCheck(group.authorizer, replace(group.check, resource=need(resource, str)))


def _narrowed(attribute: str) -> Callable[[object, object], ResourceCheck]:
    def narrow(a: object, value: object) -> ResourceCheck:
        found: ResourceCheck = need(a, ResourceCheck)
        return replace(found, check=replace(found.check, **{attribute: need(value, str)}))

    return narrow


def _check(a: object, verb: object) -> Decision:
    found: _CheckBuilder = need(a, ResourceCheck, PathCheck)
    reason = found.authorizer.authorize(found.authorizer.user, replace(found.check, verb=need(verb, str)))
    return Decision(reason, bool(reason))


FUNCTIONS["path"] = _path
FUNCTIONS["group"] = _group
FUNCTIONS["serviceAccount"] = _account
FUNCTIONS["resource"] = _resource
FUNCTIONS["subresource"] = _narrowed("subresource")
FUNCTIONS["namespace"] = _narrowed("namespace")
FUNCTIONS["name"] = _narrowed("name")
FUNCTIONS["fieldSelector"] = _narrowed("field_selector")
FUNCTIONS["labelSelector"] = _narrowed("label_selector")
FUNCTIONS["check"] = _check
FUNCTIONS["allowed"] = lambda a: need(a, Decision).allowed
FUNCTIONS["reason"] = lambda a: need(a, Decision).reason
FUNCTIONS["errored"] = lambda a: not isinstance(a, Decision)
FUNCTIONS["error"] = lambda a: "" if isinstance(a, Decision) else str(need(a, str))
