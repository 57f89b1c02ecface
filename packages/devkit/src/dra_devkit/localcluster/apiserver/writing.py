"""Creates, updates and patches objects."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden, invalid, unsupported

from ...kubernetes_releases import Features
from . import claim_status, dropped_fields, field_managers, limits, patch, request_decoding, roles, strategy
from .access import AccessRequest
from .admission import Admission, builtin
from .faults import Faults
from .kinds import Registry
from .quota import Quotas
from .requests import (
    RequestInfo,
    check_name,
    conflict,
    details_of,
    dry_run,
    json_response,
    managed_of,
    new_metadata,
    not_found,
    same_object,
)
from .status_errors import StatusError, bad_request, invalid_object
from .storage import Storage
from .validation import unsupported_warnings

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_RANDOM_LENGTH = 5  # random characters at the end of a generated name
_MAX_PREFIX = 58
_KEPT = (
    "uid",
    "creationTimestamp",
    "name",
    "namespace",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
_MAX_ATTEMPTS = 5
_VALIDATIONS = ("Strict", "Warn", "Ignore")


class _ChangedError(Exception):
    """Another request changed the object during admission."""


@dataclass
class Written:
    """The result of a write: the object and the HTTP status code."""

    object: JSON
    code: int


class Writer:
    """Writes objects: decodes, admits, validates and stores them.

    Args:
        finish: removes an object that is being deleted. Returns None if the object must stay, for example because of finalizers.
        on_stored: called with each written object and its previous state.
    """

    def __init__(
        self,
        storage: Storage,
        registry: Registry,
        injected_faults: Faults,
        quotas: Quotas,
        features: Features,
        finish: Callable[[RequestInfo, JSON], JSON | None],
        on_stored: Callable[[RequestInfo, JSON, JSON | None], None],
    ) -> None:
        self.storage, self.registry, self.injected_faults, self.quotas = storage, registry, injected_faults, quotas
        self.features = features
        self._finish = finish
        self._on_stored = on_stored

    # --- the three verbs ------------------------------------------------------------------------

    async def create(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        if target.kind.refused:
            raise StatusError(422, "Invalid", f"{target.kind.kind}: {target.kind.refused}")
        obj = self.decode(request, target, request_decoding.read_object(request), admission.warnings)
        out = await self.new(request, target, obj, admission)
        return self._response(target, out, admission.warnings)

    async def update(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        async def once() -> Response:
            body = request_decoding.read_object(request)
            obj = self.decode(request, target, body, admission.warnings)
            self._check_name(target, obj["metadata"])
            old = self.find(target)
            requested = (body.value.get("metadata") or {}).get("managedFields")
            out = await self.replace(request, target, obj, old, admission, requested=requested)
            return self._response(target, out, admission.warnings)

        return await self.until_unchanged(target, admission, once)

    async def patch(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        return await self.until_unchanged(target, admission, lambda: self._patch(request, target, admission))

    def check_unchanged(self, target: RequestInfo, old: JSON) -> None:
        """Raises :class:`_ChangedError` if the object has changed since ``old`` was read. :meth:`until_unchanged` catches the error."""
        found = self.storage.get(target.storage, target.namespace, target.name)
        if found is None or found["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise _ChangedError

    @staticmethod
    async def until_unchanged(
        target: RequestInfo, admission: Admission, once: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Calls ``once``, and repeats the call if another request changed the object during admission. Raises :class:`StatusError`."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                return await once()
            except _ChangedError:
                admission.warnings.clear()
        raise conflict(target, _MODIFIED)

    async def _patch(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        kind = request_decoding.media_type(request)
        field_managers.check_options(request, is_apply=kind == field_managers.APPLY)
        body = request_decoding.read(request)
        change = body.value
        old = self.storage.get(target.storage, target.namespace, target.name)
        warnings = admission.warnings
        if kind == field_managers.APPLY:
            out = await self._apply(request, target, field_managers.check_applied(target, change), old, admission)
            return self._response(target, out, warnings)
        if old is None:
            raise not_found(target)
        current = strategy.outgoing(target.kind, target.version, old)
        patched = patch.apply(kind, target, current, change)
        request_decoding.check_depth(patched)
        if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
            raise bad_request("the patch does not result in an object with metadata")
        self._check_name(target, patched["metadata"])
        obj = self.decode(request, target, request_decoding.Body(patched, body.duplicates), warnings)
        requested = patched["metadata"].get("managedFields")
        requested = None if requested == managed_of(old) else requested
        out = await self.replace(request, target, obj, old, admission, requested=requested)
        return self._response(target, out, warnings)

    async def _apply(
        self, request: Request, target: RequestInfo, config: JSON, old: JSON | None, admission: Admission
    ) -> Written:
        if old is None and target.sub:
            raise not_found(target)
        if target.kind.refused:
            raise StatusError(422, "Invalid", f"{target.kind.kind}: {target.kind.refused}")
        if old is None:  # a permission to patch does not include a permission to create
            question = AccessRequest("create", target.kind.group, target.kind.plural, "", target.namespace, target.name)
            admission.access.require(admission.user, question)
        merged, managed = field_managers.apply_configuration(request, target, old, config)
        obj = self.decode(request, target, request_decoding.Body(merged), admission.warnings)
        if old is None:
            if uid := obj["metadata"].get("uid"):
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise conflict(target, why)
            return await self.new(request, target.of(""), obj, admission, managed)
        return await self.replace(request, target, obj, old, admission, managed)

    # --- reading --------------------------------------------------------------------------------

    def find(self, target: RequestInfo) -> JSON:
        found = self.storage.get(target.storage, target.namespace, target.name)
        if found is None:
            raise not_found(target)
        return found

    def decode(self, request: Request, target: RequestInfo, body: request_decoding.Body, warnings: list[str]) -> JSON:
        obj = body.value
        actual = (obj.get("apiVersion"), obj.get("kind"))
        wanted = (target.kind.api_version(target.version), target.kind.kind)
        if (actual[0] and actual[0] != wanted[0]) or (actual[1] and actual[1] != wanted[1]):
            message = f"the API version in the data ({actual[0]}) does not match the expected API version ({wanted[0]})"
            if actual[0] in (None, "", wanted[0]):
                message = f"the kind in the data ({actual[1]}) does not match the expected kind ({wanted[1]})"
            raise bad_request(message)
        field_validation = request.query.get("fieldValidation") or "Warn"
        if field_validation not in _VALIDATIONS:
            fault = unsupported("fieldValidation", field_validation, _VALIDATIONS)
            raise invalid_object("CreateOptions", "meta.k8s.io", "", fault)
        try:
            out, unknown = strategy.incoming(target.kind, target.version, obj, self.features)
            found = [f'duplicate field "{path}"' for path in body.duplicates]
            found += [f'unknown field "{path}"' for path in unknown]
            if found and field_validation == "Strict":
                raise strategy.BadObject(target.kind, target.version, f"strict decoding error: {', '.join(found)}")
        except strategy.BadObject as e:
            raise bad_request(str(e)) from None
        if field_validation == "Warn":
            warnings += found
        return out

    @staticmethod
    def _check_name(target: RequestInfo, meta: JSON) -> None:
        if not meta.get("name"):
            raise bad_request("the name of the object could not be determined: name must be provided")
        check_name(target, meta["name"])

    # --- creating -------------------------------------------------------------------------------

    async def new(
        self, request: Request, target: RequestInfo, obj: JSON, admission: Admission, managed: list[JSON] | None = None
    ) -> Written:
        """Validates and stores a new object.

        Args:
            managed: the managed fields after an apply; None makes the creator the manager of all fields.
        """
        meta = obj["metadata"]
        dry = dry_run(request)
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        namespace: JSON = {"metadata": {}}
        if target.kind.namespaced:
            namespace = builtin.check_namespace(self.storage, target, meta)
        else:
            # As in Kubernetes, a namespace is removed. kustomize sets a namespace for cluster-scoped kinds that it does not know.
            meta.pop("namespace", None)
        roles.check_grant(admission.access, admission.user, target, obj)
        obj = await admission.mutate(target, obj, None)
        obj = strategy.prepare(target.kind, obj, None, status=False)
        self._drop(target, obj, None)
        named = self._name(target, obj["metadata"])
        if target.storage == "pods":
            builtin.set_priority(self.storage, target, obj)
            builtin.check_runtime_class(target, obj)
            limits.admit(self.storage, target, obj)
        self._validate(target, obj, None, namespace, status=False)
        if target.storage == "pods":
            builtin.check_account(self.storage, target, obj)
        obj = strategy.for_storage(target.kind, obj)
        obj["metadata"] = new_metadata({**obj["metadata"], "name": named})
        strategy.select_own_pods(target.kind, obj)
        await admission.validate(target, obj)
        if self.storage.get(target.storage, target.namespace, named) is not None:
            raise already_exists(target, named)
        self.quotas.admit(target, obj, None)
        self._set_managed_fields(obj, managed or field_managers.managed_after_update(request, target, None, obj))
        return Written(self._store(target, obj, None, dry=dry), 201)

    def _name(self, target: RequestInfo, meta: JSON) -> str:
        if name := meta.get("name"):
            return str(name)
        prefix = meta.get("generateName", "")[:_MAX_PREFIX]
        if not prefix:
            return ""
        while True:
            name = prefix + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
            if self.storage.get(target.storage, target.namespace, name) is None:
                meta["name"] = name
                return str(name)

    def _validate(
        self,
        target: RequestInfo,
        obj: JSON,
        old: JSON | None,
        namespace: JSON,
        *,
        status: bool,
        extra: Sequence[FieldError] = (),
    ) -> None:
        faults = list(extra)
        try:
            labels = namespace["metadata"].get("labels") or {}
            strategy.validate(target.kind, obj, old, labels, self.features, status=status)
        except strategy.InvalidObject as e:
            faults = [*e.faults, *faults]
        if faults:
            raise invalid_object(target.kind.kind, target.kind.group, obj["metadata"].get("name", ""), *faults)

    def _drop(self, target: RequestInfo, obj: JSON, old: JSON | None) -> None:
        """Removes fields whose feature gate is off, and fields that a fault injection drops."""
        dropped_fields.drop(target.kind, obj, old, self.features)
        if target.kind.kind == "ResourceSlice" and target.kind.structured:
            strategy.drop(obj["spec"], self.injected_faults.dropped)

    # --- replacing ------------------------------------------------------------------------------

    async def replace(
        self,
        request: Request,
        target: RequestInfo,
        obj: JSON,
        old: JSON,
        admission: Admission,
        managed: list[JSON] | None = None,
        requested: Any = None,
    ) -> Written:
        """Validates and stores a changed object.

        Args:
            managed: the managed fields after an apply; None computes them from the change.
            requested: the ``managedFields`` in the request; None if it has none.
        """
        before, dry, status = old["metadata"], dry_run(request), target.sub == "status"
        faults = self._check_metadata(request, target, obj["metadata"], before)
        if any(obj.get(f) != old.get(f) for f in ("rules", "aggregationRule", "roleRef", "subjects")):
            roles.check_grant(admission.access, admission.user, target, obj)
        obj = await admission.mutate(target, obj, old)
        obj = strategy.prepare(target.kind, obj, old, status=status)
        if managed is None:
            managed = field_managers.managed_after_update(
                request, target, old, strategy.for_writer(target.kind, obj), requested
            )
        self._set_managed_fields(obj, managed)
        strategy.remove_deallocated(target.kind, obj, old)
        self._drop(target, obj, old)
        _keep_metadata(obj["metadata"], before)
        namespace = self.storage.get("namespaces", "", target.namespace) or {"metadata": {}}
        faults += self._authorization_faults(request, target, obj, old, admission)
        self._validate(target, obj, old, namespace, status=status, extra=faults)
        self._check_no_new_finalizers(target, obj["metadata"], before)
        obj = strategy.for_storage(target.kind, obj)
        meta = obj["metadata"]
        if target.kind.counts_generations and obj.get("spec") != old.get("spec"):
            meta["generation"] = before.get("generation", 1) + 1
        await admission.validate(target, obj, old)
        self.check_unchanged(target, old)
        if same_object(obj, old):
            return Written(old, 200)
        self.quotas.admit(target, obj, old)
        if meta.get("deletionTimestamp") and not dry and self._finish(target, obj) is not None:
            # The response contains the written object without finalizers, not the object that was last stored.
            return Written({**obj, "metadata": {**meta, "resourceVersion": before["resourceVersion"]}}, 200)
        return Written(self._store(target, obj, old, dry=dry), 200)

    def _check_metadata(self, request: Request, target: RequestInfo, meta: JSON, before: JSON) -> list[FieldError]:
        """Checks the metadata of a changed object. Returns the errors; raises :class:`StatusError` for a conflict or another namespace."""
        if self.injected_faults.conflicts:
            self.injected_faults.conflicts -= 1
            raise conflict(target, "injected fault")
        if meta.get("resourceVersion") not in {None, "", before["resourceVersion"]}:
            raise conflict(target, _MODIFIED)
        faults = _immutable_metadata(request, target, meta, before)
        if not target.kind.namespaced:
            meta.pop("namespace", None)
        if meta.get("namespace") not in {None, "", before.get("namespace", "")}:
            raise bad_request(
                f"the namespace of the provided object does not match the namespace sent on the request ({meta['namespace']})"
            )
        return faults

    def _authorization_faults(
        self, request: Request, target: RequestInfo, obj: JSON, old: JSON, admission: Admission
    ) -> Sequence[FieldError]:
        if target.sub != "status" or target.kind.kind != "ResourceClaim" or not target.kind.structured:
            return ()
        if not self.features.has("DRAResourceClaimGranularStatusAuthorization"):
            return ()
        verb = "patch" if request.method == "PATCH" else "update"
        new, before = obj.get("status") or {}, old.get("status") or {}
        return claim_status.status_faults(admission.access, admission.user, verb, target.namespace, new, before)

    @staticmethod
    def _check_no_new_finalizers(target: RequestInfo, meta: JSON, before: JSON) -> None:
        added = [f for f in meta.get("finalizers") or () if f not in (before.get("finalizers") or ())]
        if before.get("deletionTimestamp") and added:
            listed = ", ".join(json.dumps(f) for f in added)
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
            fault = forbidden("metadata.finalizers", why)
            raise invalid_object(target.kind.kind, target.kind.group, target.name, fault)

    # --- storing --------------------------------------------------------------------------------

    @staticmethod
    def _set_managed_fields(obj: JSON, managed: list[JSON]) -> None:
        obj["metadata"] = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
        if managed:
            obj["metadata"]["managedFields"] = managed

    def _store(self, target: RequestInfo, obj: JSON, old: JSON | None, *, dry: bool) -> JSON:
        obj = {k: v for k, v in obj.items() if k not in {"apiVersion", "kind"}}
        if dry:
            return obj
        stored = self.storage.put(target.storage, obj, fresh=True)
        self._on_stored(target, stored, old)
        return self.storage.get(target.storage, target.namespace, stored["metadata"]["name"]) or stored

    def _response(self, target: RequestInfo, out: Written, warnings: Sequence[str]) -> Response:
        shown = strategy.outgoing(target.kind, target.version, out.object)
        unsupported = unsupported_warnings.warnings(target.kind, out.object, self.features) if not target.sub else ()
        return json_response(shown, out.code, [*warnings, *unsupported])


def _immutable_metadata(request: Request, target: RequestInfo, meta: JSON, before: JSON) -> list[FieldError]:
    """Returns an error for each changed metadata field that only the server may set.

    In a PUT, the UID is a precondition, so a different UID is a conflict. A patch has no preconditions.
    """
    uid = meta.get("uid")
    if uid not in {None, "", before["uid"]} and request.method != "PATCH":
        raise conflict(target, f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}")
    changed = ["uid"] if uid not in {None, "", before["uid"]} else []
    if not before.get("deletionTimestamp"):
        changed += [k for k in ("deletionTimestamp", "deletionGracePeriodSeconds") if meta.get(k) is not None]
    return [invalid(f"metadata.{key}", meta[key], "field is immutable") for key in changed]


def _keep_metadata(meta: JSON, before: JSON) -> None:
    """Restores the fields that only the server sets."""
    for key in _KEPT:
        meta.pop(key, None)
        if key in before:
            meta[key] = before[key]


def already_exists(target: RequestInfo, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{target.kind.key} "{name}" already exists', details_of(target, name))
