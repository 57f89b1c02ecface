"""HTTP in front of storage: paths, verbs, preconditions, patches, lists, watches."""

from __future__ import annotations

import asyncio
import base64
import copy
import logging
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...observe.http import HttpServer, Request, Response
from ...resources.defaults import now
from ...resources.names import SUBDOMAIN
from ..runtime.interface import ContainerRuntime
from . import discovery, managing, patch, selectors, strategy, watching
from .kinds import BY_PLURAL, Kind, table
from .pod_streams import PodStreams
from .requests import (
    Refusal,
    Target,
    body_of,
    conflict,
    json_response,
    managed_of,
    new_metadata,
    not_found,
    parse_path,
    resource_version,
    same_object,
    sort_key,
    status_response,
    wants_table,
)
from .storage import Storage

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


@dataclass
class Faults:
    """What goes wrong on purpose; see :class:`ApiServer`."""

    down: bool = False
    delay: float = 0.0  # seconds before each answer
    conflicts: int = 0
    throttle: int = 0
    dropped: set[str] = field(default_factory=set)  # names of a slice's fields, e.g. "taints", "sharedCounters"
    served: set[str] | None = None  # the versions of resource.k8s.io that there are; None for all
    calls: list[tuple[str, str]] = field(default_factory=list)


class ApiServer:
    """Serves until closed. ``storage`` is there for tests; everybody else goes through HTTP.

    Args:
        address: HOST:PORT; the loopback and a free port by default.
        tls: for HTTPS.
        storage: of another server: a second one in front of the same objects.
        runtime_of: the runtime of a node by its name, for pods' logs and commands in them; None where it is not known.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        tls: ssl.SSLContext | None = None,
        storage: Storage | None = None,
        runtime_of: Callable[[str], ContainerRuntime | None] = lambda _: None,
    ) -> None:
        self.storage = storage or Storage()
        self._streams = PodStreams(self.storage, runtime_of)
        self.faults = Faults()
        self.url = ""
        self._http = HttpServer(self._handle, address, tls)
        for name in ("default", "kube-system") if storage is None else ():
            self._create_namespace(name)

    async def start(self) -> str:
        self.url = await self._http.start()
        return self.url

    async def close(self) -> None:
        await self._http.close()

    def drop_connections(self) -> None:
        self._http.drop_connections()

    def _create_namespace(self, name: str) -> None:
        obj = {"metadata": new_metadata({"name": name, "labels": {"kubernetes.io/metadata.name": name}})}
        self.storage.put("namespaces", obj | {"status": {"phase": "Active"}, "spec": {"finalizers": ["kubernetes"]}})

    # --- requests -------------------------------------------------------------------------------

    async def _handle(self, request: Request) -> Response:
        if self.faults.delay:
            await asyncio.sleep(self.faults.delay)
        try:
            if self.faults.down:
                raise Refusal(503, "ServiceUnavailable", "the API server is away (a fault made on purpose)")
            if self.faults.throttle and not request.path.startswith("/openapi"):
                self.faults.throttle -= 1
                refused = status_response(Refusal(429, "TooManyRequests", "too many requests, try again"))
                refused.headers["Retry-After"] = "0.01"
                return refused
            if (
                found := discovery.answer(request.path, request.headers.get("accept", ""), self.faults.served)
            ) is not None:
                return json_response(found)
            return await self._resource(request)
        except Refusal as e:
            return status_response(e)

    async def _resource(self, request: Request) -> Response:
        if (streamed := await self._streams.answer(request)) is not None:
            return streamed
        target = parse_path(request.path)
        if not discovery.is_served(target.kind.group, target.version, self.faults.served):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if request.query.get("watch") not in {"true", "1"}:
            self.faults.calls.append((request.method, request.path))
        match request.method, bool(target.name):
            case "GET", True:
                return self._get(request, target)
            case "GET", False:
                if request.query.get("watch") in {"true", "1"}:
                    return self._watch(request, target)
                return self._list(request, target)
            case "POST", False:
                return self._create(request, target)
            case "PUT", True:
                return self._update(request, target)
            case "PATCH", True:
                return self._patch(request, target)
            case "DELETE", True:
                return self._delete(request, target)
            case "DELETE", False:
                return self._delete_all(request, target)
            case "POST", True if target.sub == "binding":
                return self._bind(request, target)
        raise Refusal(405, "MethodNotAllowed", f"{request.method} is not supported on {request.path}")

    def _find(self, target: Target) -> JSON:
        found = self.storage.get(target.qualified, target.namespace, target.name)
        if found is None:
            raise not_found(target)
        return found

    def _get(self, request: Request, target: Target) -> Response:
        obj = self._find(target)
        if wants_table(request):
            return json_response(table(target.kind, [obj], {"resourceVersion": obj["metadata"]["resourceVersion"]}))
        return json_response(strategy.outgoing(target.kind, target.version, obj))

    def _matching(self, request: Request, target: Target) -> Any:
        try:
            by_field = selectors.fields(request.query.get("fieldSelector", ""))
            by_label = selectors.labels(request.query.get("labelSelector", ""))
        except selectors.SelectorError as e:
            raise Refusal(400, "BadRequest", str(e)) from None
        namespace = target.namespace

        def matches(obj: Mapping[str, Any]) -> bool:
            if namespace and obj["metadata"].get("namespace") != namespace:
                return False
            return by_field(obj) and by_label(obj)

        return matches

    def _list(self, request: Request, target: Target) -> Response:
        matches = self._matching(request, target)
        found = [o for o in self.storage.list(target.qualified, target.namespace) if matches(o)]
        metadata: JSON = {"resourceVersion": str(self.storage.version)}
        found = self._page(request, found, metadata)
        if wants_table(request):
            return json_response(
                table(target.kind, found, metadata, include=request.query.get("includeObject", "Metadata"))
            )
        items = [strategy.outgoing(target.kind, target.version, o) for o in found]
        for item in items:
            item.pop("kind", None)
            item.pop("apiVersion", None)
        api_version = target.kind.api_version(target.version)
        return json_response(
            {"kind": f"{target.kind.kind}List", "apiVersion": api_version, "metadata": metadata, "items": items}
        )

    def _page(self, request: Request, found: list[JSON], metadata: JSON) -> list[JSON]:
        start = 0
        if token := request.query.get("continue"):
            try:
                version, _, after = base64.urlsafe_b64decode(token).decode().partition(" ")
            except ValueError:
                raise Refusal(400, "BadRequest", "the continue token is not valid") from None
            metadata["resourceVersion"] = version
            start = next((i for i, o in enumerate(found) if sort_key(o) > after), len(found))
        limit = int(request.query.get("limit") or 0)
        if limit and start + limit < len(found):
            token_text = f"{metadata['resourceVersion']} {sort_key(found[start + limit - 1])}"
            metadata["continue"] = base64.urlsafe_b64encode(token_text.encode()).decode()
            metadata["remainingItemCount"] = len(found) - start - limit
            return found[start : start + limit]
        return found[start:]

    # --- writes ---------------------------------------------------------------------------------

    def _decode(self, request: Request, obj: Any, target: Target) -> JSON:
        given = (obj.get("apiVersion"), obj.get("kind"))
        wanted = (target.kind.api_version(target.version), target.kind.kind)
        if given[0] and given[1] and given != wanted:
            message = f"the object is {given[0]} {given[1]}, and this path takes {wanted[0]} {wanted[1]}"
            raise Refusal(400, "BadRequest", message)
        strict = request.query.get("fieldValidation", "Strict") == "Strict"
        try:
            return strategy.incoming(target.kind, target.version, obj, strict=strict)
        except strategy.BadObject as e:
            raise Refusal(400, "BadRequest", str(e)) from None

    def _create(self, request: Request, target: Target) -> Response:
        return self._new(request, target, self._decode(request, body_of(request), target))

    def _new(self, request: Request, target: Target, obj: JSON, managed: list[JSON] | None = None) -> Response:
        """``managed`` are the managed fields of what was applied; who creates manages all."""
        meta = obj["metadata"]
        if target.kind.namespaced:
            self._check_namespace(target, meta)
        obj = strategy.prepare(target.kind, obj, None, status=False)
        self._drop(target, obj)
        named = self._name(target, obj["metadata"])
        self._validate(target, obj, None, status=False)
        obj = strategy.stored(target.kind, obj)
        if self.storage.get(target.qualified, target.namespace, named) is not None:
            details = {"name": named, "kind": target.kind.plural, "group": target.kind.group}
            raise Refusal(409, "AlreadyExists", f'{target.qualified} "{named}" already exists', details)
        obj["metadata"] = new_metadata({**obj["metadata"], "name": named})
        self._manage(obj, managed or managing.updated(request, target, None, obj))
        return self._stored(request, target, obj, 201)

    @staticmethod
    def _manage(obj: JSON, managed: list[JSON]) -> None:
        obj["metadata"] = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
        if managed:
            obj["metadata"]["managedFields"] = managed

    def _check_namespace(self, target: Target, meta: JSON) -> None:
        namespace = target.namespace or meta.get("namespace", "")
        if meta.get("namespace") not in {None, "", namespace}:
            raise Refusal(400, "BadRequest", "the namespace of the object does not match the namespace of the request")
        if self.storage.get("namespaces", "", namespace) is None:
            raise Refusal(
                404, "NotFound", f'namespaces "{namespace}" not found', {"name": namespace, "kind": "namespaces"}
            )
        meta["namespace"] = namespace

    def _name(self, target: Target, meta: JSON) -> str:
        if name := meta.get("name"):
            return str(name)
        prefix = meta.get("generateName", "")[:58]
        if not prefix:
            return ""
        while True:
            name = prefix + "".join(secrets.choice(_ALPHABET) for _ in range(5))
            if self.storage.get(target.qualified, target.namespace, name) is None:
                meta["name"] = name
                return str(name)

    def _validate(self, target: Target, obj: JSON, old: JSON | None, *, status: bool) -> None:
        namespace = self.storage.get("namespaces", "", target.namespace) or {"metadata": {}}
        name = obj["metadata"].get("name", "")
        if target.kind.group == "" and old is None and not SUBDOMAIN.fullmatch(name) and target.kind.kind != "Event":
            raise self._invalid(target, name, [("FieldValueInvalid", "metadata.name", f'Invalid value: "{name}"')])
        try:
            strategy.validate(target.kind, obj, old, namespace["metadata"].get("labels") or {}, status=status)
        except strategy.InvalidObject as e:
            raise self._invalid(target, name, [(f.reason, f.field, f.message) for f in e.faults]) from None

    def _invalid(self, target: Target, name: str, causes: list[tuple[str, str, str]]) -> Refusal:
        listed = [f"{field}: {message}" for _, field, message in causes]
        text = listed[0] if len(listed) == 1 else "[" + ", ".join(listed) + "]"
        group = f".{target.kind.group}" if target.kind.group else ""
        details: JSON = {"name": name, "group": target.kind.group, "kind": target.kind.kind}
        details["causes"] = [{"reason": r, "message": m, "field": f} for r, f, m in causes]
        return Refusal(422, "Invalid", f'{target.kind.kind}{group} "{name}" is invalid: {text}', details)

    def _drop(self, target: Target, obj: JSON) -> None:
        """As a server with a feature gate off."""
        if target.kind.kind == "ResourceSlice":
            strategy.drop(obj["spec"], self.faults.dropped)

    def _update(self, request: Request, target: Target) -> Response:
        body = body_of(request)
        obj = self._decode(request, body, target)
        old = self.storage.get(target.qualified, target.namespace, target.name)
        if old is None:
            raise not_found(target)
        return self._replace(request, target, obj, old, asked=body["metadata"].get("managedFields"))

    def _patch(self, request: Request, target: Target) -> Response:
        change = body_of(request)
        kind = request.headers.get("content-type", "").partition(";")[0]
        managing.check_options(request, is_apply=kind == managing.APPLY)
        old = self.storage.get(target.qualified, target.namespace, target.name)
        if kind == managing.APPLY:
            return self._apply(request, target, managing.check_applied(target, change), old)
        if old is None:
            raise not_found(target)
        current = strategy.outgoing(target.kind, target.version, copy.deepcopy(old))
        try:
            match kind:
                case "application/json-patch+json":
                    patched = patch.json_patch(current, change)
                case "application/strategic-merge-patch+json":
                    patched = patch.strategic(current, change)
                case "application/merge-patch+json":
                    patched = patch.merge(current, change)
                case _:
                    raise Refusal(
                        415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}"
                    )
        except patch.PatchError as e:
            raise Refusal(422, "Invalid", f"the patch cannot be applied: {e}") from None
        if (name := patched["metadata"].get("name")) != target.name:
            raise Refusal(
                400, "BadRequest", f"the name of the object ({name}) does not match the name on the URL ({target.name})"
            )
        obj = self._patched(request, target, patched)
        asked = patched["metadata"].get("managedFields")
        return self._replace(request, target, obj, old, asked=None if asked == managed_of(old) else asked)

    def _apply(self, request: Request, target: Target, config: JSON, old: JSON | None) -> Response:
        if old is None and target.sub:
            raise not_found(target)
        merged, managed = managing.applied(request, target, old, config)
        obj = self._patched(request, target, merged)
        if old is None:
            return self._new(request, Target(target.kind, target.version, target.namespace, "", ""), obj, managed)
        return self._replace(request, target, obj, old, managed)

    def _patched(self, request: Request, target: Target, patched: JSON) -> JSON:
        strict = request.query.get("fieldValidation", "Strict") == "Strict"
        try:
            return strategy.incoming(target.kind, target.version, patched, strict=strict)
        except strategy.BadObject as e:
            raise Refusal(400, "BadRequest", str(e)) from None

    def _replace(
        self,
        request: Request,
        target: Target,
        obj: JSON,
        old: JSON,
        managed: list[JSON] | None = None,
        asked: Any = None,
    ) -> Response:
        """``managed`` are the managed fields after an apply; for all else they follow from what changes, and was ``asked``."""
        meta, before = obj["metadata"], old["metadata"]
        if self.faults.conflicts:
            self.faults.conflicts -= 1
            raise conflict(target, "a fault made on purpose")
        if meta.get("resourceVersion") not in {None, "", before["resourceVersion"]}:
            raise conflict(
                target, "the object has been modified; please apply your changes to the latest version and try again"
            )
        if meta.get("uid") not in {None, "", before["uid"]}:
            raise conflict(
                target, f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {before['uid']}"
            )
        obj = strategy.prepare(target.kind, obj, old, status=target.sub == "status")
        if managed is None:
            managed = managing.updated(request, target, old, strategy.written(target.kind, obj), asked)
        self._manage(obj, managed)
        strategy.settle(target.kind, obj, old)
        self._drop(target, obj)
        meta = obj["metadata"]
        for key in (
            "uid",
            "creationTimestamp",
            "name",
            "namespace",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ):
            meta.pop(key, None)
            if key in before:
                meta[key] = before[key]
        self._validate(target, obj, old, status=target.sub == "status")
        obj = strategy.stored(target.kind, obj)
        meta = obj["metadata"]
        if obj.get("spec") != old.get("spec"):
            meta["generation"] = before.get("generation", 1) + 1
        if same_object(obj, old):
            return json_response(strategy.outgoing(target.kind, target.version, old))
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not self._lingers(target.kind, obj):
            gone = self.storage.remove(target.qualified, target.namespace, target.name)
            return json_response(strategy.outgoing(target.kind, target.version, gone or obj))
        return self._stored(request, target, obj, 200)

    def _stored(self, request: Request, target: Target, obj: JSON, code: int) -> Response:
        obj = {k: v for k, v in obj.items() if k not in {"apiVersion", "kind"}}
        if request.query.get("dryRun") != "All":
            obj = self.storage.put(target.qualified, obj, fresh=True)
        return json_response(strategy.outgoing(target.kind, target.version, obj), code)

    def _bind(self, request: Request, target: Target) -> Response:
        pod = copy.deepcopy(self._find(target))
        node = (body_of(request).get("target") or {}).get("name", "")
        if pod["spec"].get("nodeName"):
            raise conflict(target, f"pod {target.name} is already assigned to node {pod['spec']['nodeName']!r}")
        pod["spec"]["nodeName"] = node
        status = pod.setdefault("status", {})
        status.pop("nominatedNodeName", None)
        others = [c for c in status.get("conditions") or [] if c["type"] != "PodScheduled"]
        status["conditions"] = [*others, {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}]
        self.storage.put(target.qualified, pod)
        return json_response(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
        )

    # --- deletion -------------------------------------------------------------------------------

    @staticmethod
    def _lingers(kind: Kind, obj: JSON) -> bool:
        """Whether a deleted object waits for its kubelet."""
        return kind.graceful and bool(obj["metadata"].get("deletionGracePeriodSeconds"))

    def _delete(self, request: Request, target: Target) -> Response:
        old = self._find(target)
        options = body_of(request) if request.body else {}
        conditions = options.get("preconditions") or {}
        for key in ("uid", "resourceVersion"):
            if conditions.get(key) and conditions[key] != old["metadata"][key]:
                found = f"{key} in precondition: {conditions[key]}, {key} in object meta: {old['metadata'][key]}"
                raise conflict(target, f"Precondition failed: {found}")
        dry = request.query.get("dryRun") == "All" or "All" in (options.get("dryRun") or [])
        obj = copy.deepcopy(old)
        meta = obj["metadata"]
        grace = 0
        if target.kind.graceful and (obj.get("spec") or {}).get("nodeName"):
            asked = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
            grace = int(asked if asked is not None else obj["spec"].get("terminationGracePeriodSeconds", 30))
        if grace or meta.get("finalizers"):
            meta.setdefault("deletionTimestamp", now())
            meta["deletionGracePeriodSeconds"] = grace
            if not dry and not same_object(obj, old):
                obj = self.storage.put(target.qualified, obj)
        elif not dry:
            obj = self.storage.remove(target.qualified, target.namespace, target.name) or obj
            self._collect_garbage(meta["uid"])
        return json_response(strategy.outgoing(target.kind, target.version, obj))

    def _delete_all(self, request: Request, target: Target) -> Response:
        matches = self._matching(request, target)
        found = [o for o in self.storage.list(target.qualified, target.namespace) if matches(o)]
        for obj in found:
            meta = obj["metadata"]
            one = Target(target.kind, target.version, meta.get("namespace", ""), meta["name"], "")
            self._delete(request, one)
        return self._list(request, target)

    def _collect_garbage(self, owner: str) -> None:
        """Objects whose owner has gone go with it."""
        for kind in {k.key: k for k in BY_PLURAL.values()}.values():
            for obj in self.storage.list(kind.key):
                meta = obj["metadata"]
                if any(o["uid"] == owner for o in meta.get("ownerReferences") or []):
                    request = Request("DELETE", "", {}, {}, b"")
                    target = Target(kind, kind.versions[0], meta.get("namespace", ""), meta["name"], "")
                    self._delete(request, target)

    # --- watch ----------------------------------------------------------------------------------

    def _watch(self, request: Request, target: Target) -> Response:
        given = request.query.get("resourceVersion", "")
        initial = request.query.get("sendInitialEvents") == "true" or given in {"", "0"}
        since = self.storage.version if initial else resource_version(given)
        matches = self._matching(request, target)
        stream = watching.events(self.storage, request, target, matches, since, initial=initial)
        return Response(200, stream=stream)
