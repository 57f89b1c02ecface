"""Replays a recorded scenario of a whole cluster on the local cluster, and compares the state after each step.

The format is the one of ``scenarios.jsonl`` (README of the vectors). A state matches when it equals the recorded state for ``STABLE_FOR``
seconds. Otherwise the error contains the first difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing.cluster import plugin_on
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from gpu_example.driver import Gpu
from tests.helpers.recordings import recorded_lines

SCENARIOS = recorded_lines("scenarios")
KNOWN_DIFFERENCES = dict(
    line.split(": ", 1)
    for line in Path(__file__).with_name("known_differences.txt").read_text().splitlines()
    if line.strip()
)
NAMESPACE = "scen"
STABLE_FOR = 0.3  # seconds for which a state must match
TIMEOUT = 60.0  # seconds until the replay fails; long, because the machine may be busy
PATHS = {
    "pods": f"/api/v1/namespaces/{NAMESPACE}/pods",
    "nodes": "/api/v1/nodes",
    "namespaces": "/api/v1/namespaces",
    "events": f"/api/v1/namespaces/{NAMESPACE}/events",
    "resourcequotas": f"/api/v1/namespaces/{NAMESPACE}/resourcequotas",
    "priorityclasses": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "resourceclaims": f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims",
    "resourceclaimtemplates": f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaimtemplates",
    "resourceslices": "/apis/resource.k8s.io/v1/resourceslices",
    "deviceclasses": "/apis/resource.k8s.io/v1/deviceclasses",
    "devicetaintrules": "/apis/resource.k8s.io/v1alpha3/devicetaintrules",
}
PLURAL = {
    "Pod": "pods",
    "Node": "nodes",
    "ResourceQuota": "resourcequotas",
    "PriorityClass": "priorityclasses",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "ResourceSlice": "resourceslices",
    "DeviceClass": "deviceclasses",
    "DeviceTaintRule": "devicetaintrules",
}
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_STRUCT = re.compile(
    r'Invalid value: (\{.*\}|"<value omitted>"): (?=\w)'
)  # a printed Go struct; its text is not compared
_DRIVER = re.compile(
    r"(NodePrepareResources failed for ResourceClaim \S+): .*"
)  # the message of the driver, which was another driver in the recording
_ENDING = "[bcdfghjklmnpqrstvwxz2456789]{5}"  # of a generated name, in the form of the API server


class StateDiffersError(AssertionError):
    """The state after a step differs from the recorded state."""


Observer = Callable[[LocalCluster, int], Awaitable[None]]


async def replay(scenario: JSON, limit: float = TIMEOUT, observe: Observer | None = None) -> None:
    """Replays a scenario. Calls ``observe`` after each step, when the state matches.

    Raises :class:`StateDiffersError` with the step, the path and both values if a state does not match within ``limit`` seconds.
    """
    kubelet = bool(scenario.get("kubelet"))
    names = [n["name"] for n in scenario["nodes"]] if kubelet else []
    config = {"api/all": True}
    async with (
        LocalCluster(names, features=Features.of("1.36", runtime_config=config)) as cluster,
        contextlib.AsyncExitStack() as stack,
    ):
        scenario_replay = ScenarioReplay(cluster, scenario, limit)
        await scenario_replay.create_nodes()
        if scenario.get("driver"):
            await scenario_replay.post(_GPU_CLASS)
            await stack.enter_async_context(plugin_on(cluster, Gpu, names[0]))
        for number, (step, after) in enumerate(zip(scenario["steps"], scenario["after"], strict=True)):
            await scenario_replay.step(step)
            await scenario_replay.wait_for_state(number, after)
            if observe is not None:
                await observe(cluster, number)


_GPU_CLASS: JSON = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.example.com"},
    "spec": {
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
        "extendedResourceName": "example.com/gpu",
    },
}


@dataclass
class ScenarioReplay:
    """The replay of one scenario. Generated names are mapped to the names in the recording."""

    cluster: LocalCluster
    scenario: JSON
    limit: float
    generated: dict[str, str] = field(default_factory=dict)
    rejections: list[JSON] = field(default_factory=list)

    async def create_nodes(self) -> None:
        labels = self.scenario.get("namespaceLabels") or {}
        await self._call("POST", PATHS["namespaces"], {"metadata": {"name": NAMESPACE, "labels": labels}})
        for node in self.scenario["nodes"]:
            if node["name"] in self.cluster.nodes:
                path = f"{PATHS['nodes']}/{node['name']}"
                await self._patch(path, {"metadata": {"labels": node.get("labels") or {}}})
                await self._patch(path + "/status", {"status": {"allocatable": node["allocatable"]}})
            else:
                await self.post(node)
        async with asyncio.timeout(TIMEOUT):
            while (
                not await self._taints_match_scenario()
            ):  # a new node has a taint until the node controller has processed it
                await asyncio.sleep(0.02)

    async def _taints_match_scenario(self) -> bool:
        expected_taints = {
            n["name"]: len(n.get("taints") or ()) + bool(n.get("unschedulable")) for n in self.scenario["nodes"]
        }
        nodes = (await self._call("GET", PATHS["nodes"]))["items"]
        return all(len(n["spec"].get("taints") or ()) == expected_taints[n["metadata"]["name"]] for n in nodes)

    # --- steps ----------------------------------------------------------------------------------

    async def step(self, step: JSON) -> None:
        self.rejections = []
        for obj in step.get("apply", []):
            plural = PLURAL[obj.get("kind", "Node")]
            name = (obj.get("metadata") or obj)["name"]
            with self._record_rejection(f"{plural}/{name}"):
                await self.post(obj)
        for target in step.get("delete", []):
            options: JSON = {"apiVersion": "v1", "kind": "DeleteOptions"}
            if target.startswith("pods/"):
                options["gracePeriodSeconds"] = 0
            with self._record_rejection(target):
                await self._call("DELETE", await self._path(target), options)
        if "patch" in step:
            with self._record_rejection(step["patch"]["target"]):
                await self._patch(await self._path(step["patch"]["target"]), step["patch"]["body"])
        if "status" in step:
            with self._record_rejection(step["status"]["target"]):
                path = await self._path(step["status"]["target"])
                await self._patch(path + "/status", {"status": step["status"]["body"]})
        if "wait" in step:
            await asyncio.sleep(step["wait"])  # the scenario contains this pause

    async def post(self, obj: JSON) -> None:
        if "metadata" not in obj:
            obj = _node(obj)
        path = PATHS[PLURAL[obj["kind"]]]
        if obj["kind"] == "DeviceTaintRule":  # served in several versions
            path = f"/apis/{obj['apiVersion']}/devicetaintrules"
        await self._call("POST", path, obj)

    async def _patch(self, path: str, body: JSON) -> None:
        await self.cluster.client.call("PATCH", path, body, content_type="application/merge-patch+json")

    async def _call(self, method: str, path: str, body: JSON | None = None) -> JSON:
        return await self.cluster.client.call(method, path, body)

    async def _path(self, target: str) -> str:
        plural, name = target.split("/", 1)
        if "*" in name:
            await self.state()  # records the names that were generated since the last state
            name = next(real for real, recorded in self.generated.items() if recorded == name)
        return f"{PATHS[plural]}/{name}"

    @contextlib.contextmanager
    def _record_rejection(self, target: str) -> Iterator[None]:
        try:
            yield
        except ApiError as e:
            causes = (e.details.get("details") or {}).get("causes")  # type: ignore[attr-defined]
            details = {k: e.details.get(k) for k in ("code", "reason", "message")}
            self.rejections.append({"target": target, **details, "causes": causes})

    # --- states ---------------------------------------------------------------------------------

    async def wait_for_state(self, number: int, after: JSON) -> None:
        """Waits until the state matches the recorded state for ``STABLE_FOR`` seconds."""
        varies = [p.removeprefix(f"/{number}/") for p in self.scenario.get("varies", []) if p.startswith(f"/{number}/")]
        clock, after = asyncio.get_running_loop().time, _mask_generated(after)
        end, since, difference = clock() + self.limit, 0.0, ""
        while clock() < end:
            difference = find_first_difference(_without(after, varies), _without(await self.state(), varies))
            since = 0.0 if difference else since or clock()
            if since and clock() - since >= STABLE_FOR:
                return
            await asyncio.sleep(0.05)
        raise StateDiffersError(f"after step {number}: {difference or 'the state is not stable'}")

    async def state(self) -> JSON:
        """Returns the state in the form of the recording."""
        pods, claims, events = [
            (await self._call("GET", PATHS[k]))["items"] for k in ("pods", "resourceclaims", "events")
        ]
        quotas = await self._list_or_empty("resourcequotas")
        rules = await self._list_or_empty("devicetaintrules")
        for claim in sorted(claims, key=lambda c: int(c["metadata"]["resourceVersion"])):
            self._record_generated_name(claim["metadata"])
        current: JSON = {
            "pods": {p["metadata"]["name"]: self._pod(p) for p in pods},
            "claims": {c["metadata"]["name"]: _claim(c) for c in claims},
            "events": [_event(e) for e in events],
        }
        if quotas:
            current["quotas"] = {q["metadata"]["name"]: q.get("status", {}) for q in quotas}
        if rules:
            current["deviceTaintRules"] = {r["metadata"]["name"]: r.get("status", {}) for r in rules}
        if self.rejections:
            current["refused"] = self.rejections
        masked: JSON = self._with_recorded_names(current, self._generated_prefixes(pods))
        masked["events"] = sorted({json.dumps(e, sort_keys=True) for e in masked["events"]})
        return masked

    async def _list_or_empty(self, plural: str) -> list[JSON]:
        try:
            return list((await self._call("GET", PATHS[plural]))["items"])
        except ApiError:
            return []

    def _record_generated_name(self, meta: JSON) -> None:
        prefix = meta.get("generateName")
        if prefix and meta["name"] not in self.generated:
            before = sum(recorded.startswith(prefix + "*") for recorded in self.generated.values())
            self.generated[meta["name"]] = f"{prefix}*{before + 1 if before else ''}"

    def _generated_prefixes(self, pods: list[JSON]) -> list[str]:
        """Returns the prefixes of all generated names of claims, including claims that were not created."""
        prefixes = []
        for pod in pods:
            name = pod["metadata"]["name"]
            prefixes.append(f"{name}-extended-resources-")
            prefixes += [f"{name}-{c['name']}-" for c in pod["spec"].get("resourceClaims") or []]
        return prefixes

    def _with_recorded_names(self, current: JSON, prefixes: list[str]) -> JSON:
        text = json.dumps(current)
        for real, recorded in self.generated.items():
            text = text.replace(real, recorded)
        for prefix in prefixes:
            text = re.sub(re.escape(prefix) + _ENDING + r"(?![\w-])", prefix + "*", text)
        return _mask_generated(json.loads(_UID.sub("*", text)))

    def _pod(self, pod: JSON) -> JSON:
        status = pod.get("status") or {}
        summary: JSON = {"nodeName": pod["spec"].get("nodeName"), "phase": status.get("phase")}
        for condition in status.get("conditions") or []:
            if condition["type"] == "PodScheduled":
                summary["PodScheduled"] = {k: condition[k] for k in ("status", "reason", "message") if condition.get(k)}
        for key in ("resourceClaimStatuses", "extendedResourceClaimStatus", "nominatedNodeName", "reason", "message"):
            if status.get(key):
                summary[key] = status[key]
        if self.scenario.get("kubelet"):
            statuses = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
            summary["containers"] = {
                c["name"]: {"ready": c["ready"], "state": _container(c["state"])} for c in statuses
            }
        return summary


def _container(state: JSON) -> JSON:
    return {kind: {k: v for k, v in fields.items() if k in ("reason", "exitCode")} for kind, fields in state.items()}


def _claim(claim: JSON) -> JSON:
    meta = claim["metadata"]
    summary: JSON = {"status": claim.get("status") or {}}
    for key in ("finalizers", "labels"):
        if meta.get(key):
            summary[key] = meta[key]
    if meta.get("deletionTimestamp"):
        summary["deleting"] = True
    if meta.get("ownerReferences"):
        keys = ("kind", "name", "controller", "blockOwnerDeletion")
        summary["ownerReferences"] = [{k: o.get(k) for k in keys} for o in meta["ownerReferences"]]
        summary["annotations"] = meta.get("annotations")
        summary["spec"] = claim["spec"]
    return summary


def _event(event: JSON) -> JSON:
    component = event.get("reportingComponent") or (event.get("source") or {}).get("component")
    involved = event["involvedObject"]
    fields = {k: event.get(k) for k in ("message", "reason", "type")}
    return {"kind": involved["kind"], "name": involved["name"], "reportingComponent": component, **fields}


def _mask_generated(value: Any, key: str = "") -> Any:
    match value:
        case dict():
            return {k: _mask_generated(v, k) for k, v in value.items()}
        case list():
            return [_mask_generated(v) for v in value]
        case str() if key == "shareID" or _TIME.fullmatch(value):
            return "*"
        case str():
            value = _DRIVER.sub(r"\1: *", _STRUCT.sub("Invalid value: *: ", value))
            return _TIME.sub("*", value)
        case _:
            return value


def _node(node: JSON) -> JSON:
    spec = {k: node[k] for k in ("taints", "unschedulable") if k in node}
    status = {"allocatable": node["allocatable"], "capacity": node["allocatable"]}
    meta = {"name": node["name"], "labels": node.get("labels") or {}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status}


def find_first_difference(expected: JSON, actual: JSON) -> str:
    """Returns the first difference as text, or an empty string."""
    expected_events = [
        json.dumps({k: v for k, v in e.items() if k != "sometimes"}, sort_keys=True) for e in expected["events"]
    ]
    required = {w for w, e in zip(expected_events, expected["events"], strict=True) if not e.get("sometimes")}
    keys = [k for k in sorted(expected.keys() | actual.keys()) if k != "events"]
    for key in keys:
        difference = _find_difference(expected.get(key), actual.get(key), key)
        if difference:
            return difference
    if missing := sorted(required - set(actual["events"])):
        return f"missing event {missing[0]}\n  seen events: " + "\n    ".join(actual["events"])
    if unexpected := sorted(set(actual["events"]) - set(expected_events)):
        return f"event that was not recorded: {unexpected[0]}\n  recorded: " + "\n    ".join(expected_events)
    return ""


def _find_difference(expected: Any, actual: Any, path: str) -> str:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            if key not in actual or key not in expected:
                problem = "missing" if key not in actual else "not expected"
                return f"{path}/{key} is {problem}: {json.dumps(expected.get(key, actual.get(key)))[:600]}"
            if difference := _find_difference(expected[key], actual[key], f"{path}/{key}"):
                return difference
        return ""
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return next((difference for i, (e, s) in pairs if (difference := _find_difference(e, s, f"{path}/{i}"))), "")
    return (
        "" if expected == actual else f"{path}: recorded {json.dumps(expected)[:900]}, seen {json.dumps(actual)[:900]}"
    )


def _without(state: JSON, pointers: list[str]) -> JSON:
    if not pointers:
        return state
    state = json.loads(json.dumps(state))
    for pointer in pointers:
        parent: Any = state
        *parents, last = pointer.split("/")
        for key in parents:
            parent = parent.get(key, {})
        parent.pop(last, None)
    return state
