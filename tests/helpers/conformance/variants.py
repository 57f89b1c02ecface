"""Variants of ``plain_driver.py``: the variable ``VARIANT`` selects one of :data:`ACCEPTED` or :data:`BROKEN`.

Usage: ``python -m tests.helpers.conformance.variants`` in the environment of `dra conformance`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from dra_kubeletplugin.base.json_types import JSON

from . import plain_driver as plain

ACCEPTED: dict[str, tuple[str, ...]] = {
    "empty endpoint": ("REG-003", "REG-005", "PRE-001", "REG-007"),  # the kubelet uses the registration socket
    "random order": ("REG-002", "PRE-002", "PRE-007"),
    "error for an empty list of claims": ("REG-004", "REG-007", "RST-006"),  # a kubelet sends none
    "prepares every device name": ("PRE-003",),
    "static spec of each device": ("UNP-003", "PRE-007", "RST-001"),  # written at the first prepare
    "second pool without devices": ("SLC-008",),
    "reads claims with a list": ("PRE-008", "PRE-009"),  # an informer
    "reads the pod of a claim": ("PRE-001", "PRE-004", "PRE-010", "UNP-003"),  # network drivers
    "no entry for one device": ("PRE-001", "PRE-013"),  # a device that needs no CDI device
    "compares results with requests": ("PRE-001", "PRE-013", "PRE-014"),
    "health of prepared devices only": ("HLT-001", "HLT-002", "HLT-003", "HLT-004"),
}
"""Behaviors that a kubelet accepts, each with checks that must pass."""
BROKEN: dict[str, tuple[str, ...]] = {
    "ends when it is idle": ("REG-008",),
    "entry for an unknown claim": ("PRE-001", "UNP-001"),
    "v1 fails": ("SKW-002",),
    "endpoint outside of the kubelet's root": ("REG-003",),
    "no entry for a failed claim": ("PRE-003", "PRE-004", "PRE-005", "PRE-010", "PRE-011"),
    "one spec that only grows": ("UNP-003", "PRE-007", "RST-001"),
    "deletes folders of other drivers": ("CDI-006",),
    "the first device of a claim only": ("PRE-013",),
    "crash at the first call with damaged state": ("RST-003",),
    "invalid metadata": ("MET-002",),
    "metadata without devices": ("MET-002",),
    "parameters of the class precede": ("CFG-004",),
    "first line names features": ("SLC-007",),
}
"""Bugs, each with checks that must fail."""


# --- accepted -------------------------------------------------------------------------------------


def empty_endpoint() -> None:
    """Serves both services on the registration socket, and names no endpoint."""
    serve, get_info = plain.serve, plain.Registration.GetInfo
    services: list[Any] = []

    def serve_on_one_socket(path: Path, *adders: Any) -> grpc.Server:
        services.extend(adders)
        if not path.name.endswith("-reg.sock"):
            return grpc.server(plain.futures.ThreadPoolExecutor(1))
        return serve(path, *services)

    def without_endpoint(self: Any, request: Any, context: Any) -> Any:
        out = get_info(self, request, context)
        out.endpoint = ""
        return out

    plain.serve = serve_on_one_socket
    plain.Registration.GetInfo = without_endpoint  # type: ignore[method-assign]


def random_order() -> None:
    get_info, prepare = plain.Registration.GetInfo, plain.NodeService.NodePrepareResources

    def shuffled_versions(self: Any, request: Any, context: Any) -> Any:
        out = get_info(self, request, context)
        versions = list(out.supported_versions)
        random.shuffle(versions)
        del out.supported_versions[:]
        out.supported_versions.extend(versions)
        return out

    def shuffled_ids(self: Any, request: Any, context: Any) -> Any:
        out = prepare(self, request, context)
        for entry in out.claims.values():
            for device in entry.devices:
                ids = [*device.cdi_device_ids, f"{plain.KIND}=all"]
                random.shuffle(ids)
                del device.cdi_device_ids[:]
                device.cdi_device_ids.extend(ids)
        return out

    plain.Registration.GetInfo = shuffled_versions  # type: ignore[method-assign]
    plain.NodeService.NodePrepareResources = shuffled_ids  # type: ignore[method-assign]


def no_empty_list() -> None:
    prepare = plain.NodeService.NodePrepareResources

    def refuse(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        if not request.claims:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the list of claims is empty")
        return prepare(self, request, context)

    plain.NodeService.NodePrepareResources = refuse  # type: ignore[method-assign]


def every_device() -> None:
    plain.DEVICES.append("no-such-device")
    desired = plain.Publisher.desired

    def published(self: Any) -> JSON:
        out = desired(self)
        out["spec"]["devices"].pop()
        return out

    plain.Publisher.desired = published  # type: ignore[method-assign]


def static_specs() -> None:
    """Writes one spec for each device at its first prepare, and keeps it."""

    def device(self: Any, uid: str, result: JSON) -> JSON:
        name = str(result["device"])
        return {
            "requests": [result["request"].partition("/")[0]],
            "pool": result["pool"],
            "device": name,
            "cdi": [f"{plain.KIND}={name}"],
            "name": name,
        }

    def specs(self: Any, uid: str, devices: list[JSON]) -> None:
        for prepared in devices:
            edits = {"env": [f"GPU={prepared['device']}"]}
            document = {"cdiVersion": "0.5.0", "kind": plain.KIND}
            text = json.dumps({**document, "devices": [{"name": prepared["name"], "containerEdits": edits}]})
            plain.write(self.cdi / f"device-{prepared['name']}.json", text)

    plain.Claims.device = device  # type: ignore[method-assign]
    plain.Claims.write_specs = specs  # type: ignore[method-assign]


def machine_ids() -> None:
    """Returns ids of static specs that another program wrote into /etc/cdi."""
    device = plain.Claims.device

    def static_id(self: Any, uid: str, result: JSON) -> JSON:
        return {**device(self, uid, result), "cdi": [f"static.example.com/gpu={result['device']}"]}

    plain.Claims.device = static_id  # type: ignore[method-assign]
    plain.Claims.write_specs = lambda self, uid, devices: None  # type: ignore[method-assign]


def empty_pool() -> None:
    create = plain.Publisher.create

    def with_empty_pool(self: Any) -> None:
        body = self.desired()
        body["spec"] |= {"pool": {"name": "empty", "generation": 1, "resourceSliceCount": 1}, "devices": []}
        self.api.call("POST", plain.SLICES, body)
        create(self)

    plain.Publisher.create = with_empty_pool  # type: ignore[method-assign]


def prepared_health() -> None:
    """Sends a message only while a device is prepared."""
    watch = plain.Health.NodeWatchResources

    def prepared_only(self: Any, request: Any, context: Any) -> Any:
        folder = Path(os.environ["PLUGIN_DATA_DIR"]) / "claims"
        for message in watch(self, request, context):
            records = [json.loads(p.read_text()) for p in folder.glob("*.json")]
            names = {d["device"] for r in records for d in r["devices"]}
            selected = [d for d in message.devices if d.device.device_name in names]
            if selected:
                yield type(message)(devices=selected)

    plain.Health.NodeWatchResources = prepared_only  # type: ignore[method-assign]


def list_claims() -> None:
    call = plain.Api.call

    def from_list(self: Any, method: str, path: str, body: JSON | None = None) -> JSON:
        folder, _, name = path.rpartition("/")
        if method != "GET" or not folder.endswith("/resourceclaims"):
            return call(self, method, path, body)
        found = call(self, "GET", folder)["items"]
        return next((c for c in found if c["metadata"]["name"] == name), {"metadata": {}})

    plain.Api.call = from_list  # type: ignore[method-assign]


def read_pods() -> None:
    """Reads the driver's pod at its start, and prepares only claims that are reserved for one pod of the node."""
    prepare = plain.NodeService.NodePrepareResources
    api = plain.Api(os.environ["KUBECONFIG"])
    api.call("GET", f"/api/v1/namespaces/{os.environ['POD_NAMESPACE']}/pods/{os.environ['POD_NAME']}")

    def with_pod(self: Any, request: Any, context: Any) -> Any:
        for claim in request.claims:
            folder = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}"
            try:
                found = api.call("GET", f"{folder}/resourceclaims/{claim.name}")
            except OSError:
                continue
            [consumer] = found["status"].get("reservedFor") or [{}]
            pod = api.call("GET", f"/api/v1/namespaces/{claim.namespace}/pods/{consumer['name']}")
            if pod["metadata"]["uid"] != consumer["uid"] or pod["spec"]["nodeName"] != plain.NODE:
                raise ValueError(f"claim {claim.name} is reserved for another pod")
        return prepare(self, request, context)

    plain.NodeService.NodePrepareResources = with_pod  # type: ignore[method-assign]


