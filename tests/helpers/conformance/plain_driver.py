"""A complete DRA driver on plain grpcio and the standard library, without the framework: it uses the generated stubs only.

The variable ``BUG`` selects one bug of ``bugs.py``; without it, the driver is correct.
Usage: ``python plain_driver.py`` in the environment of `dra conformance`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import ssl
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from dra_kubeletplugin._proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_v1_pb2,
    registration_v1_pb2_grpc,
)
from dra_kubeletplugin.base.json_types import JSON

BUG = os.environ.get("BUG", "")
NAME = "plain.example.com"
NODE = os.environ.get("NODE_NAME", "")
UID = os.environ.get("POD_UID", "")
KIND = f"k8s.{NAME}/claim"
DEVICES = [f"gpu-{i}" for i in range(4)]
METADATA = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def log(text: str) -> None:
    print(text, flush=True)


def write(path: Path, text: str) -> None:
    """Writes a file that appears with its whole content."""
    if BUG == "partial CDI spec" and path.suffix == ".json" and "claim_" in path.name:
        with path.open("w") as out:
            out.write(text[:20])
            out.flush()
            time.sleep(0.02)
            out.write(text[20:])
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(text)
    temporary.chmod(0o600 if BUG == "unreadable CDI spec" else 0o644)
    temporary.rename(path)


class Api:
    """A client of the API server."""

    def __init__(self, path: str) -> None:
        config = json.loads(Path(path).read_text())
        cluster = config["clusters"][0]["cluster"]
        self.url = cluster["server"]
        self.token = config["users"][0]["user"]["token"]
        self.tls = ssl.create_default_context(cafile=cluster["certificate-authority"])

    def open(self, method: str, path: str, body: JSON | None = None, timeout: float = 10.0) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        return urllib.request.urlopen(request, timeout=timeout, context=self.tls)

    def call(self, method: str, path: str, body: JSON | None = None) -> JSON:
        with self.open(method, path, body) as response:
            out: JSON = json.loads(response.read())
            return out


# --- claims -----------------------------------------------------------------------------------------


class ClaimFailed(Exception):
    pass


class Claims:
    """Prepared claims: a record for each claim, in a folder that all instances share."""

    def __init__(self, api: Api, folder: Path, cdi: Path) -> None:
        self.api, self.cdi = api, cdi
        self.folder = folder / (f"claims-{UID}" if BUG == "records of one instance" else "claims")
        self.folder.mkdir(exist_ok=True)
        (folder / "metadata").mkdir(exist_ok=True)
        self.boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.memory: dict[str, JSON] = {}
        self.serial = threading.Lock()
        self.busy: set[str] = set()
        self.leak: list[Any] = []
        self._locks: dict[str, threading.Lock] = {}
        for path in self.folder.glob("*.json"):
            try:
                json.loads(path.read_text())["uid"]
            except (ValueError, KeyError, TypeError):
                if BUG == "crash loop on damaged state":
                    raise
                log(f"the record {path.name} is damaged and moved aside")
                path.rename(path.with_suffix(".damaged"))
        if BUG == "deletes foreign CDI specs":
            for path in cdi.glob("other*.json"):
                path.unlink()

    @contextlib.contextmanager
    def lock(self, uid: str) -> Iterator[None]:
        """One call for a claim at a time."""
        if BUG == "overlapping prepares":
            yield
            return
        with self._locks.setdefault(uid, threading.Lock()):
            yield

    @contextlib.contextmanager
    def file_lock(self) -> Iterator[None]:
        with (self.folder / ".lock").open("w") as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            yield

    def records(self) -> dict[str, JSON]:
        if BUG == "records in memory":
            return self.memory
        out = {}
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                out[path.stem] = json.loads(path.read_text())
        return out

    def prepare(self, namespace: str, name: str, uid: str, context: grpc.ServicerContext) -> list[JSON]:
        sockets = list(Path(os.environ["PLUGINS_REGISTRY"]).glob("*.sock"))
        if BUG == "refuses claims next to another instance" and len(sockets) > 1:
            raise ClaimFailed("another instance runs")
        if BUG == "one lock for all claims":
            with self.serial:
                return self._prepare(namespace, name, uid)
        if BUG == "stuck after a cancelled call":
            if uid in self.busy:
                raise ClaimFailed("the claim is busy")
            self.busy.add(uid)
        with self.lock(uid):
            prepared = self._prepare(namespace, name, uid)
        if context.is_active():
            self.busy.discard(uid)
        return prepared

    def _prepare(self, namespace: str, name: str, uid: str) -> list[JSON]:
        record = self.records().get(uid)
        if record and (record["boot"] == self.boot or BUG == "ignores a reboot") and BUG != "overlapping prepares":
            if BUG == "prepare is not idempotent":
                return [{**d, "cdi": [f"{d['cdi'][0]}-{time.time_ns()}"]} for d in record["devices"]]
            return record["devices"]  # type: ignore[no-any-return]
        devices = self._devices(namespace, name, uid)
        with self.file_lock():
            for other in self.records().values():
                shared_devices = {d["device"] for d in other["devices"]} & {d["device"] for d in devices}
                if shared_devices and other["uid"] != uid and BUG != "device with two holders":
                    raise ClaimFailed(f"device {sorted(shared_devices)[0]} is held by claim {other['uid']}")
            record = {"uid": uid, "boot": self.boot, "devices": devices}
            self.memory[uid] = record
            if BUG != "records in memory":
                write(self.folder / f"{uid}.json", json.dumps(record))
        self.write_specs(uid, devices)
        return devices

    def _devices(self, namespace: str, name: str, uid: str) -> list[JSON]:
        try:
            claim = self.api.call("GET", f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}")
        except urllib.error.HTTPError as e:
            raise ClaimFailed(f"claim {namespace}/{name} cannot be read: {e.code}") from None
        except OSError as e:
            raise ClaimFailed(f"the API server does not respond: {e}") from None
        if claim["metadata"]["uid"] != uid and BUG != "claim of another UID":
            raise ClaimFailed(f"claim {namespace}/{name} has another UID")
        allocation = claim.get("status", {}).get("allocation")
        if not allocation:
            if BUG == "claim without allocation":
                return []
            raise ClaimFailed(f"claim {namespace}/{name} is not allocated")
        out = []
        for result in allocation["devices"]["results"]:
            if result["driver"] != NAME and BUG != "devices of other drivers":
                continue
            if result["device"] not in DEVICES and result["driver"] == NAME:
                raise ClaimFailed(_unknown(result["device"]))
            out.append(self.device(uid, result))
            if BUG == "the first request for every device":
                out[-1]["requests"] = out[0]["requests"]
            if BUG == "alternative in the request's name":
                out[-1]["requests"] = [result["request"]]
        for entry in allocation["devices"].get("config") or []:
            if entry["opaque"]["driver"] == NAME or BUG == "parameters of other drivers":
                check_parameters(entry["opaque"]["parameters"])
        self.write_metadata(claim["metadata"], out)
        return out

    def write_metadata(self, meta: JSON, devices: list[JSON]) -> None:
        devices_json = [{"driver": NAME, "pool": d["pool"], "name": d["device"]} for d in devices]
        if BUG == "metadata of another device":
            devices_json = [{**d, "name": "another"} for d in devices_json]
        document = {
            "apiVersion": "metadata.resource.k8s.io/v1beta1",
            "kind": "DeviceMetadata",
            "metadata": {k: meta[k] for k in ("name", "namespace", "uid")},
            "requests": [{"name": "device", "devices": devices_json}],
        }
        if BUG != "metadata file is missing":
            write(self.metadata(meta["uid"]), json.dumps(document))

    def metadata(self, uid: str) -> Path:
        return self.folder.parent / "metadata" / f"{uid}.json"

    def device(self, uid: str, result: JSON) -> JSON:
        name = f"{uid}-{result['device']}"
        if BUG == "CDI name for all claims":
            name = str(result["device"])
        if BUG == "overlapping prepares":
            name += f"-{time.time_ns()}"
        ids = [f"{KIND}={name}{'-x' if BUG == 'unknown CDI id' else ''}"]
        device = "wrong-device" if BUG == "wrong device in the response" else result["device"]
        return {
            "requests": [result["request"].partition("/")[0]],
            "pool": result["pool"],
            "device": device,
            "cdi": ids,
            "name": name,
        }

    def write_specs(self, uid: str, devices: list[JSON]) -> None:
        for device in devices:
            edits: JSON = {"env": [f"GPU={device['device']}", f"CLAIM={uid}"]}
            edits["mounts"] = [
                {"hostPath": str(self.metadata(uid)), "containerPath": f"{METADATA}/claim/device/{NAME}.json"}
            ]
            if BUG == "missing device node":
                edits["deviceNodes"] = [{"path": "/dev/no-such-device"}]
            if BUG == "missing host path":
                edits["mounts"].append({"hostPath": "/no/such/path", "containerPath": "/data"})
            version = "0.3.0" if BUG == "CDI version too old" else "0.5.0"  # for a UID that begins with a digit
            spec = {
                "cdiVersion": version,
                "kind": KIND,
                "devices": [{"name": device["name"], "containerEdits": edits}],
            }
            write(self.cdi / self._spec_name(device["name"]), json.dumps(spec))

    @staticmethod
    def _spec_name(name: str) -> str:
        return f"k8s.{NAME}-claim_{name}.json"

    def unprepare(self, namespace: str, name: str, uid: str) -> None:
        if BUG == "unprepare reads the claim":
            self._devices(namespace, name, uid)
        with self.lock(uid):
            record = self.records().get(uid)
            if record is None:
                if BUG == "unprepare of an unknown claim":
                    raise ClaimFailed(f"claim {uid} is not prepared")
                return
            for device in record["devices"]:
                if BUG != "CDI spec stays":
                    (self.cdi / self._spec_name(device["name"])).unlink(missing_ok=True)
            self.memory.pop(uid, None)
            (self.folder / f"{uid}.json").unlink(missing_ok=True)
            if BUG != "metadata stays":
                self.metadata(uid).unlink(missing_ok=True)
            self.busy.discard(uid)
        if BUG == "memory leak":
            self.leak.append(bytearray(os.urandom(200_000)))
        if BUG == "descriptor leak":
            self.leak.append(os.open("/dev/null", os.O_RDONLY))


def check_parameters(parameters: JSON) -> None:
    """Raises :class:`ClaimFailed` for parameters other than ``{"kind": "PlainConfig", "mode": "fast" or "slow"}``."""
    unknown = sorted(set(parameters) - {"kind", "mode"})
    if unknown and BUG != "unknown fields are ignored":
        raise ClaimFailed(f"the parameters have no field {unknown[0]}")
    is_wrong = parameters.get("kind") != "PlainConfig" or parameters.get("mode") not in {"fast", "slow"}
    if is_wrong and BUG != "invalid parameters are accepted":
        raise ClaimFailed("mode is wrong: use fast or slow")
    if not is_wrong and not unknown and BUG == "valid parameters are rejected":
        raise ClaimFailed("parameters are not supported")


def _unknown(device: str) -> str:
    if BUG == "traceback in an error":
        try:
            raise KeyError(device)
        except KeyError:
            return traceback.format_exc()
    text = f"device {device} is unknown: it is not one of {', '.join(DEVICES)}"
    return text * 20 if BUG == "long error" else text


class NodeService(dra_v1_pb2_grpc.DRAPluginServicer):
    def __init__(self, claims: Claims, pb: Any) -> None:
        self.claims, self.pb = claims, pb

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        out = self.pb.NodePrepareResourcesResponse()
        entries = list(request.claims)
        if BUG == "only the last claim of a call":
            entries = entries[-1:]
        if BUG == "hangs in prepare" and entries:
            time.sleep(1000)
        for claim in entries:
            entry = out.claims[claim.uid]
            if BUG == "v1beta1 fails" and self.pb is dra_v1beta1_pb2:
                entry.error = "not supported"
                continue
            try:
                for device in self.claims.prepare(claim.namespace, claim.name, claim.uid, context):
                    if BUG == "no devices in the response":
                        continue
                    added = entry.devices.add(pool_name=device["pool"], device_name=device["device"])
                    if BUG == "no pools and requests":
                        added.pool_name = ""
                        device["requests"] = []
                    added.request_names.extend(device["requests"])
                    added.cdi_device_ids.extend(device["cdi"])
            except ClaimFailed as e:
                is_lookup = "claim " in str(e) and "held" not in str(e)
                if BUG == "one error for the whole call" or (BUG == "gRPC error for a wrong claim" and is_lookup):
                    context.abort(grpc.StatusCode.INTERNAL, str(e))
                entry.error = str(e)
        return out

    def NodeUnprepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        out = self.pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            entry = out.claims[claim.uid]
            try:
                self.claims.unprepare(claim.namespace, claim.name, claim.uid)
            except ClaimFailed as e:
                entry.error = str(e)
        return out


class Health(health_v1_pb2_grpc.DRAResourceHealthServicer):
    def __init__(self, pb: Any) -> None:
        self.pb = pb
        self.opened = 0

    def NodeWatchResources(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        pb = self.pb
        names = [] if BUG == "health without devices" else DEVICES
        if BUG == "health of v1 lacks a device" and pb is health_v1_pb2:
            names = DEVICES[:-1]
        self.opened += 1
        while BUG == "health stream opens once" and self.opened > 1 and context.is_active():
            time.sleep(0.1)
        while context.is_active():
            out = pb.NodeWatchResourcesResponse()
            for name in names:
                entry = out.devices.add(health=pb.HEALTHY, last_updated_time=int(time.time()))
                entry.device.pool_name, entry.device.device_name = NODE, name
                entry.health_check_timeout_seconds = 2
            yield out
            for _ in range(5):
                time.sleep(0.1)
            while BUG == "health is not repeated" and context.is_active():
                time.sleep(0.1)


# --- slices -----------------------------------------------------------------------------------------


class Publisher(threading.Thread):
    """Keeps one slice: creates it, watches it, and creates it again when it is deleted."""

    def __init__(self, api: Api) -> None:
        super().__init__(daemon=True, name="publisher")
        self.api = api
        self.is_first = True
        self.path = f"{SLICES}?fieldSelector=spec.driver={NAME},spec.nodeName={NODE}"

    def run(self) -> None:
        if BUG == "slices are created again at the start":
            self.delete_all()
            time.sleep(0.3)
        if BUG == "lists all nodes":
            self.api.call("GET", "/api/v1/nodes")
        while True:
            try:
                self.sync()
            except (OSError, ValueError, KeyError) as e:
                log(f"publishing failed: {e}")
                if BUG == "publisher ends after an error" and isinstance(e, urllib.error.HTTPError):
                    return
                time.sleep(0.2)

    def sync(self) -> None:
        path = SLICES if BUG == "deletes foreign slices" else self.path
        slice_list = self.api.call("GET", path)
        slices = slice_list["items"]
        if BUG == "deletes foreign slices":
            for item in slices:
                if item["spec"]["driver"] != NAME:
                    self.api.call("DELETE", f"{SLICES}/{item['metadata']['name']}")
            slices = [i for i in slices if i["spec"]["driver"] == NAME and i["spec"].get("nodeName") == NODE]
        is_replacing = BUG == "two slices of one generation" and self.is_first
        self.is_first = False
        if not slices or is_replacing:
            self.create()
            for item in slices:
                self.api.call("DELETE", f"{SLICES}/{item['metadata']['name']}")
        if BUG == "invalid slice":
            self.attempt_invalid()
        while BUG == "deleted slices stay deleted":
            time.sleep(1)
        if BUG == "writes without change":
            self.write_again()
        if BUG == "polls":
            while self.api.call("GET", self.path)["items"]:
                time.sleep(0.05)
            return
        self.watch(slice_list["metadata"]["resourceVersion"])

    def create(self) -> None:
        created = self.api.call("POST", SLICES, self.desired())
        is_whole = any(d.get("taints") for d in created["spec"]["devices"])
        if not is_whole and BUG != "dropped fields are not reported":
            log("the API server dropped the taints of devices")
        while not is_whole and BUG == "endless writes for dropped fields":
            self.api.call(
                "PUT", f"{SLICES}/{created['metadata']['name']}", {**self.desired(), "metadata": created["metadata"]}
            )
            created = self.api.call("GET", f"{SLICES}/{created['metadata']['name']}")
            time.sleep(0.05)

    def watch(self, version: str) -> None:
        """Returns when a slice was deleted, or when the watch ended."""
        with self.api.open("GET", f"{self.path}&watch=true&resourceVersion={version}", timeout=600) as events:
            for line in events:
                event = json.loads(line)
                if event["type"] in {"DELETED", "ERROR"}:
                    if BUG == "deleted slices return late":
                        time.sleep(12)
                    return

    def desired(self) -> JSON:
        node = self.api.call("GET", f"/api/v1/nodes/{NODE}")
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"], "controller": True}
        owners = [] if BUG == "no owner" else [owner]
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 2 if BUG == "pool stays incomplete" else 1}
        devices: list[JSON] = [{"name": name, "attributes": {"model": {"string": "plain"}}} for name in DEVICES]
        devices[-1]["taints"] = [{"key": f"{NAME}/slow", "effect": "NoSchedule"}]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": f"{NAME}-{NODE}-", "ownerReferences": owners},
            "spec": {"driver": NAME, "nodeName": NODE, "pool": pool, "devices": devices},
        }

    def attempt_invalid(self) -> None:
        body = self.desired()
        body["spec"]["devices"] = [{"name": f"device-{i}"} for i in range(129)]
        with contextlib.suppress(urllib.error.HTTPError):
            self.api.call("POST", SLICES, body)

    def write_again(self) -> None:
        while slices := self.api.call("GET", self.path)["items"]:
            slices[0]["metadata"].setdefault("annotations", {})["written"] = str(time.time())
            self.api.call("PUT", f"{SLICES}/{slices[0]['metadata']['name']}", slices[0])
            time.sleep(0.3)

    def delete_all(self) -> None:
        for item in self.api.call("GET", self.path)["items"]:
            self.api.call("DELETE", f"{SLICES}/{item['metadata']['name']}")


# --- registration and start -------------------------------------------------------------------------


class Registration(registration_v1_pb2_grpc.RegistrationServicer):
    def __init__(self, endpoint: Path, socket: Path) -> None:
        self.endpoint, self.socket = endpoint, socket
        self.calls = 0

    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls += 1
        if BUG == "slow GetInfo":
            time.sleep(1.3)
        versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
        if BUG == "v1 only":
            versions = versions[:1]
        if BUG == "v1beta1 only":
            versions = versions[1:2]
        if BUG == "GetInfo changes" and self.calls % 2:
            versions.pop(1)  # their order does not matter to a kubelet
        return registration_v1_pb2.PluginInfo(
            type="DevicePlugin" if BUG == "wrong type" else "DRAPlugin",
            name=NAME,
            endpoint=str(self.endpoint),
            supported_versions=versions,
        )

    def NotifyRegistrationStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not request.plugin_registered and BUG != "rejection is not logged":
            log(f"the kubelet rejected the registration: {request.error}")
            if BUG == "error for a rejected registration":
                context.abort(grpc.StatusCode.UNKNOWN, f"failed registration process: {request.error}")
            if BUG == "ends after a rejected registration":
                os._exit(1)
        if BUG == "registers once" and request.plugin_registered:
            self.socket.unlink(missing_ok=True)
        return registration_v1_pb2.RegistrationStatusResponse()


def serve(path: Path, *adders: Any) -> grpc.Server:
    server = grpc.server(futures.ThreadPoolExecutor(32))
    for add, servicer in adders:
        add(servicer, server)
    path.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    if BUG == "sockets open for all users":
        path.chmod(0o777)
    return server


def main() -> None:
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)  # in all threads, so that sigwait receives them
    registry, data = Path(os.environ["PLUGINS_REGISTRY"]), Path(os.environ["PLUGIN_DATA_DIR"])
    endpoint, registration = data / f"dra-{UID[:8]}.sock", registry / f"{NAME}-{UID[:8]}-reg.sock"
    if BUG == "one instance only":
        endpoint, registration = data / "dra.sock", registry / f"{NAME}-reg.sock"
    if BUG == "stale socket" and registration.exists():
        sys.exit(f"{registration} exists already")
    api = Api(os.environ["KUBECONFIG"])
    claims = Claims(api, data, Path(os.environ["CDI_ROOT"]))
    services = [
        (dra_v1_pb2_grpc.add_DRAPluginServicer_to_server, NodeService(claims, dra_v1_pb2)),
        (health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server, Health(health_v1_pb2)),
        (health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server, Health(health_v1alpha1_pb2)),
    ]
    if BUG != "v1beta1 is not served":
        services.append((dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server, NodeService(claims, dra_v1beta1_pb2)))
    node = None if BUG == "endpoint is late" else serve(endpoint, *services)
    register = registration_v1_pb2_grpc.add_RegistrationServicer_to_server
    registrar = serve(registration, (register, Registration(endpoint, registration)))
    if node is None:
        time.sleep(5.0)
        node = serve(endpoint, *services)
    publisher = Publisher(api)
    publisher.start()
    signal.sigwait(stop_signals)
    if BUG == "slices are deleted on exit":
        publisher.delete_all()
    registrar.stop(0).wait()
    node.stop(1).wait()
    if BUG == "sockets stay":
        registration.touch()
    elif BUG == "sockets of all instances are removed":
        for path in [*registry.glob("*.sock"), *data.glob("*.sock")]:
            path.unlink()
    else:
        for path in (registration, endpoint):
            path.unlink(missing_ok=True)
    os._exit(1 if BUG == "exit code 1" else 0)


if __name__ == "__main__":
    main()
