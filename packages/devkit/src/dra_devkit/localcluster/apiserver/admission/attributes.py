"""The attributes of a request for admission policies and webhooks, in the API version that they select (admission.k8s.io/v1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from dra_kubeletplugin.base.json_types import JSON

from .. import strategy
from ..auth import User
from ..kinds import ServedKind
from ..requests import RequestInfo

CREATE, UPDATE, DELETE, CONNECT = "CREATE", "UPDATE", "DELETE", "CONNECT"


@dataclass(frozen=True)
class ObjectKind:
    group: str
    version: str
    kind: str

    @property
    def json(self) -> JSON:
        return {"group": self.group, "version": self.version, "kind": self.kind}


@dataclass(frozen=True)
class Attributes:
    """The attributes of one request.

    Attributes:
        target: the requested resource, in the request's version.
        object: the object in its stored form, without apiVersion and kind. For a subresource with its own kind, the object in API form.
        old: the stored object before the request.
        own_kind: the kind of ``object`` if it differs from the target's kind: Binding, Eviction or Scale.
    """

    operation: str
    target: RequestInfo
    user: User
    object: JSON | None
    old: JSON | None
    options: JSON = field(default_factory=dict)
    dry: bool = False
    own_kind: ObjectKind | None = None

    @property
    def name(self) -> str:
        found = self.target.name or ((self.object or {}).get("metadata") or {}).get("name") or ""
        return str(found)

    @property
    def namespace(self) -> str:
        """The request's namespace. Admission treats a Namespace object as being in the namespace of its own name."""
        return self.name if self.target.kind.storage == "namespaces" else self.target.namespace


@dataclass(frozen=True)
class View:
    """A request, converted to the resource and version of a rule that matches it."""

    attributes: Attributes
    kind: ServedKind
    version: str

    @property
    def object(self) -> JSON | None:
        return self._shown(self.attributes.object)

    @property
    def old(self) -> JSON | None:
        return self._shown(self.attributes.old)

    def _shown(self, obj: JSON | None) -> JSON | None:
        if obj is None or self.attributes.own_kind is not None:
            return obj
        return strategy.outgoing(self.kind, self.version, obj)

    def request(self) -> JSON:
        """Returns the AdmissionRequest without its objects and its UID."""
        attributes = self.attributes
        target = attributes.target
        kind = attributes.own_kind or ObjectKind(self.kind.group, self.version, self.kind.kind)
        request_kind = attributes.own_kind or ObjectKind(target.kind.group, target.version, target.kind.kind)
        out: JSON = {
            "kind": kind.json,
            "resource": {"group": self.kind.group, "version": self.version, "resource": self.kind.plural},
            "requestKind": request_kind.json,
            "requestResource": {
                "group": target.kind.group,
                "version": target.version,
                "resource": target.kind.plural,
            },
            "operation": attributes.operation,
            "userInfo": attributes.user.info,
            "dryRun": attributes.dry,
            "options": attributes.options,
        }
        if target.sub:
            out |= {"subResource": target.sub, "requestSubResource": target.sub}
        if attributes.name:
            out["name"] = attributes.name
        if attributes.namespace:
            out["namespace"] = attributes.namespace
        return out