def without_entries(selected: Callable[[list[Any]], list[Any]]) -> Callable[[], None]:
    """Returns only the selected entries for a claim."""

    def apply() -> None:
        prepare = plain.NodeService.NodePrepareResources

        def fewer(self: Any, request: Any, context: Any) -> Any:
            out = prepare(self, request, context)
            for entry in out.claims.values():
                kept = selected(list(entry.devices))
                del entry.devices[:]
                entry.devices.extend(kept)
            return out

        plain.NodeService.NodePrepareResources = fewer  # type: ignore[method-assign]

    return apply


def compare_requests() -> None:
    """Returns no entry for one device, and refuses a claim if a request has no result: no scheduler allocates that."""
    without_entries(lambda found: [d for d in found if d.device_name != plain.DEVICES[1]])()
    prepare = plain.NodeService.NodePrepareResources
    api = plain.Api(os.environ["KUBECONFIG"])

    def compared(self: Any, request: Any, context: Any) -> Any:
        for claim in request.claims:
            try:
                found = api.call(
                    "GET", f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
                )
            except OSError:
                continue
            allocated = {r["request"].partition("/")[0] for r in found["status"]["allocation"]["devices"]["results"]}
            if missing := {r["name"] for r in found["spec"]["devices"]["requests"]} - allocated:
                raise ValueError(f"no device for {missing}")
        return prepare(self, request, context)

    plain.NodeService.NodePrepareResources = compared  # type: ignore[method-assign]


