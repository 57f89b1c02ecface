"""Serves ``log``, ``exec`` and ``attach`` of a pod. A real API server calls the kubelet; the local one calls the node's runtime.

Source: kubernetes, pkg/registry/core/pod/strategy.go (default container), pkg/kubelet/kubelet_pods.go (messages).
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import AsyncIterator, Callable

from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.validation.field_errors import invalid

from ..runtime.interface import ContainerRuntime, ExecSession, LogOptions
from . import remote_command
from .requests import flag, number
from .status_errors import StatusError, bad_request, invalid_object, unknown_object
from .storage import Storage
from .websocket import HandshakeError, WebSocket, accept

_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/(log|exec|attach|portforward)")
_PULLS = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}
_LEAST = {"sinceSeconds": 1, "tailLines": 0, "limitBytes": 1}  # of the options of a log
_DEFAULT = "kubectl.kubernetes.io/default-container"


class PodStreams:
    """Serves streams for the pods in ``storage``. ``runtime_of`` returns a node's runtime by name; None for an unknown node."""

    def __init__(self, storage: Storage, runtime_of: Callable[[str], ContainerRuntime | None]) -> None:
        self._storage = storage
        self._runtime_of = runtime_of

    async def respond(self, request: Request) -> Response | None:
        """Handles a request for a pod's stream; returns None for any other path. Raises :class:`StatusError`."""
        found = _PATH.fullmatch(request.path)
        if not found:
            return None
        namespace, name, sub = found.groups()
        pod = self._storage.get("pods", namespace, name)
        if pod is None:
            raise unknown_object("pods", name)
        match sub:
            case "log" if request.method == "GET":
                return await self._log(request, pod)
            case "exec" | "attach" if request.method in {"GET", "POST"}:
                return self._session(request, pod, sub)
            case "portforward":
                text = (
                    "the local cluster does not support port-forward, because it has no pod network: use `kubectl exec`"
                )
                raise StatusError(501, "NotImplemented", text)
        raise StatusError(405, "MethodNotAllowed", f"{request.method} is not supported on {request.path}")

    def _runtime(self, pod: JSON) -> ContainerRuntime:
        node = pod["spec"].get("nodeName", "")
        runtime = self._runtime_of(node)
        if runtime is None:
            raise unknown_object("nodes", node)
        return runtime

    # --- log ----------------------------------------------------------------------------------------------

    async def _log(self, request: Request, pod: JSON) -> Response:
        name = _container(pod, request.query.get("container", ""))
        options = _options(request, pod["metadata"]["name"])
        if not pod["spec"].get("nodeName"):
            return Response(body=b"", content_type="text/plain")
        where = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
        try:
            lines = self._runtime(pod).logs(pod["metadata"]["uid"], name, options)
            first = await anext(lines, b"")
        except KeyError:
            if options.previous:
                raise bad_request(f"previous terminated {where} not found") from None
            raise bad_request(f"{where} is waiting to start: {_waiting(pod, name)}") from None
        if options.follow:
            return Response(content_type="text/plain", stream=_after(first, lines))
        parts = [first]
        async for part in lines:
            parts.append(part)
        return Response(body=b"".join(parts), content_type="text/plain")

    # --- exec and attach ---------------------------------------------------------------------------------------------

    def _session(self, request: Request, pod: JSON, sub: str) -> Response:
        name = _container(pod, request.query.get("container", ""))
        if not pod["spec"].get("nodeName"):
            raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
        command = [value for key, value in request.arguments if key == "command"]
        if sub == "exec" and not command:
            raise bad_request("you must specify at least 1 command for exec")
        runtime, uid = self._runtime(pod), pod["metadata"]["uid"]
        if name not in runtime.statuses(uid):
            raise StatusError(500, "InternalError", f'container not found ("{name}")')
        try:
            headers = accept(request.headers, remote_command.PROTOCOLS)
        except HandshakeError as e:
            raise bad_request(str(e)) from None
        stdin, tty = flag(request, "stdin"), flag(request, "tty")

        async def start() -> ExecSession:
            if sub == "attach":
                return await runtime.attach(uid, name)
            return await runtime.exec(uid, name, command, stdin=stdin, tty=tty)

        return Response(101, headers=headers, tunnel=lambda *stream: remote_command.serve(WebSocket(*stream), start))


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        if first:
            yield first
        async for part in rest:
            yield part
    finally:
        await rest.aclose()  # type: ignore[attr-defined]


def _options(request: Request, pod: str) -> LogOptions:
    numbers = {name: number(request, name) for name in _LEAST}
    faults = [
        invalid(name, value, f"must be greater than or equal to {_LEAST[name]}")
        for name, value in numbers.items()
        if value is not None and value < _LEAST[name]
    ]
    if faults:
        raise invalid_object("PodLogOptions", "", pod, *faults)
    since = 0.0
    if (seconds := numbers["sinceSeconds"]) is not None:
        since = time.time() - seconds
    elif at := request.query.get("sinceTime"):
        try:
            since = dt.datetime.fromisoformat(at).timestamp()
        except ValueError:
            raise bad_request(f"sinceTime: {at!r} is not a time in RFC 3339") from None
    flags = {name: flag(request, name) for name in ("follow", "previous", "timestamps")}
    return LogOptions(**flags, tail=numbers["tailLines"], since=since, limit=numbers["limitBytes"])


def _container(pod: JSON, requested: str) -> str:
    """Returns the name of the requested or default container. Raises :class:`StatusError` if it is ambiguous or unknown."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    main = [c["name"] for c in spec.get("containers") or []]
    init = [c["name"] for c in spec.get("initContainers") or []]
    requested = requested or (pod["metadata"].get("annotations") or {}).get(_DEFAULT, "")
    if not requested:
        if len(main) == 1 and not init:
            return str(main[0])
        init_hint = f" or one of the init containers: [{' '.join(init)}]" if init else ""
        raise bad_request(
            f"a container name must be specified for pod {name}, choose one of: [{' '.join(main)}]{init_hint}"
        )
    if requested not in {*main, *init}:
        raise bad_request(f"container {requested} is not valid for pod {name}")
    return requested


def _waiting(pod: JSON, name: str) -> str:
    status = pod.get("status") or {}
    for entry in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
        if entry["name"] == name and (waiting := (entry.get("state") or {}).get("waiting")):
            reason = str(waiting.get("reason", "ContainerCreating"))
            return _PULLS.get(reason, reason)
    return "ContainerCreating"
