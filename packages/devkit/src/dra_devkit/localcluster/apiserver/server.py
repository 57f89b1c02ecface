"""The API server: authenticates, authorizes and routes requests, and runs the actions that follow a write."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Collection

from dra_kubeletplugin.base.http_server.server import HttpServer, Request, Response
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import ApiConfig, Tls
from dra_kubeletplugin.kube.credentials import Token

from ...kubernetes_releases import Features
from ...schemas import openapi_wire
from ..runtime.interface import ContainerRuntime
from . import auth, custom, negotiation, roles
from .access import Access, AccessRequest
from .admission import Admission, AdmissionChain, builtin
from .admission.attributes import CONNECT, ObjectKind
from .auth import Tokens, User
from .deleting import Deleter
from .discovery import Discovery, is_served
from .faults import Faults
from .kinds import Registry, ServedKind
from .openapi import OpenApi
from .pod_streams import PodStreams
from .quota import Quotas
from .reading import Reader
from .requests import RequestInfo, flag, json_response, new_metadata, parse_path, status_response
from .reviews import Reviews
from .status_errors import StatusError, bad_request, no_resource, not_allowed
from .storage import Storage
from .subresources import Subresources
from .writing import Writer

log = logging.getLogger(__name__)
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class ApiServer:
    """An API server. It serves from :meth:`start` until :meth:`close`. Only tests access ``storage`` directly.

    Args:
        address: HOST:PORT; by default the loopback address and a free port.
        tls: TLS settings for HTTPS; None for HTTP.
        storage: the stored objects. For a second server with the same objects, pass the storage of the first.
        tokens: the valid tokens. By default, a new token of the administrator. For a second server, pass the tokens of the first.
        front: an additional address with TLS for kubectl, which sends its token only over TLS. Clients in this process do not use it.
        runtime_of: returns the runtime of a node, for the logs and commands of pods; None for an unknown node.
        features: the simulated Kubernetes release with its feature gates. By default, the default release.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        tls: ssl.SSLContext | None = None,
        storage: Storage | None = None,
        tokens: Tokens | None = None,
        front: tuple[str, ssl.SSLContext] | None = None,
        runtime_of: Callable[[str], ContainerRuntime | None] = lambda _: None,
        features: Features | None = None,
    ) -> None:
        self.storage = storage or Storage()
        self._streams = PodStreams(self.storage, runtime_of)
        self.tokens = tokens or Tokens()
        self.features = features or Features.of()
        self.injected_faults = Faults()
        self.url = ""
        self.public_url = ""
        self._front = HttpServer(self._serve, *front) if front else None
        self._http = HttpServer(self._serve, address, tls)
        self._names = {a.rpartition(":")[0].lower() for a in (address, front[0] if front else "")} - {""}
        self._registry = Registry(self.features)
        self._quotas = Quotas(self.storage)
        self._reader = Reader(self.storage)
        self._deleter = Deleter(self.storage, self._registry, self._reader, self._removed)
        self._writer = Writer(
            self.storage,
            self._registry,
            self.injected_faults,
            self._quotas,
            self.features,
            self._deleter.finish,
            self._written,
        )
        self._subresources = Subresources(self.storage, self._writer, self._deleter, self.tokens)
        self.access = Access(self.storage)
        self._reviews = Reviews(self.access, self.tokens)
        self._admissions = AdmissionChain(self.storage, self._registry, self.access, self.features)
        self._discovery = Discovery(self._registry, self.features.version)
        self._openapi = OpenApi(self._registry, self._discovery)
        self._create_initial_objects()

    async def start(self) -> str:
        """Starts the server and returns its URL. Sets ``public_url`` to the URL of ``front`` if there is one, otherwise to the same URL.

        Raises ``OSError`` if an address cannot be bound.
        """
        self.url = self.public_url = await self._http.start()
        for namespace in self.storage.list("namespaces"):
            if namespace["metadata"].get("deletionTimestamp"):  # an earlier server began to delete it
                self._deleter.empty_soon(namespace["metadata"]["name"])
        if self._front is not None:
            try:
                self.public_url = await self._front.start()
            except OSError:
                await self._http.close()
                raise
        return self.url

    async def close(self) -> None:
        self._deleter.close()
        await self._http.close()
        if self._front is not None:
            await self._front.close()

    @property
    def token(self) -> str:
        """The bearer token of the cluster's administrator."""
        return self.tokens.admin

    @property
    def config(self) -> ApiConfig:
        """The connection settings for a client in this process, valid after :meth:`start`."""
        return self.config_with(Tls())

    def config_with(self, tls: Tls) -> ApiConfig:
        return ApiConfig(self.url, tls, Token(self.token))

    @property
    def served(self) -> Collection[str]:
        """The served versions of resource.k8s.io."""
        return self.features.served if self.injected_faults.served is None else self.injected_faults.served

    def drop_connections(self) -> None:
        self._http.drop_connections()
        if self._front is not None:
            self._front.drop_connections()

    def _create_initial_objects(self) -> None:
        """Creates the objects that a new cluster has."""
        for definition in self.storage.list(custom.DEFINITIONS):
            self._registry.define(custom.kind_of(definition))
        for name in _NAMESPACES:
            if self.storage.get("namespaces", "", name) is None:
                labels = {"kubernetes.io/metadata.name": name}
                obj = {"metadata": new_metadata({"name": name, "labels": labels})}
                obj |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
                self.storage.put("namespaces", obj)
                self._create_default_account(name)
        for name, value in builtin.SYSTEM_PRIORITIES.items():
            key = "priorityclasses.scheduling.k8s.io"
            if self.storage.get(key, "", name) is None:
                meta = new_metadata({"name": name})
                policy = "PreemptLowerPriority"
                self.storage.put(key, {"metadata": meta, "value": value, "preemptionPolicy": policy})
        roles.make_defaults(self.storage, self._registry)

    def _create_default_account(self, namespace: str) -> None:
        if self.storage.get("serviceaccounts", namespace, "default") is None:
            self.storage.put("serviceaccounts", {"metadata": new_metadata({"name": "default", "namespace": namespace})})

    # --- actions after writes -------------------------------------------------------------------

    def _written(self, target: RequestInfo, obj: JSON, old: JSON | None) -> None:
        if target.storage == "namespaces" and old is None:
            self._create_default_account(obj["metadata"]["name"])
        elif target.storage == custom.DEFINITIONS:
            self._define(obj)
        elif target.storage == roles.CLUSTER_ROLES:
            roles.aggregate(self.storage)
        if target.namespace:
            self._quotas.update_status(target.namespace)

    def _define(self, definition: JSON) -> None:
        kind = custom.kind_of(definition)
        self._registry.define(kind)
        names = definition["spec"]["names"]
        status = custom.established_status(
            names, [v["name"] for v in definition["spec"]["versions"] if v.get("storage")]
        )
        if (definition.get("status") or {}).get("acceptedNames") != names:
            self.storage.put(custom.DEFINITIONS, {**definition, "status": status})

    def _removed(self, kind: ServedKind, obj: JSON) -> None:
        namespace = obj["metadata"].get("namespace", "")
        if kind.storage == custom.DEFINITIONS:
            key = obj["metadata"]["name"]
            for item in self.storage.list(key):
                meta = item["metadata"]
                self.storage.remove(key, meta.get("namespace", ""), meta["name"])
            self._registry.forget(key)
        elif kind.storage == roles.CLUSTER_ROLES:
            roles.aggregate(self.storage)
        if namespace:
            self._quotas.update_status(namespace)

    # --- requests -------------------------------------------------------------------------------

    async def _serve(self, request: Request) -> Response:
        return negotiation.in_accepted_form(request, await self._handle(request))

    async def _handle(self, request: Request) -> Response:
        """Returns the response in JSON."""
        if self.injected_faults.delay:
            await asyncio.sleep(self.injected_faults.delay)
        try:
            if self.injected_faults.down:
                raise StatusError(503, "ServiceUnavailable", "the API server is down (injected fault)")
            user = self._user(request)
            if self.injected_faults.throttle and not request.path.startswith("/openapi"):
                self.injected_faults.throttle -= 1
                refused = status_response(StatusError(429, "TooManyRequests", "too many requests, try again"))
                refused.headers["Retry-After"] = "0.01"
                return refused
            return await self._respond(request, user)
        except StatusError as e:
            return status_response(e)
        except RecursionError:
            return status_response(bad_request("the object is nested too deeply: exceeded max depth"))

    async def _respond(self, request: Request, user: User) -> Response:
        if request.path in {"/healthz", "/livez", "/readyz"}:
            return Response(200, b"ok", "text/plain")
        if request.path == "/metrics":
            self.access.require(user, AccessRequest("get", path=request.path))
            return Response(200, self.features.metrics().encode(), "text/plain; version=0.0.4")
        if request.method in {"GET", "HEAD"}:
            found = self._discovery.document_at(request.path, self.served)
            if found is not None:
                if "kind" in found:
                    negotiation.check(request, "v1", found["kind"])
                return json_response(found)
            accept = request.headers.get("accept", "")
            schemas = self._openapi.document_at(request.path, self.served, accept)
            if isinstance(schemas, bytes):
                return Response(200, schemas, openapi_wire.MEDIA_TYPE)
            if schemas is not None:
                return json_response(schemas)
        return await self._resource(request, user)

    async def _resource(self, request: Request, user: User) -> Response:
        target = parse_path(request.path, self._registry)
        # Components of the cluster may use each version of the release, even if an injected fault hides it from other clients.
        if not user.trusted and not is_served(target.kind.group, target.version, self.served):
            raise no_resource()
        watches = request.method == "GET" and flag(request, "watch")
        if not watches:
            self.injected_faults.calls.append((request.method, request.path))
        self._authorize(request, target, user, watches=watches)
        admission = self._admissions.of(request, user)
        if target.sub in _STREAMS and request.method in {"GET", "POST"}:
            await self._check_stream(request, target, user, admission)
        if (streamed := await self._streams.respond(request)) is not None:
            return streamed
        negotiation.check(request, target.kind.api_version(target.version), target.kind.kind, watches=watches)
        if target.kind.virtual:
            if request.method != "POST" or target.name:
                raise not_allowed()
            return self._reviews.respond(request, target, user)
        if target.sub and target.sub != "status":
            return await self._subresources.respond(request, target, admission)
        match request.method, bool(target.name):
            case "GET" | "HEAD", True if not watches:
                return self._reader.get(request, target)
            case "GET" | "HEAD", False if not watches:
                return self._reader.list(request, target)
            case "GET", _ if not target.sub:
                return self._reader.watch(request, target)
            case "POST", False if target.namespace or not target.kind.namespaced:
                return await self._writer.create(request, target, admission)
            case "PUT", True:
                return await self._writer.update(request, target, admission)
            case "PATCH", True:
                return await self._writer.patch(request, target, admission)
            case "DELETE", True if not target.sub:
                return await self._deleter.delete(request, target, admission)
            case "DELETE", False if target.namespace or not target.kind.namespaced:
                return await self._deleter.delete_all(request, target, admission)
        raise not_allowed()

    # --- authentication and authorization -------------------------------------------------------

    def _user(self, request: Request) -> User:
        """Returns the user whom a request impersonates, or else the user of the request. Raises :class:`StatusError`."""
        user = auth.authenticate(request, self.tokens, self.storage, self._names)
        other = auth.impersonated(request)
        if other is None:
            return user
        for question in auth.to_impersonate(other):
            self.access.require(user, AccessRequest("impersonate", *question))
        return other

    def _authorize(self, request: Request, target: RequestInfo, user: User, *, watches: bool) -> None:
        """Raises :class:`StatusError` if the user may not make the request."""
        if user.is_master:
            return
        verb = _VERBS.get(request.method, "")
        if request.method == "DELETE":
            verb = "delete" if target.name else "deletecollection"
        elif not verb:
            verb = "watch" if watches else "get" if target.name else "list"
        kind, name = target.kind, target.name
        if not name and verb in {"list", "watch", "deletecollection"}:
            name = _one_name(request)
        namespace = name if kind.storage == "namespaces" else target.namespace
        self.access.require(user, AccessRequest(verb, kind.group, kind.plural, target.sub, namespace, name))

    async def _check_stream(self, request: Request, target: RequestInfo, user: User, admission: Admission) -> None:
        """Checks that the user has the verb ``create`` for a stream to a container, and runs admission. Raises :class:`StatusError`."""
        kind = target.kind
        if request.method == "GET" and not user.is_master:
            self.access.require(
                user, AccessRequest("create", kind.group, kind.plural, target.sub, target.namespace, target.name)
            )
        options = ObjectKind("", "v1", _STREAMS[target.sub])
        body: JSON = {"kind": options.kind, "apiVersion": "v1"}
        body |= {k: v == "true" for k, v in request.arguments if k in {"stdin", "stdout", "stderr", "tty"}}
        body |= {k: v for k, v in request.arguments if k == "container"}
        if command := [v for k, v in request.arguments if k == "command"]:
            body["command"] = command
        await admission.validate(target, body, operation=CONNECT, kind=options)


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_STREAMS = {"exec": "PodExecOptions", "attach": "PodAttachOptions", "portforward": "PodPortForwardOptions"}


def _one_name(request: Request) -> str:
    """Returns the name of the object if a list or watch request selects one object by name; empty otherwise."""
    found = re.fullmatch(r"metadata\.name==?([^,=!]+)", request.query.get("fieldSelector", ""))
    return found[1] if found else ""