# --- broken ---------------------------------------------------------------------------------------


def late_crash() -> None:
    """Starts with damaged records, and ends when a call reads them."""
    prepare = plain.NodeService.NodePrepareResources

    def reading(self: Any, request: Any, context: Any) -> Any:
        for path in Path(os.environ["PLUGIN_DATA_DIR"]).rglob("*.json"):
            try:
                json.loads(path.read_text())
            except ValueError:
                os._exit(1)
        return prepare(self, request, context)

    plain.NodeService.NodePrepareResources = reading  # type: ignore[method-assign]


def endpoint_outside() -> None:
    serve, get_info = plain.serve, plain.Registration.GetInfo
    outside = Path(os.environ["KUBELET_ROOT"]).parent / f"{plain.UID[:8]}.sock"

    def serve_outside(path: Path, *adders: Any) -> grpc.Server:
        return serve(path if path.name.endswith("-reg.sock") else outside, *adders)

    def named(self: Any, request: Any, context: Any) -> Any:
        out = get_info(self, request, context)
        out.endpoint = str(outside)
        return out

    plain.serve = serve_outside
    plain.Registration.GetInfo = named  # type: ignore[method-assign]


def idle_end() -> None:
    """Ends 0.3 s after the first call."""
    prepare = plain.NodeService.NodePrepareResources

    def last_call(self: Any, request: Any, context: Any) -> Any:
        threading.Timer(0.3, os._exit, (0,)).start()
        return prepare(self, request, context)

    plain.NodeService.NodePrepareResources = last_call  # type: ignore[method-assign]


