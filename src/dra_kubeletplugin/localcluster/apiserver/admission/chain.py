"""The order of admission: webhooks may change the object, its kind's rules judge it, policies and webhooks have the last word."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from ....base.http_server.server import Request
from ....resourceapi.kubernetes_releases import Features
from .. import strategy
from ..access import Access
from ..auth import User
from ..kinds import Registry
from ..requests import RequestInfo, dry_run
from ..status_errors import bad_request
from ..storage import Storage
from .attributes import CONNECT, CREATE, DELETE, UPDATE, Attributes, ObjectKind, View
from .matching import Matcher
from .policies import Policies
from .webhooks import Webhooks

JSON = dict[str, Any]
_OPTIONS = {CREATE: "CreateOptions", UPDATE: "UpdateOptions", DELETE: "DeleteOptions"}


class AdmissionChain:
    """Of one server: makes the :class:`Admission` of each request."""

    def __init__(self, storage: Storage, registry: Registry, access: Access, features: Features) -> None:
        matcher = Matcher(storage, registry)
        self.access, self.features = access, features
        self.policies = Policies(storage, registry, access, matcher)
        self.webhooks = Webhooks(storage, access, matcher)

    def of(self, request: Request, user: User) -> Admission:
        return Admission(self, request, user)


class Admission:
    """One request's way. What is said beside the answer is in ``warnings``."""

    def __init__(self, all_: AdmissionChain, request: Request, user: User) -> None:
        self.user, self.access = user, all_.access
        self.warnings: list[str] = []
        self._all = all_
        self._request = request

    async def mutate(self, target: RequestInfo, obj: JSON, old: JSON | None) -> JSON:
        """The object as webhooks leave it; the one given where none is for it. Raises :class:`Refusal`."""
        if not self._all.webhooks.any_mutating:
            return obj
        attributes = self._attributes(UPDATE if old is not None else CREATE, target, obj, old)
        changed = await self._all.webhooks.mutate(
            attributes, functools.partial(_changed, self._all.features), self.warnings
        )
        return changed.object or obj

    async def validate(
        self,
        target: RequestInfo,
        obj: JSON | None,
        old: JSON | None = None,
        *,
        operation: str = "",
        kind: ObjectKind | None = None,
        options: JSON | None = None,
    ) -> None:
        """Raises :class:`Refusal`.

        Args:
            operation: follows from the objects where it is left out.
            kind: of an object that is not of the target's kind.
            options: of a deletion, in its body.
        """
        if not self._all.webhooks.any_validating and not self._all.policies.any:
            return
        operation = operation or (DELETE if obj is None else CREATE if old is None else UPDATE)
        attributes = self._attributes(operation, target, obj, old, kind, options)
        self._all.policies.validate(attributes, self.warnings)
        await self._all.webhooks.validate(attributes, self.warnings)

    def _attributes(
        self,
        operation: str,
        target: RequestInfo,
        obj: JSON | None,
        old: JSON | None,
        kind: ObjectKind | None = None,
        options: JSON | None = None,
    ) -> Attributes:
        query = self._request.query
        dry = dry_run(self._request, options)
        found: JSON = {}
        if operation != CONNECT:
            patches = self._request.method == "PATCH"
            found = {"kind": "PatchOptions" if patches else _OPTIONS[operation], "apiVersion": "meta.k8s.io/v1"}
            found |= {k: query[k] for k in ("fieldManager", "fieldValidation") if query.get(k)}
            found |= {k: v for k, v in (options or {}).items() if k not in {"kind", "apiVersion"}}
            found |= {"dryRun": ["All"]} if dry else {}
        return Attributes(operation, target, self.user, obj, old, found, dry, kind)

    def passed(self) -> Admission:
        """For a write that follows from one that was admitted."""
        return _Passed(self._all, self._request, self.user)


class _Passed(Admission):
    async def mutate(self, target: RequestInfo, obj: JSON, old: JSON | None) -> JSON:
        return obj

    async def validate(self, *_: Any, **__: Any) -> None:
        return


def _changed(features: Features, view: View, patched: Any) -> Attributes:
    """The request with an object that a webhook patched. Raises :class:`Refusal`."""
    if not isinstance(patched, dict):
        raise bad_request("the patch of a webhook leaves no object")
    if view.attributes.own_kind is not None:
        return replace(view.attributes, object=patched)
    try:
        obj = strategy.incoming(view.kind, view.version, patched, features, strict=False)
    except strategy.BadObject as e:
        raise bad_request(str(e)) from None
    return replace(view.attributes, object=obj)


__all__ = ["Admission", "AdmissionChain", "ObjectKind"]
