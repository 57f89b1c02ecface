"""Text of users and other drivers has no effect on a terminal, on the screen, on pages, or on the form of JSON and YAML.

A user who may create claims chooses selector literals, annotations and opaque parameters. Another driver chooses attributes,
conditions and network data. The author of a file chooses all of its text. The server in these tests validates nothing.
"""

from __future__ import annotations

import json
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import yaml

from dra_kubeletplugin.claims import Record
from dra_kubeletplugin.claims.store.journal_file import new_header
from dra_kubeletplugin.claims.store.lines import encode
from dra_kubeletplugin.cli import main
from tests.analysis.explanation.test_explain import CLASS, allocated_claim, claim, gpu, node, pod, pool
from tests.analysis.simulation.test_simulate import TEMPLATE, workload
from tests.helpers.crash.record_stores import DRIVER, append_body, make_record

JSON = dict[str, Any]
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


class Server:
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

    def kubeconfig(self) -> str:
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [],
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        }  # fmt: skip
        return json.dumps(config)

    def __enter__(self) -> Server:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(params=["free text", "everything"])
def objects(request: pytest.FixtureRequest) -> list[JSON]:
    result: list[JSON] = hostile(cluster(), everything=request.param == "everything")
    return result


@pytest.fixture
def kubeconfig(objects: list[JSON], tmp_path: Path) -> Iterator[str]:
    with Server(objects) as server:
        file = tmp_path / "kubeconfig"
        file.write_text(server.kubeconfig())
        yield str(file)


def assert_clean(text: str, where: str) -> None:
    found = RAW.search(text) or re.search("^NEWLINE", text, re.MULTILINE)
    assert not found, f"{where}: {text[max(0, found.start() - 80) : found.start() + 40]!r}"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Runs a command with each output format, and returns the output in text format."""
    texts = {}
    for form in ("text", "json", "yaml"):
        code = main([*argv, "-o", form])
        captured = capsys.readouterr()
        where = f"dra {' '.join(argv)[:60]} -o {form}"
        assert code in {0, 1, 2, 3}, where
        assert "Traceback" not in captured.err, captured.err
        assert_clean(captured.out, where)
        assert_clean(captured.err, f"{where}, standard error")
        if captured.out and form != "text":
            assert (json.loads if form == "json" else yaml.safe_load)(captured.out) is not None
        texts[form] = captured.out + captured.err
    return texts["text"]


COMMANDS = ["explain", "explain pod/p", "explain pod/q", "explain pod/runs", "explain claim/has", "top --once"]


@pytest.mark.parametrize("words", COMMANDS)
def test_hostile_text_of_a_cluster_has_no_effect_on_the_terminal(
    words: str, kubeconfig: str, objects: list[JSON], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words.split()
    names = [o["metadata"]["name"] for o in objects if o["kind"] == ("Pod" if "pod/" in words else "ResourceClaim")]
    if len(argv) > 1 and "/" in argv[1]:  # the names contain hostile text too
        argv[1] = next(f"{argv[1].partition('/')[0]}/{n}" for n in names if n.startswith(argv[1].partition("/")[2]))
    namespace = objects[-1]["metadata"]["namespace"]
    shown = run(capsys, *argv, "--kubeconfig", kubeconfig, "-n", namespace)
    if words in {"explain", "explain pod/p"} or namespace != "default":
        assert "\ufffd" in shown, "the output contains no hostile text, so the test checks nothing"


def test_hostile_text_in_findings_of_doctor_has_no_effect_on_the_terminal(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "\ufffd" in run(capsys, "doctor", "--kubeconfig", kubeconfig, "--no-host")


def test_hostile_files_are_explained_simulated_and_validated_harmlessly(
    objects: list[JSON], tmp_path: Path, capsys: pytest.CaptureFixture[str], kubeconfig: str
) -> None:
    snapshot, manifests = tmp_path / "snapshot.json", tmp_path / "manifests.json"
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    wanted = hostile([TEMPLATE, workload("Deployment", replicas=5)], everything=objects[0]["metadata"]["name"] != "gpu")
    manifests.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted}))
    for argv in (["explain", "-f", str(snapshot)], ["validate", str(snapshot)], ["validate", str(manifests)]):
        run(capsys, *argv)
    run(capsys, "simulate", "-f", str(manifests), "--kubeconfig", kubeconfig, "--fill")


def test_an_archive_of_a_cluster_has_only_files_below_its_own_folder(
    objects: list[JSON], kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = next(o for o in objects if o["metadata"]["name"].startswith("plugin"))
    plugin["metadata"]["name"] += "p" * (
        253 - len(plugin["metadata"]["name"])
    )  # the longest name that the API server accepts
    plugin["metadata"]["namespace"] = "n" * 63
    for i, form in enumerate(("text", "json")):
        file = tmp_path / f"gathered-{i}.tar.gz"
        assert main(["gather", str(file), "--kubeconfig", kubeconfig, "--no-host", "-o", form]) == 0
        captured = capsys.readouterr()
        assert_clean(captured.out + captured.err, "dra gather")
        with tarfile.open(file) as archive:
            for member in archive.getmembers():
                assert_clean(member.name, "a name in the archive")
                parts = Path(member.name).parts
                assert member.isfile()
                assert parts[0] == f"gathered-{i}"
                assert ".." not in parts
                assert all(len(part.encode()) <= 255 for part in parts)
            assert any("/logs/" in name for name in archive.getnames())


@pytest.mark.parametrize("state", ["Prepared", "Preparing", "Hibernating"])
def test_records_with_hostile_names_and_errors_are_printed_harmlessly(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plugins" / DRIVER
    folder.mkdir(parents=True)
    record = make_record("u1", "d-0")
    record.doc = {"devices": [{"request": HOSTILE, "pool": HOSTILE, "device": f"d{HOSTILE}"}], "complete": True}
    raw = {c: getattr(record, c) for c in Record.__struct_fields__} | {
        "state": state,
        "namespace": HOSTILE,
        "name": HOSTILE,
        "error": HOSTILE,
    }
    path = folder / "records.journal"
    path.write_bytes(encode(new_header(DRIVER, 1, 1)))
    append_body(path, record, msgspec.json.encode(raw))
    for name, value in (("KUBELET_ROOT", tmp_path), ("CDI_ROOT", tmp_path / "cdi"), ("DRIVER_NAME", DRIVER)):
        monkeypatch.setenv(name, str(value))
    run(capsys, "claims")
    assert main(["claims", "forget", "u1"]) == 1  # without a terminal, the command cannot ask for confirmation
    assert_clean(capsys.readouterr().err, "dra claims forget")


def test_a_hostile_name_in_an_argument_is_printed_harmlessly(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"pod/{HOSTILE}", "--kubeconfig", kubeconfig]) == 2
    assert_clean(capsys.readouterr().err, "dra explain pod/HOSTILE")
    assert main(["explain", f"{HOSTILE}/x", "--kubeconfig", kubeconfig]) == 2
    assert_clean(capsys.readouterr().err, "dra explain HOSTILE/x")