def unknown_claim() -> None:
    for name in ("NodePrepareResources", "NodeUnprepareResources"):
        call = getattr(plain.NodeService, name)

        def with_another(self: Any, request: Any, context: Any, call: Any = call) -> Any:
            out = call(self, request, context)
            out.claims["another-uid"].error = ""
            return out

        setattr(plain.NodeService, name, with_another)


def v1_fails() -> None:
    prepare = plain.NodeService.NodePrepareResources

    def v1beta1_only(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        if self.pb is plain.dra_v1_pb2:
            context.abort(grpc.StatusCode.INTERNAL, "v1 is not supported")
        return prepare(self, request, context)

    plain.NodeService.NodePrepareResources = v1beta1_only  # type: ignore[method-assign]


def no_entry() -> None:
    prepare = plain.NodeService.NodePrepareResources

    def incomplete(self: Any, request: Any, context: Any) -> Any:
        out = prepare(self, request, context)
        for uid in [uid for uid, entry in out.claims.items() if entry.error]:
            plain.log(f"claim {uid} failed")
            del out.claims[uid]
        return out

    plain.NodeService.NodePrepareResources = incomplete  # type: ignore[method-assign]


def growing_spec() -> None:
    def specs(self: Any, uid: str, devices: list[JSON]) -> None:
        path = self.cdi / "plain.json"
        old_devices = json.loads(path.read_text())["devices"] if path.exists() else []
        names = {d["name"] for d in devices}
        new_devices = [{"name": name, "containerEdits": {"env": ["GPU=1"]}} for name in sorted(names)]
        document = {"cdiVersion": "0.5.0", "kind": plain.KIND}
        plain.write(
            path, json.dumps({**document, "devices": [d for d in old_devices if d["name"] not in names] + new_devices})
        )

    plain.Claims.write_specs = specs  # type: ignore[method-assign]


def deletes_folders() -> None:
    for path in Path(os.environ["KUBELET_ROOT"], "plugins").glob("other*"):
        shutil.rmtree(path)


def metadata(text: str) -> Callable[[], None]:
    def apply() -> None:
        def write_text(self: Any, meta: JSON, devices: list[JSON]) -> None:
            plain.write(self.metadata(meta["uid"]), text)

        plain.Claims.write_metadata = write_text  # type: ignore[method-assign]

    return apply


def class_precedes() -> None:
    """Reads only the first parameters that are for this driver."""
    call = plain.Api.call

    def first_only(self: Any, method: str, path: str, body: JSON | None = None) -> JSON:
        out = call(self, method, path, body)
        devices = ((out.get("status") or {}).get("allocation") or {}).get("devices") or {}
        if own := [c for c in devices.get("config") or () if c["opaque"]["driver"] == plain.NAME]:
            devices["config"] = own[:1]
        return out

    plain.Api.call = first_only  # type: ignore[method-assign]


def feature_line() -> None:
    """Logs its feature gates at its start, and nothing about dropped fields."""
    plain.BUG = "dropped fields are not reported"
    plain.log("flag: --feature-gates is empty")


def hidden_registration() -> None:
    serve = plain.serve

    def serve_hidden(path: Path, *adders: Any) -> grpc.Server:
        return serve(path.with_name(f".{path.name}") if path.name.endswith("-reg.sock") else path, *adders)

    plain.serve = serve_hidden


def failing_get_info() -> None:
    """GetInfo fails, and an earlier version has left a hidden socket."""
    serve = plain.serve

    def serve_both(path: Path, *adders: Any) -> grpc.Server:
        if path.name.endswith("-reg.sock"):
            socket.socket(socket.AF_UNIX).bind(str(path.with_name(".old.sock")))
        return serve(path, *adders)

    def fail(self: Any, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.INTERNAL, "no configuration")

    plain.serve = serve_both
    plain.Registration.GetInfo = fail  # type: ignore[method-assign]


def wrong_endpoint() -> None:
    """Names an endpoint that does not exist."""
    get_info = plain.Registration.GetInfo

    def named(self: Any, request: Any, context: Any) -> Any:
        out = get_info(self, request, context)
        out.endpoint = "dra.sock"
        return out

    plain.Registration.GetInfo = named  # type: ignore[method-assign]


def invalid_attribute() -> None:
    desired = plain.Publisher.desired

    def invalid(self: Any) -> JSON:
        out = desired(self)
        out["spec"]["devices"][0]["attributes"] = {"Model Name": {"string": "a"}}
        return out

    plain.Publisher.desired = invalid  # type: ignore[method-assign]


def unsupported_form() -> None:
    """Sends objects in a form that the API server of the suite does not read."""
    make = plain.urllib.request.Request

    def request(url: str, data: bytes | None, headers: dict[str, str], method: str) -> Any:
        return make(url, data, headers | {"Content-Type": "application/cbor"}, method=method)

    plain.urllib.request.Request = request  # type: ignore[assignment,misc]


def ends_before_the_endpoint() -> None:
    """Ends after its registration, while the kubelet waits for the endpoint."""
    wrong_endpoint()
    threading.Timer(1.0, _end).start()


def ends_before_slices() -> None:
    plain.Publisher.create = lambda self: _end()  # type: ignore[method-assign]


def _end() -> None:
    plain.log("no driver library on this machine")
    os._exit(7)


# --- processes ------------------------------------------------------------------------------------


def ignores_sigterm() -> None:
    install = signal.signal
    signal.signal = lambda number, handler: install(number, signal.SIG_IGN)  # type: ignore[assignment,misc]


VARIANTS: dict[str, Callable[[], None]] = {
    "empty endpoint": empty_endpoint,
    "random order": random_order,
    "error for an empty list of claims": no_empty_list,
    "prepares every device name": every_device,
    "static spec of each device": static_specs,
    "second pool without devices": empty_pool,
    "reads claims with a list": list_claims,
    "reads the pod of a claim": read_pods,
    "no entry for one device": without_entries(lambda found: [d for d in found if d.device_name != plain.DEVICES[1]]),
    "compares results with requests": compare_requests,
    "health of prepared devices only": prepared_health,
    "endpoint outside of the kubelet's root": endpoint_outside,
    "ends when it is idle": idle_end,
    "entry for an unknown claim": unknown_claim,
    "v1 fails": v1_fails,
    "CDI ids of the machine": machine_ids,
    "no entry for a failed claim": no_entry,
    "one spec that only grows": growing_spec,
    "deletes folders of other drivers": deletes_folders,
    "the first device of a claim only": without_entries(lambda found: found[:1]),
    "crash at the first call with damaged state": late_crash,
    "invalid metadata": metadata("[1, 2]"),
    "metadata without devices": metadata(
        '{"apiVersion": "metadata.resource.k8s.io/v1beta1", "kind": "DeviceMetadata"}'
    ),
    "parameters of the class precede": class_precedes,
    "first line names features": feature_line,
    "registration socket with a dot": hidden_registration,
    "GetInfo fails": failing_get_info,
    "wrong endpoint": wrong_endpoint,
    "invalid attribute": invalid_attribute,
    "sends CBOR": unsupported_form,
    "ends before it listens at the endpoint": ends_before_the_endpoint,
    "ends before it publishes": ends_before_slices,
    "ignores SIGTERM": ignores_sigterm,
}


if __name__ == "__main__":
    VARIANTS[os.environ["VARIANT"]]()
    sys.exit(plain.main())
