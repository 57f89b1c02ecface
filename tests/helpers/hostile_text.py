"""Text with control characters and markup, a cluster whose objects contain it, and a server that does not validate."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from dra_kubeletplugin.base.json_types import JSON
from packages.tools.tests.objects import CLASS, TEMPLATE, allocated_claim, claim, gpu, node, pod, pool

# Colour, title, clear the screen, C1, right-to-left, zero width, line breaks, markup of rich, HTML, NUL, DEL, tag, wide.
HOSTILE = (
    "\x1b[31m\x1b]0;t\x07\x9b2J\u202eR\u200b\u2066\ufeff\r\nNEWLINE\tT[red]y[/red]<b>&\x85\u2028\x00\x7f\U000e0041宽"
)
RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
PLURALS = {
    "Pod": "pods", "Node": "nodes", "Event": "events", "ResourceClaim": "resourceclaims", "DeviceClass": "deviceclasses",
    "ResourceClaimTemplate": "resourceclaimtemplates", "ResourceSlice": "resourceslices",
}  # fmt: skip
FREE = {"string", "strings", "message", "interfaceName", "hardwareAddress", "note", "value of an annotation", "reason"}
STRICT = {"apiVersion", "kind", "resourceVersion", "phase", "effect", "operator", "type", "status", "path"}


def cluster() -> list[JSON]:
    """Returns a running pod, a pod whose selector matches no device, a pod that needs nine devices, and their events."""
    selector = {"selectors": [{"cel": {"expression": 'device.attributes["gpu.example.com"].model == "wanted"'}}]}
    running = allocated_claim("has", "a", "g0", users=("runs",))
    data = {"interfaceName": "eth0", "hardwareAddress": "00:00", "ips": ["10.0.0.1/24"]}
    condition = {"type": "Ready", "status": "False", "reason": "Broken", "message": "it is broken"}
    running["status"]["devices"] = [
        {"driver": "gpu.example.com", "pool": "a", "device": "g0", "conditions": [condition], "networkData": data}
    ]
    running["spec"]["devices"]["config"] = [
        {"opaque": {"driver": "gpu.example.com", "parameters": {"note": "a note", "deep": {"note": "more"}}}}
    ]
    taint = {"key": "gpu.example.com/odd", "value": "why", "effect": "NoExecute"}
    devices = [gpu(f"g{i}", attributes={"model": {"string": "x"}, "pcieRoot": {"string": "pci0"}}) for i in range(3)]
    devices[2]["taints"] = [taint]
    runs = pod("has", name="runs", nodeName="a", status={"phase": "Running"})
    runs["status"]["containerStatuses"] = [
        {
            "name": "main",
            "state": {"waiting": {"reason": "CreateContainerError", "message": "cannot"}},
            "allocatedResourcesStatus": [
                {"name": "claim:e0", "resources": [{"resourceID": "x", "health": "Unhealthy", "message": "hot"}]}
            ],
        }
    ]
    waits = pod("wants")
    waits["metadata"]["annotations"] = {"note": "value of an annotation"}
    waits["status"] |= {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
        ]
    }
    registers = pod(name="plugin", nodeName="a", status={"phase": "Running"})
    registers["spec"]["volumes"] = [{"name": "r", "hostPath": {"path": "/var/lib/kubelet/plugins_registry"}}]
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "type": "Warning"}
    events = [
        event
        | {
            "metadata": {"name": f"e{i}"},
            "involvedObject": {"kind": "Pod", "name": name, "uid": f"pods/default/{name}"},
            "reason": reason,
            "message": "0/1 nodes are available",
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }
        for i, (name, reason) in enumerate([("p", "FailedScheduling"), ("runs", "FailedPrepareDynamicResources")])
    ]
    objects = [
        CLASS, TEMPLATE, node("a"), pool("a", *devices), running, claim("wants", **selector), claim("asks", count=9),
        runs, waits, pod("asks", name="q"), registers, *events,
    ]  # fmt: skip
    objects = copy.deepcopy(objects)  # CLASS and others belong to all tests of this process
    for obj in objects:
        kind, meta = obj["kind"], obj["metadata"]
        scope = "" if kind in {"Node", "ResourceSlice", "DeviceClass"} else "default"
        meta |= {"uid": f"{PLURALS[kind]}/{scope}/{meta['name']}", "resourceVersion": "1"}
        if scope:
            meta["namespace"] = scope
    return objects


def hostile(value: Any, everything: bool, key: str = "") -> Any:
    """Returns a copy with :data:`HOSTILE` in each text that no server validates.

    With ``everything``, all texts contain it, except amounts, times and enumerations.
    """
    if isinstance(value, dict):
        return {k + (HOSTILE.replace("/", "") if everything and key in {"attributes", "annotations"} else ""): hostile(v, everything, k) for k, v in value.items()}  # fmt: skip
    if isinstance(value, list):
        return [hostile(v, everything, key) for v in value]
    if isinstance(value, str):
        if key == "expression":
            return value.replace('"wanted"', f'"""{HOSTILE}"""')
        if key in FREE:
            return value + HOSTILE
        if everything and key not in STRICT and not value[:1].isdigit():
            return value + HOSTILE.replace("/", "")  # names contain no slash
    return value


class HostileServer:
    """Serves lists of the objects, and the other paths that commands read, without validation."""

    def __init__(self, objects: list[JSON], change: Callable[[str], str] = lambda text: text) -> None:
        """Args:
        change: changes the JSON text of each response.
        """
        lists: dict[str, list[JSON]] = {plural: [] for plural in [*PLURALS.values(), "namespaces"]}
        for obj in objects:
            lists[PLURALS[obj["kind"]]].append(obj)
        text = HOSTILE.encode()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = urlsplit(self.path).path.strip("/")
                body: Any = {"message": f"no {HOSTILE}", "code": 404}
                if path == "apis/resource.k8s.io":
                    body = {"versions": [{"version": "v1"}, {"version": HOSTILE}]}
                elif path == "version":
                    body = {"gitVersion": HOSTILE}
                elif path.endswith("/log"):
                    body = text
                elif (name := path.rpartition("/")[2]) in lists:
                    body = {"metadata": {"resourceVersion": "1"}, "items": lists[name]}
                data = body if isinstance(body, bytes) else change(json.dumps(body)).encode()
                self.send_response(404 if isinstance(body, dict) and "code" in body else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HostileServer:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def assert_clean(text: str, where: str) -> None:
    found = RAW.search(text) or re.search("^NEWLINE", text, re.MULTILINE)
    assert not found, f"{where}: {text[max(0, found.start() - 80) : found.start() + 40]!r}"
