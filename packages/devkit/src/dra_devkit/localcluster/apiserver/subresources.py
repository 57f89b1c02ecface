"""Handles subresources: binding and eviction of pods, finalize of namespaces, scale of workloads, token of service accounts."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.defaulting import now
from dra_kubeletplugin.resourceapi.validation.field_errors import invalid, required

from ...label_selectors import selected
from ...schemas.object_fields import value_at
from . import field_managers, patch, request_decoding, service_account_tokens, strategy
from .admission import Admission
from .admission.attributes import ObjectKind
from .auth import Tokens
from .deleting import Deleter
from .kinds import ServedKind
from .requests import RequestInfo, conflict, dry_run, json_response, success
from .status_errors import StatusError, invalid_object, not_allowed
from .storage import Storage
from .writing import Writer

_BUDGETS = "poddisruptionbudgets.policy"
_BINDING = ObjectKind("", "v1", "Binding")
_EVICTION = ObjectKind("policy", "v1", "Eviction")
_NAMESPACE = ObjectKind("", "v1", "Namespace")
_SCALE = ObjectKind("autoscaling", "v1", "Scale")
_TOKEN_REQUEST = ObjectKind("authentication.k8s.io", "v1", "TokenRequest")


class Subresources:
    def __init__(self, storage: Storage, writer: Writer, deleter: Deleter, tokens: Tokens) -> None:
        self.storage, self.writer, self.deleter, self.tokens = storage, writer, deleter, tokens

    async def respond(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        """Handles a request for a subresource. Raises :class:`StatusError`."""
        found: Mapping[tuple[str, str], Callable[[Request, RequestInfo, Admission], Awaitable[Response]]] = {
            ("POST", "binding"): self._bind,
            ("POST", "eviction"): self._evict,
            ("POST", "token"): self._token,
            ("PUT", "finalize"): self._finalize,
            ("GET", "scale"): self._scale,
            ("PUT", "scale"): self._set_scale,
            ("PATCH", "scale"): self._set_scale,
        }
        handler = found.get((request.method, target.sub))
        if handler is None:
            raise not_allowed()
        return await self.writer.until_unchanged(target, admission, lambda: handler(request, target, admission))

    # --- pods -----------------------------------------------------------------------------------

    async def _bind(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        body = _body(request, _BINDING)
        pod = self.writer.find(target)
        node = body["target"].get("name")
        if not node:
            raise invalid_object("Binding", "", target.name, required("target.name"))
        uid = body["metadata"].get("uid")
        if uid and uid != pod["metadata"]["uid"]:
            found = f"UID in precondition: {uid}, UID in object meta: {pod['metadata']['uid']}"
            raise conflict(target, f"Precondition failed: {found}")
        if pod["metadata"].get("deletionTimestamp"):
            raise conflict(target, f"pod {target.name} is being deleted, cannot be assigned to a host")
        if at := pod["spec"].get("nodeName"):
            raise conflict(target, f'pod {target.name} is already assigned to node "{at}"')
        if pod["spec"].get("schedulingGates"):
            raise conflict(target, f"pod {target.name} has non-empty .spec.schedulingGates")
        await admission.validate(target, body, kind=_BINDING)
        self.writer.check_unchanged(target, pod)
        status = {k: v for k, v in (pod.get("status") or {}).items() if k != "nominatedNodeName"}
        others = [c for c in status.get("conditions") or [] if c.get("type") != "PodScheduled"]
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()}
        status["conditions"] = [*others, scheduled]
        if not dry_run(request):
            bound = {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status}
            self.storage.put(target.storage, bound, fresh=True)
        return success(201)

    async def _evict(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        body = _body(request, _EVICTION)
        pod = self.writer.find(target)
        await admission.validate(target, body, kind=_EVICTION)
        self.writer.check_unchanged(target, pod)
        options = body.get("deleteOptions") or {}
        dry = dry_run(request, options)
        for budget in self._budgets(pod):
            allowed = int((budget.get("status") or {}).get("disruptionsAllowed") or 0)
            if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed", "Pending"}:
                break
            if allowed < 1:
                name = budget["metadata"]["name"]
                healthy = budget.get("status") or {}
                counts = f"needs {healthy.get('desiredHealthy', 0)} healthy pods and has {healthy.get('currentHealthy', 0)} currently"
                cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {name} {counts}"}
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                raise StatusError(429, "TooManyRequests", message, {"causes": [cause]})
            if not dry:
                status = {**budget["status"], "disruptionsAllowed": allowed - 1}
                self.storage.put(_BUDGETS, {**budget, "status": status})
        if not dry:
            pod = self._marked_disrupted(pod)
        self.deleter.delete_one(
            target.of(target.name),
            {"preconditions": options.get("preconditions") or {}},
            dry=dry,
            grace=options.get("gracePeriodSeconds"),
        )
        return success(201)

    def _marked_disrupted(self, pod: JSON) -> JSON:
        others = [c for c in (pod.get("status") or {}).get("conditions") or [] if c.get("type") != "DisruptionTarget"]
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": None,
            "lastTransitionTime": now(),
        }
        return self.storage.put(
            "pods", {**pod, "status": {**(pod.get("status") or {}), "conditions": [*others, condition]}}
        )

    def _budgets(self, pod: JSON) -> list[JSON]:
        labels = pod["metadata"].get("labels") or {}
        found = self.storage.list(_BUDGETS, pod["metadata"]["namespace"])
        return [b for b in found if selected(labels, (b.get("spec") or {}).get("selector"))]

    # --- others ---------------------------------------------------------------------------------

    async def _token(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        body = _body(request, _TOKEN_REQUEST)
        account = self.writer.find(target)
        await admission.validate(target, body, kind=_TOKEN_REQUEST)
        response = service_account_tokens.issue(self.storage, self.tokens, account, body["spec"])
        return json_response(response, 201, admission.warnings)

    async def _finalize(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        body = _body(request, _NAMESPACE)
        old = self.writer.find(target)
        finalizers = body["spec"].get("finalizers") or []
        obj = {**old, "spec": {**(old.get("spec") or {}), "finalizers": finalizers}}
        await admission.validate(target, obj, old)
        self.writer.check_unchanged(target, old)
        if not dry_run(request):
            gone = self.deleter.finish(target, obj) if obj["metadata"].get("deletionTimestamp") else None
            obj = gone or self.storage.put(target.storage, obj)
        return json_response(strategy.outgoing(target.kind, target.version, obj))

    async def _scale(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        return json_response(_scale_of(target.kind, self.writer.find(target)))

    async def _set_scale(self, request: Request, target: RequestInfo, admission: Admission) -> Response:
        obj = self.writer.find(target)
        current = _scale_of(target.kind, obj)
        scale = target
        if request.method == "PUT":
            requested: Any = request_decoding.read_object(request).value
        else:
            kind = request_decoding.media_type(request)
            field_managers.check_options(request, is_apply=kind == field_managers.APPLY)
            change = request_decoding.read(request).value
            requested = (
                patch.merge(current, change)
                if kind == field_managers.APPLY and isinstance(change, dict)
                else patch.apply(kind, scale, current, change)
            )
        decoded = request_decoding.decoded(requested, _SCALE.group, _SCALE.version, _SCALE.kind)
        replicas = decoded["spec"].get("replicas", 0)
        if replicas < 0:
            fault = invalid("spec.replicas", replicas, "must be greater than or equal to 0")
            raise invalid_object("Scale", "autoscaling", target.name, fault)
        version = decoded["metadata"].get("resourceVersion")
        await admission.validate(target, {**current, "spec": decoded["spec"]}, current, kind=_SCALE)
        changed = copy.deepcopy(obj)
        *above, last = _path(target.kind, "specReplicasPath", _REPLICAS)
        holder = changed
        for key in above:
            holder = holder.setdefault(key, {})
        holder[last] = replicas
        if version and version != current["metadata"]["resourceVersion"]:
            changed["metadata"]["resourceVersion"] = version
        out = await self.writer.replace(request, target.of(target.name), changed, obj, admission.accept_all())
        return json_response(_scale_of(target.kind, out.object))


def _body(request: Request, kind: ObjectKind) -> JSON:
    return request_decoding.decoded(request_decoding.read_object(request).value, kind.group, kind.version, kind.kind)


_REPLICAS, _STATUS_REPLICAS = ".spec.replicas", ".status.replicas"


def _path(kind: ServedKind, name: str, default: str) -> list[str]:
    return [p for p in (kind.scale.get(name) or default).split(".") if p]


def _scale_of(kind: ServedKind, obj: JSON) -> JSON:
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    if kind.custom:
        path = _path(kind, "labelSelectorPath", "")
        selector = str(value_at(obj, *path) or "") if path else ""
    else:
        labels = ((obj.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
        selector = ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
    status = {"replicas": value_at(obj, *_path(kind, "statusReplicasPath", _STATUS_REPLICAS)) or 0}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {k: meta[k] for k in kept if k in meta},
        "spec": {"replicas": value_at(obj, *_path(kind, "specReplicasPath", _REPLICAS)) or 0},
        "status": status | ({"selector": selector} if selector else {}),
    }
