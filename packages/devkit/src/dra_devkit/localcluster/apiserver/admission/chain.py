"""Runs admission in this order: mutating webhooks, validation of the object's kind, validating policies, validating webhooks."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from dra_kubeletplugin.base.http_server.server import Request
from dra_kubeletplugin.base.json_types import JSON

from ....kubernetes_releases import Features
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

_OPTIONS = {CREATE: "CreateOptions", UPDATE: "UpdateOptions", DELETE: "DeleteOptions"}


class AdmissionChain:
    """The admission plugins of one server. It creates an :class:`Admission` for each request."""

    def __init__(self, storage: Storage, registry: Registry, access: Access, features: Features) -> None:
        matcher = Matcher(storage, registry)
        self.access, self.features = access, features
        self.policies = Policies(storage, registry, access, matcher)
        self.webhooks = Webhooks(storage, access, matcher)

    def of(self, request: Request, user: User) -> Admission:
        return Admission(self, request, user)


class Admission:
    """The admission of one request. ``warnings`` contains the warnings for the headers of the response."""

    def __init__(self, chain: AdmissionChain, request: Request, user: User, *, is_admitted: bool = False) -> None:
        self.user, self.access = user, chain.access
        self.warnings: list[str] = []
        self._chain = chain
        self._request = request
        self._is_admitted = is_admitted

    async def mutate(self, target: RequestInfo, obj: JSON, old: JSON | None) -> JSON:
        """Calls all mutating webhooks that match, and returns the changed object. Without a match, returns ``obj``.

        Raises:
            StatusError: A webhook rejected the request, or its call failed and its failure policy is ``Fail``.
        """
        if self._is_admitted or not self._chain.webhooks.any_mutating:
            return obj
        attributes = self._attributes(UPDATE if old is not None else CREATE, target, obj, old)
        changed = await self._chain.webhooks.mutate(
            attributes, functools.partial(_with_patched_object, self._chain.features), self.warnings
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
        """Runs validating policies and webhooks.

        Args:
            operation: CREATE, UPDATE, DELETE or CONNECT; derived from the objects if empty.
            kind: the object's kind if it is not the target's kind.
            options: the DeleteOptions in a deletion's body.

        Raises:
            StatusError: A policy or webhook rejected the request.
        """
        if self._is_admitted or not (self._chain.webhooks.any_validating or self._chain.policies.any):
            return
        operation = operation or (DELETE if obj is None else CREATE if old is None else UPDATE)
        attributes = self._attributes(operation, target, obj, old, kind, options)
        self._chain.policies.validate(attributes, self.warnings)
        await self._chain.webhooks.validate(attributes, self.warnings)

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

    def accept_all(self) -> Admission:
        """Returns an admission that accepts every write, for a further write of a request that was already admitted."""
        return Admission(self._chain, self._request, self.user, is_admitted=True)


def _with_patched_object(features: Features, view: View, patched: Any) -> Attributes:
    """Returns the request's attributes with the object that a webhook patched. Raises :class:`StatusError`."""
    if not isinstance(patched, dict):
        raise bad_request("the patch of a webhook does not result in an object")
    if view.attributes.own_kind is not None:
        return replace(view.attributes, object=patched)
    try:
        obj, _ = strategy.incoming(view.kind, view.version, patched, features)
    except strategy.BadObject as e:
        raise bad_request(str(e)) from None
    return replace(view.attributes, object=obj)


__all__ = ["Admission", "AdmissionChain", "ObjectKind"]
