"""A cluster of a kubeconfig: requests, kubectl, test pods with devices, and what their containers got."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import yaml
from kubernetes import client, config

JSON = dict[str, Any]
RESOURCE = "/apis/resource.k8s.io/v1"
POD_NAMESPACE = "dra-e2e"
_POLL = 0.5
_SLEEP = "trap 'exit 0' TERM; while :; do sleep 1; done"
# What a container got: the variables of its first process, its device files, and its mount points.
_CONTENT = (
    "tr '\\0' '\\n' </proc/1/environ | sed 's/^/env /'; find /dev ! -type d | sed 's/^/dev /'; "
    "sed 's/^[^ ]* \\([^ ]*\\) .*/mount \\1/' /proc/mounts"
)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file e2e.toml of a driver.

    Attributes:
        expect: patterns of lines that a container has for each of its devices, and for no other device.
        skip_examples: files of ``examples/`` that this cluster cannot run.
        device_class: for the test pods; by default, the first of the manifests.
    """

    expect: list[str]
    skip_examples: list[str] = []
    device_class: str = ""


@dataclass(frozen=True)
class Settings:
    """What a user set."""

    folder: Path
    pod_image: str
    wait: float
    profile: Profile


@dataclass
class Driver:
    """The names of the deployed driver."""

    name: str = ""
    namespace: str = ""
    daemon_set: str = ""
    account: str = ""
    device_class: str = ""


