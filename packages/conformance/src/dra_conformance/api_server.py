"""The API server of the suite. It records the driver's requests, and injects faults for single requests.

The suite reads and writes the storage directly, so the transcript contains only requests of the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.apiserver.access import AccessRequest
from dra_devkit.localcluster.apiserver.certificate import write as write_certificate
from dra_devkit.localcluster.apiserver.requests import new_metadata, parse_path, status_response
from dra_devkit.localcluster.apiserver.status_errors import StatusError
from dra_devkit.localcluster.cluster import kubeconfig_of
from dra_devkit.schemas import protobuf
from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import clip

from .transcript import HttpCall, Transcript, cut

SLICES = "resourceslices.resource.k8s.io"
CLAIMS = "resourceclaims.resource.k8s.io"
NODES = "nodes"
PODS = "pods"
NODE = "conformance-node"
NAMESPACE = "conformance"
_FLOOD = 3000  # the run ends if a driver sends this number of requests within _FLOOD_SECONDS
_FLOOD_SECONDS = 10.0
_MESSAGE = 300  # bytes of an error in the line of a request
_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class RecordingApiServer(ApiServer):
    """An API server with TLS.

    Attributes:
        failures: HTTP statuses for the next requests for ResourceSlices.
        slow_claims: the delay of each read of a claim in seconds, by the claim's name.
        delayed_claims: the names of claims whose read was delayed.
        flooded: the last request, if the driver sent too many requests; empty otherwise.
    """

    def __init__(self, folder: Path, transcript: Transcript, features: Features | None = None) -> None:
        self.transcript = transcript
        self.failures: deque[int] = deque()
        self.slow_claims: dict[str, float] = {}
        self.delayed_claims: set[str] = set()
        self.flooded = ""
        self._folder = folder
        self._recent: deque[float] = deque(maxlen=_FLOOD)
        self._certificate = write_certificate(folder, ["127.0.0.1", "localhost"])
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*map(str, self._certificate))
        super().__init__(front=("127.0.0.1:0", tls), features=features or Features.of())
        for key in ("default", "kube-system", NAMESPACE):
            if self.storage.get("namespaces", "", key) is None:
                self.storage.put("namespaces", {"metadata": new_metadata({"name": key}), "status": {"phase": "Active"}})

    async def serve(self) -> Path:
        """Starts the server. Returns the path of a kubeconfig for it."""
        await self.start()
        path = self._folder / "kubeconfig"
        path.write_text(kubeconfig_of("conformance", self.public_url, self._certificate[0], self.token))
        path.chmod(0o600)
        return path

    # --- objects ----------------------------------------------------------------------------------

    def add_node(self) -> None:
        meta = new_metadata({"name": NODE, "labels": {"kubernetes.io/hostname": NODE}})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        self.storage.put(NODES, {"metadata": meta, "spec": {}, "status": {"conditions": [ready]}})

    @property
    def node(self) -> JSON:
        found = self.storage.get(NODES, "", NODE)
        assert found
        return found

    def slices(self, driver: str = "") -> list[JSON]:
        return [s for s in self.storage.list(SLICES) if not driver or s["spec"]["driver"] == driver]

    def put_slice(self, name: str, driver: str, node: str) -> None:
        """Creates a slice of one device for another driver or node."""
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "foreign"}]}
        self.storage.put(SLICES, {"metadata": new_metadata({"name": name}), "spec": spec})

    def remove_slice(self, name: str) -> None:
        self.storage.remove(SLICES, "", name)

    def remove_slices(self, driver: str = "") -> None:
        """Deletes the slices of a driver, or of all drivers, as the kubelet does at its start."""
        for obj in self.slices(driver):
            self.remove_slice(obj["metadata"]["name"])

    def put_claim(self, name: str, spec: JSON, status: JSON) -> JSON:
        """Creates a claim. An allocated claim is reserved for a pod, as a kubelet requires before it prepares the claim.

        The UID begins with a digit, because CDI device names that begin with it then need cdiVersion 0.5.0.
        """
        meta = new_metadata({"name": name, "namespace": NAMESPACE})
        meta["uid"] = f"{random.randrange(10)}{meta['uid'][1:]}"
        if status.get("allocation"):
            pod = self._put_user(name)["metadata"]
            status = {**status, "reservedFor": [{"resource": "pods", "name": pod["name"], "uid": pod["uid"]}]}
        return self.storage.put(CLAIMS, {"metadata": meta, "spec": spec, "status": status})

    def _put_user(self, claim: str) -> JSON:
        """Creates a pending pod on the node that uses a claim."""
        container = {"name": "main", "image": "example.com/main", "resources": {"claims": [{"name": "claim"}]}}
        claims = [{"name": "claim", "resourceClaimName": claim}]
        spec = {"nodeName": NODE, "containers": [container], "resourceClaims": claims}
        meta = new_metadata({"name": f"{claim}-user", "namespace": NAMESPACE})
        return self.storage.put(PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    def put_driver_pod(self, name: str, uid: str) -> None:
        """Creates the pod of an instance of the driver."""
        meta = {**new_metadata({"name": name, "namespace": NAMESPACE}), "uid": uid}
        spec = {"nodeName": NODE, "containers": [{"name": "driver", "image": "example.com/driver"}]}
        self.storage.put(PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Running"}})

    def remove_claim(self, name: str) -> None:
        self.storage.remove(CLAIMS, NAMESPACE, name)
        self.storage.remove(PODS, NAMESPACE, f"{name}-user")

    @contextlib.asynccontextmanager
    async def states_of_slices(self, driver: str) -> AsyncIterator[list[list[JSON]]]:
        """Collects the slices of a driver after each change inside the context. The list is filled at the end of the context."""
        now = {s["metadata"]["name"]: s for s in self.slices(driver)}
        states: list[list[JSON]] = []
        with self.storage.watch(SLICES, self.storage.version, lambda s: s["spec"]["driver"] == driver) as watch:
            yield states
            watch.wake()
            for change in await watch.next():
                if change.type == "DELETED":
                    now.pop(change.object["metadata"]["name"], None)
                else:
                    now[change.object["metadata"]["name"]] = change.object
                states.append(list(now.values()))

    # --- faults -----------------------------------------------------------------------------------

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Makes the server unavailable inside the context."""
        self.injected_faults.down = True
        self.drop_connections()
        try:
            yield
        finally:
            self.injected_faults.down = False

    def clear_faults(self) -> None:
        self.failures.clear()
        self.slow_claims.clear()
        self.injected_faults.down = False
        self.injected_faults.delay = 0.0
        self.injected_faults.dropped = set()
        self.injected_faults.served = None

    # --- requests ---------------------------------------------------------------------------------

    async def _handle(self, request: Request) -> Response:
        access = self._access(request)
        self._count(request)
        if access.full == "resourceclaims" and (pause := self.slow_claims.get(access.name)):
            self.delayed_claims.add(access.name)
            await asyncio.sleep(pause)
        if (status := self._failure(request, access.full)) is not None:
            if status == 504:
                await asyncio.sleep(1.0)
            refused = StatusError(status, _REASONS[status], f"injected fault of the conformance suite: {status}")
            response = status_response(refused)
            if status == 429:
                response.headers["Retry-After"] = "1"
        else:
            response = await super()._handle(request)
        self._record(request, access, response)
        return response

    def _access(self, request: Request) -> AccessRequest:
        try:
            found = parse_path(request.path, self._registry)
        except StatusError:
            return AccessRequest("")
        if request.method == "GET":
            watches = request.query.get("watch", "") in {"true", "1"}
            verb = "watch" if watches else "get" if found.name else "list"
        elif request.method == "DELETE":
            verb = "delete" if found.name else "deletecollection"
        else:
            verb = _VERBS.get(request.method, request.method.lower())
        return AccessRequest(verb, found.kind.group, found.kind.plural, found.sub, name=found.name)

    def _failure(self, request: Request, resource: str) -> int | None:
        """Returns the status of the next injected fault if it applies to the request; else None."""
        if resource != "resourceslices" or not self.failures or request.query.get("watch"):
            return None
        if self.failures[0] == 409 and request.method not in {"PUT", "PATCH"}:
            return None
        return self.failures.popleft()

    def _count(self, request: Request) -> None:
        now = self.transcript.now
        self._recent.append(now)
        if len(self._recent) == _FLOOD and now - self._recent[0] < _FLOOD_SECONDS:
            self.flooded = f"{request.method} {request.path}"

    def _record(self, request: Request, access: AccessRequest, response: Response) -> None:
        at, is_dry = self.transcript.now, bool(request.query.get("dryRun"))
        query = "&".join(f"{k}={v}" for k, v in request.query.items())
        shown = f"{request.method} {request.path}{'?' + query if query else ''} -> {response.status}"
        body = error = ""
        if response.status >= 400:
            body = cut(response.body)
            with contextlib.suppress(ValueError, KeyError):
                error = clip(json.loads(response.body)["message"], _MESSAGE)
                shown += f" {error}"
        call = HttpCall(at, request.method, request.path, access, response.status, is_dry, error)
        self.transcript.calls.append(call)
        self.transcript.add("HTTP", shown, _readable(request.body), body)


def _readable(body: bytes) -> str | bytes:
    """Returns a body in protobuf as JSON, and any other body unchanged."""
    try:
        return json.dumps(protobuf.decode(body))
    except protobuf.WireError:
        return body


def new_uid() -> str:
    return str(uuid.uuid4())