class Cluster:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.api: Any = config.new_client_from_config()  # type: ignore[no-untyped-call]
        self.driver = Driver()

    # --- requests -----------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: JSON | None = None, token: str = "") -> tuple[int, Any]:
        """Returns the status and the body. With ``token``, the request has the identity of that token."""
        api = self.api
        if token:
            own = client.Configuration()
            own.host, own.ssl_ca_cert = api.configuration.host, api.configuration.ssl_ca_cert
            own.verify_ssl = api.configuration.verify_ssl
            own.api_key["authorization"] = f"Bearer {token}"
            api = client.ApiClient(own)
        path, _, query = path.partition("?")
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        pairs = [tuple(p.split("=", 1)) for p in query.split("&") if p]
        call = api.param_serialize(
            method, path, query_params=pairs, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        response = api.call_api(*call, _request_timeout=30)
        data = response.read()
        try:
            return response.status, json.loads(data)
        except ValueError:
            return response.status, data.decode(errors="replace") if isinstance(data, bytes) else data

    def get(self, path: str) -> Any:
        """Returns an object or a list; None if it does not exist."""
        status, body = self.request("GET", path)
        assert status in {200, 404}, f"GET {path}: {status} {body}"
        if status == 404:  # the body is an object, or text if the path itself does not exist
            return None
        for obj in [body, *(body.get("items") or ())]:
            obj.setdefault("status", {})  # no controller has written it yet
        return body

    def items(self, path: str) -> list[JSON]:
        return list((self.get(path) or {}).get("items") or [])

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        # A session of its own: Ctrl-C must not end a kubectl of the clean-up.
        done = subprocess.run(
            ["kubectl", *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=self.settings.wait + 60,
            check=False,
            start_new_session=True,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr}{self.state()}"
        return done.stdout

    def apply(self, *documents: JSON, namespace: str = POD_NAMESPACE) -> None:
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(documents))

    def wait(self, what: str, check: Callable[[], Any]) -> Any:
        """Returns the first true result of ``check``. Fails with the state of all pods after ``--wait`` seconds."""
        end = time.monotonic() + self.settings.wait
        while not (found := check()):
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {self.settings.wait:g} s{self.state()}")
            time.sleep(_POLL)
        return found

    # --- what is there ------------------------------------------------------------------------------------

    @property
    def kind_name(self) -> str:
        _, current = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
        return str(current["name"]).removeprefix("kind-")

    def facts(self) -> list[str]:
        """Returns lines about the cluster: its version, its runtimes, and its gates of dynamic resource allocation."""
        status, version = self.request("GET", "/version")
        assert status == 200, f"{self.api.configuration.host} cannot be used: {version}"
        served = self.get(RESOURCE)
        assert served, (
            f"Kubernetes {version['gitVersion']} at {self.api.configuration.host} does not serve resource.k8s.io/v1"
        )
        runtimes = {n["status"]["nodeInfo"]["containerRuntimeVersion"] for n in self.items("/api/v1/nodes")}
        _, metrics = self.request("GET", "/metrics")
        gates = re.findall(r'kubernetes_feature_enabled\{name="((?:DRA|DynamicRes)\w*)"[^}]*\} 1', str(metrics))
        return [
            f"cluster: Kubernetes {version['gitVersion']} at {self.api.configuration.host}",
            f"runtimes: {', '.join(sorted(runtimes))} (containerd 1.x needs enable_cdi = true)",
            f"gates on: {', '.join(sorted(gates)) or 'unknown'}",
        ]

    def served(self, plural: str) -> str:
        """Returns the path of a kind of resource.k8s.io in the newest version that serves it; empty if none does."""
        for version in (self.get("/apis/resource.k8s.io") or {}).get("versions", []):
            path = f"/apis/resource.k8s.io/{version['version']}"
            if any(r["name"] == plural for r in (self.get(path) or {}).get("resources", [])):
                return f"{path}/{plural}"
        return ""

    def examples(self) -> list[Path]:
        skipped = self.settings.profile.skip_examples
        return [p for p in sorted((self.settings.folder / "examples").glob("*.yaml")) if p.name not in skipped]

    def slices(self) -> list[JSON]:
        return [s for s in self.items(f"{RESOURCE}/resourceslices") if s["spec"]["driver"] == self.driver.name]

    def devices(self) -> dict[tuple[str, str], JSON]:
        """Returns the driver's devices by pool and name."""
        return {
            (s["spec"]["pool"]["name"], d["name"]): d | {"node": s["spec"].get("nodeName", "")}
            for s in self.slices()
            for d in s["spec"].get("devices") or []
        }

    def plugins(self) -> dict[str, JSON]:
        """Returns the driver's pods by node, without deleted ones."""
        pods = self.items(f"/api/v1/namespaces/{self.driver.namespace}/pods")
        return {
            p["spec"]["nodeName"]: p
            for p in pods
            if p["spec"].get("nodeName")
            and not p["metadata"].get("deletionTimestamp")
            and any(
                o["kind"] == "DaemonSet" and o["name"] == self.driver.daemon_set
                for o in p["metadata"].get("ownerReferences") or []
            )
        }

    def pods(self) -> list[JSON]:
        return self.items(f"/api/v1/namespaces/{POD_NAMESPACE}/pods")

    def pod(self, name: str) -> JSON | None:
        found: JSON | None = self.get(f"/api/v1/namespaces/{POD_NAMESPACE}/pods/{name}")
        return found

    def claim(self, name: str) -> JSON:
        found: JSON = self.get(f"{RESOURCE}/namespaces/{POD_NAMESPACE}/resourceclaims/{name}")
        return found

    def state(self) -> str:
        """Returns what explains a failure: the pods, the warnings, and the end of the plugins' logs."""
        out = ""
        for namespace in filter(None, (self.driver.namespace, POD_NAMESPACE)):
            out += "\n" + self.kubectl("get", "pods", "-o", "wide", "-n", namespace, check=False)
            out += self.kubectl("get", "events", "-n", namespace, "--field-selector", "type=Warning", check=False)
        for node, pod in self.plugins().items() if self.driver.daemon_set else ():
            args = ("-n", self.driver.namespace, pod["metadata"]["name"], "--tail=4")
            out += f"log on {node}:\n" + self.kubectl("logs", *args, check=False)
        return out

    # --- test pods ----------------------------------------------------------------------------------------

    def start(self, name: str, node: str = "", request: JSON | None = None, limits: JSON | None = None) -> JSON:
        """Starts a pod with one device, or as ``request`` or ``limits`` demand, and waits until it runs."""
        container: JSON = {"name": "main", "image": self.settings.pod_image, "command": ["sh", "-c", _SLEEP]}
        spec: JSON = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 5}
        spec["tolerations"] = [{"operator": "Exists", "effect": "NoSchedule"}]  # also on control planes
        if node:
            host = self.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]["kubernetes.io/hostname"]
            spec["nodeSelector"] = {"kubernetes.io/hostname": host}
        documents = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}]
        if limits:
            container["resources"] = {"limits": limits}
        else:
            exactly = {"deviceClassName": self.driver.device_class} | (request or {})
            container["resources"] = {"claims": [{"name": "device"}]}
            spec["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": name}]
            template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
            template["spec"] = {"spec": {"devices": {"requests": [{"name": "device", "exactly": exactly}]}}}
            documents.insert(0, template)
        self.apply(*documents)
        return self.running(name)

    def running(self, name: str) -> JSON:
        def check() -> JSON | None:
            pod = self.pod(name)
            return pod if pod and pod["status"].get("phase") == "Running" else None

        found: JSON = self.wait(f"pod {name} runs", check)
        return found

    def assert_undisturbed(self, before: JSON) -> None:
        """Asserts that the containers of a pod were not restarted, and still have their devices."""
        name = before["metadata"]["name"]
        now = self.pod(name)
        assert now is not None, f"pod {name} is gone"
        ids = [[(s["containerID"], s["restartCount"]) for s in p["status"]["containerStatuses"]] for p in (before, now)]
        assert ids[0] == ids[1], f"the containers of pod {name} were restarted"
        self.check_content(now)

    def remove_all(self) -> None:
        """Deletes all pods and claims of the tests, and asserts that the driver keeps nothing of them."""
        claims = self.items(f"{RESOURCE}/namespaces/{POD_NAMESPACE}/resourceclaims")
        self.kubectl(
            "delete", "-n", POD_NAMESPACE, "--wait=false", "--all", "deployments,jobs,statefulsets,daemonsets,pods"
        )
        self.wait("all pods of the tests are gone", lambda: not self.pods())
        self.kubectl("delete", "-n", POD_NAMESPACE, "--wait=false", "--all", "resourceclaims,resourceclaimtemplates")
        path = f"{RESOURCE}/namespaces/{POD_NAMESPACE}/resourceclaims"
        self.wait("all claims of the tests are gone", lambda: not self.items(path))
        uids = [c["metadata"]["uid"] for c in claims]
        for node, plugin in self.plugins().items() if uids else ():
            left = self.run_in_plugin(plugin, _FIND, *uids)
            assert not left, f"on {node}, these files still name deleted claims:\n{left}"

    def run_in_plugin(self, plugin: JSON, script: str, *args: str, check: bool = True) -> str:
        name = plugin["metadata"]["name"]
        return self.kubectl(
            "exec", "-n", self.driver.namespace, name, "-c", "driver", "--", "python", "-c", script, *args, check=check
        )

    # --- what containers got ------------------------------------------------------------------------------

    def allocated(self, pod: JSON, container: JSON) -> set[tuple[str, str]]:
        """Returns pool and name of each device of this driver that was allocated for a container."""
        entries = [*(pod["status"].get("resourceClaimStatuses") or []), *(pod["spec"].get("resourceClaims") or [])]
        names = {e["name"]: e["resourceClaimName"] for e in entries if e.get("resourceClaimName")}
        claims = (container.get("resources") or {}).get("claims") or []
        wanted = [(names.get(c["name"], ""), c.get("request", "")) for c in claims]
        extended = pod["status"].get("extendedResourceClaimStatus") or {}
        wanted += [
            (extended["resourceClaimName"], m["requestName"])
            for m in extended.get("requestMappings") or []
            if m["containerName"] == container["name"]
        ]
        return {
            (r["pool"], r["device"])
            for claim, request in wanted
            if claim
            for r in self.claim(claim)["status"]["allocation"]["devices"]["results"]
            if r["driver"] == self.driver.name and request in {"", r["request"], r["request"].partition("/")[0]}
        }

    def check_content(self, pod: JSON) -> None:
        """Asserts that each container of a running pod got its devices, and no other device of the driver."""
        name, devices = pod["metadata"]["name"], self.devices()
        for container in pod["spec"]["containers"]:
            expected = self.allocated(pod, container)
            if not expected:
                continue
            text = self.kubectl("exec", "-n", POD_NAMESPACE, name, "-c", container["name"], "--", "sh", "-c", _CONTENT)
            lines = [_plain(line) for line in text.splitlines()]
            for key, device in devices.items():
                if device["node"] != pod["spec"]["nodeName"] and key not in expected:
                    continue
                patterns = list(self._patterns(device, key[0]))
                assert patterns or key not in expected or not self.settings.profile.expect, (
                    f"e2e.toml: no pattern of `expect` is for device {'/'.join(key)}, which has the attributes "
                    f"{', '.join(sorted(device.get('attributes') or ())) or 'none'}"
                )
                for pattern in patterns:
                    found = any(fnmatchcase(line, _plain(pattern)) for line in lines)
                    assert found or key not in expected, (
                        f"pod {name}, container {container['name']} has device {'/'.join(key)}, but no line {pattern!r} in:\n{text}"
                    )
                    assert not found or key in expected, (
                        f"pod {name}, container {container['name']} got {pattern!r} of device {'/'.join(key)}, which it does not have; "
                        f"it has {sorted(expected)}"
                    )

    def _patterns(self, device: JSON, pool: str) -> Iterator[str]:
        attributes: dict[str, Any] = {}
        for name, value in (device.get("attributes") or {}).items():
            attributes[name] = attributes[name.rpartition("/")[2]] = next(iter(value.values()))
        for pattern in self.settings.profile.expect:
            try:
                yield str(pattern).format(name=device["name"], pool=pool, node=device["node"], attr=attributes)
            except KeyError:
                continue  # this device has no such attribute


def _plain(text: str) -> str:
    """Returns the text in a form in which a name is equal to its form in a variable's name."""
    return re.sub(r"[-_.:]", "_", text.lower())


# Prints the files of the plugin and of CDI that have one of the arguments in their path or content.
_FIND = """
import os, pathlib, sys
roots = [os.environ["CDI_ROOT"], os.environ["KUBELET_ROOT"] + "/plugins/" + os.environ["DRIVER_NAME"]]
for path in (p for root in roots for p in pathlib.Path(root).rglob("*")):
    try:
        content = path.read_text(errors="replace") if path.is_file() and path.stat().st_size < 1 << 20 else ""
    except OSError:
        continue
    if any(uid in str(path) or uid in content for uid in sys.argv[1:]):
        print(path)
"""
