"""Replays a recorded story of a whole cluster on the local cluster, and compares the state after each step.

The format is the one of ``scenarios.jsonl`` (README of the vectors). A step's state counts once it was as recorded and stayed so;
otherwise the error contains the first difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpu_example.driver import Gpu

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.resourceapi.kubernetes_releases import Features
from dra_kubeletplugin.testing.cluster import plugin_on

JSON = dict[str, Any]
NAMESPACE = "scen"
HELD = 0.3  # seconds that a state must last
LONGEST = 60.0  # seconds until a state is given up: a machine may be busy
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
)  # a Go struct, printed: nobody needs its words
_DRIVER = re.compile(
    r"(NodePrepareResources failed for ResourceClaim \S+): .*"
)  # the driver's own words, which were others then
_ENDING = "[bcdfghjklmnpqrstvwxz2456789]{5}"  # of a generated name, as the API server draws it


class StateDiffersError(AssertionError):
    """After a step something was not as recorded."""


Look = Callable[[LocalCluster, int], Awaitable[None]]


async def replay(story: JSON, limit: float = LONGEST, look: Look | None = None) -> None:
    """``look`` is at the cluster after each step, once it is as recorded.

    Raises :class:`StateDiffersError` with the step, the place and both values, where a state is not reached in ``limit`` seconds.
    """
    kubelet = bool(story.get("kubelet"))
    names = [n["name"] for n in story["nodes"]] if kubelet else []
    config = {"api/all": True}
    async with (
        LocalCluster(names, features=Features.of("1.36", runtime_config=config)) as cluster,
        contextlib.AsyncExitStack() as stack,
    ):
        told = StoryReplay(cluster, story, limit)
        await told.begin()
        if story.get("driver"):
            await told.post(_GPU_CLASS)
            await stack.enter_async_context(plugin_on(cluster, Gpu, names[0]))
        for number, (step, after) in enumerate(zip(story["steps"], story["after"], strict=True)):
            await told.step(step)
            await told.settle(number, after)
            if look is not None:
                await look(cluster, number)


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
class StoryReplay:
    """One story on its way: what was generated gets the names that the recording has."""

    cluster: LocalCluster
    story: JSON
    limit: float
    generated: dict[str, str] = field(default_factory=dict)
    refused: list[JSON] = field(default_factory=list)

    async def begin(self) -> None:
        labels = self.story.get("namespaceLabels") or {}
        await self._call("POST", PATHS["namespaces"], {"metadata": {"name": NAMESPACE, "labels": labels}})
        for node in self.story["nodes"]:
            if node["name"] in self.cluster.nodes:
                path = f"{PATHS['nodes']}/{node['name']}"
                await self._patch(path, {"metadata": {"labels": node.get("labels") or {}}})
                await self._patch(path + "/status", {"status": {"allocatable": node["allocatable"]}})
            else:
                await self.post(node)
        async with asyncio.timeout(LONGEST):
            while not await self._nodes_are_as_given():  # what is new has a taint until it was looked at
                await asyncio.sleep(0.02)

    async def _nodes_are_as_given(self) -> bool:
        given = {n["name"]: len(n.get("taints") or ()) + bool(n.get("unschedulable")) for n in self.story["nodes"]}
        nodes = (await self._call("GET", PATHS["nodes"]))["items"]
        return all(len(n["spec"].get("taints") or ()) == given[n["metadata"]["name"]] for n in nodes)

    # --- steps ----------------------------------------------------------------------------------

    async def step(self, step: JSON) -> None:
        self.refused = []
        for obj in step.get("apply", []):
            plural = PLURAL[obj.get("kind", "Node")]
            name = (obj.get("metadata") or obj)["name"]
            with self._refusals(f"{plural}/{name}"):
                await self.post(obj)
        for target in step.get("delete", []):
            options: JSON = {"apiVersion": "v1", "kind": "DeleteOptions"}
            if target.startswith("pods/"):
                options["gracePeriodSeconds"] = 0
            with self._refusals(target):
                await self._call("DELETE", await self._path(target), options)
        if "patch" in step:
            with self._refusals(step["patch"]["target"]):
                await self._patch(await self._path(step["patch"]["target"]), step["patch"]["body"])
        if "status" in step:
            with self._refusals(step["status"]["target"]):
                path = await self._path(step["status"]["target"])
                await self._patch(path + "/status", {"status": step["status"]["body"]})
        if "wait" in step:
            await asyncio.sleep(step["wait"])  # the story itself lets time pass

    async def post(self, obj: JSON) -> None:
        if "metadata" not in obj:
            obj = _node(obj)
        await self._call("POST", PATHS[PLURAL[obj["kind"]]], obj)

    async def _patch(self, path: str, body: JSON) -> None:
        await self.cluster.client.call("PATCH", path, body, content_type="application/merge-patch+json")

    async def _call(self, method: str, path: str, body: JSON | None = None) -> JSON:
        return await self.cluster.client.call(method, path, body)

    async def _path(self, target: str) -> str:
        plural, name = target.split("/", 1)
        if "*" in name:
            await self.state()  # learns the names that were generated meanwhile
            name = next(real for real, shown in self.generated.items() if shown == name)
        return f"{PATHS[plural]}/{name}"

    @contextlib.contextmanager
    def _refusals(self, target: str) -> Iterator[None]:
        try:
            yield
        except ApiError as e:
            causes = (e.details.get("details") or {}).get("causes")  # type: ignore[attr-defined]
            told = {k: e.details.get(k) for k in ("code", "reason", "message")}
            self.refused.append({"target": target, **told, "causes": causes})

    # --- what is seen ---------------------------------------------------------------------------

    async def settle(self, number: int, after: JSON) -> None:
        """Waits until the state is as recorded for a while."""
        varies = [p.removeprefix(f"/{number}/") for p in self.story.get("varies", []) if p.startswith(f"/{number}/")]
        now, after = asyncio.get_running_loop().time, _mask_generated(after)
        end, since, difference = now() + self.limit, 0.0, ""
        while now() < end:
            difference = first_difference(_without(after, varies), _without(await self.state(), varies))
            since = 0.0 if difference else since or now()
            if since and now() - since >= HELD:
                return
            await asyncio.sleep(0.05)
        raise StateDiffersError(f"after step {number}: {difference or 'it does not stay so'}")

    async def state(self) -> JSON:
        """The state in the recording's form."""
        pods, claims, events = [
            (await self._call("GET", PATHS[k]))["items"] for k in ("pods", "resourceclaims", "events")
        ]
        quotas = await self._listed("resourcequotas")
        rules = await self._listed("devicetaintrules")
        for claim in sorted(claims, key=lambda c: int(c["metadata"]["resourceVersion"])):
            self._learn(claim["metadata"])
        told: JSON = {
            "pods": {p["metadata"]["name"]: self._pod(p) for p in pods},
            "claims": {c["metadata"]["name"]: _claim(c) for c in claims},
            "events": [_event(e) for e in events],
        }
        if quotas:
            told["quotas"] = {q["metadata"]["name"]: q.get("status", {}) for q in quotas}
        if rules:
            told["deviceTaintRules"] = {r["metadata"]["name"]: r.get("status", {}) for r in rules}
        if self.refused:
            told["refused"] = self.refused
        shown: JSON = self._shown(told, self._prefixes(pods))
        shown["events"] = sorted({json.dumps(e, sort_keys=True) for e in shown["events"]})
        return shown

    async def _listed(self, plural: str) -> list[JSON]:
        try:
            return list((await self._call("GET", PATHS[plural]))["items"])
        except ApiError:
            return []

    def _learn(self, meta: JSON) -> None:
        prefix = meta.get("generateName")
        if prefix and meta["name"] not in self.generated:
            before = sum(shown.startswith(prefix + "*") for shown in self.generated.values())
            self.generated[meta["name"]] = f"{prefix}*{before + 1 if before else ''}"

    def _prefixes(self, pods: list[JSON]) -> list[str]:
        """How names of claims begin that were generated, or would have been."""
        found = []
        for pod in pods:
            name = pod["metadata"]["name"]
            found.append(f"{name}-extended-resources-")
            found += [f"{name}-{c['name']}-" for c in pod["spec"].get("resourceClaims") or []]
        return found

    def _shown(self, told: JSON, prefixes: list[str]) -> JSON:
        text = json.dumps(told)
        for real, shown in self.generated.items():
            text = text.replace(real, shown)
        for prefix in prefixes:
            text = re.sub(re.escape(prefix) + _ENDING + r"(?![\w-])", prefix + "*", text)
        return _mask_generated(json.loads(_UID.sub("*", text)))

    def _pod(self, pod: JSON) -> JSON:
        status = pod.get("status") or {}
        told: JSON = {"nodeName": pod["spec"].get("nodeName"), "phase": status.get("phase")}
        for condition in status.get("conditions") or []:
            if condition["type"] == "PodScheduled":
                told["PodScheduled"] = {k: condition[k] for k in ("status", "reason", "message") if condition.get(k)}
        for key in ("resourceClaimStatuses", "extendedResourceClaimStatus", "nominatedNodeName", "reason", "message"):
            if status.get(key):
                told[key] = status[key]
        if self.story.get("kubelet"):
            every = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
            told["containers"] = {c["name"]: {"ready": c["ready"], "state": _container(c["state"])} for c in every}
        return told


def _container(state: JSON) -> JSON:
    return {kind: {k: v for k, v in more.items() if k in ("reason", "exitCode")} for kind, more in state.items()}


def _claim(claim: JSON) -> JSON:
    meta = claim["metadata"]
    told: JSON = {"status": claim.get("status") or {}}
    for key in ("finalizers", "labels"):
        if meta.get(key):
            told[key] = meta[key]
    if meta.get("deletionTimestamp"):
        told["deleting"] = True
    if meta.get("ownerReferences"):
        keys = ("kind", "name", "controller", "blockOwnerDeletion")
        told["ownerReferences"] = [{k: o.get(k) for k in keys} for o in meta["ownerReferences"]]
        told["annotations"] = meta.get("annotations")
        told["spec"] = claim["spec"]
    return told


def _event(event: JSON) -> JSON:
    component = event.get("reportingComponent") or (event.get("source") or {}).get("component")
    about = event["involvedObject"]
    told = {k: event.get(k) for k in ("message", "reason", "type")}
    return {"kind": about["kind"], "name": about["name"], "reportingComponent": component, **told}


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


def _node(short: JSON) -> JSON:
    spec = {k: short[k] for k in ("taints", "unschedulable") if k in short}
    status = {"allocatable": short["allocatable"], "capacity": short["allocatable"]}
    meta = {"name": short["name"], "labels": short.get("labels") or {}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status}


def first_difference(expected: JSON, seen: JSON) -> str:
    """The first difference as text, or nothing."""
    wanted = [json.dumps({k: v for k, v in e.items() if k != "sometimes"}, sort_keys=True) for e in expected["events"]]
    must = {w for w, e in zip(wanted, expected["events"], strict=True) if not e.get("sometimes")}
    keys = [k for k in sorted(expected.keys() | seen.keys()) if k != "events"]
    for key in keys:
        found = _first(expected.get(key), seen.get(key), key)
        if found:
            return found
    if missing := sorted(must - set(seen["events"])):
        return f"missing event {missing[0]}\n  seen events: " + "\n    ".join(seen["events"])
    if more := sorted(set(seen["events"]) - set(wanted)):
        return f"event that was not there: {more[0]}\n  recorded: " + "\n    ".join(wanted)
    return ""


def _first(expected: Any, seen: Any, path: str) -> str:
    if isinstance(expected, dict) and isinstance(seen, dict):
        for key in sorted(expected.keys() | seen.keys()):
            if key not in seen or key not in expected:
                word = "missing" if key not in seen else "not expected"
                return f"{path}/{key} is {word}: {json.dumps(expected.get(key, seen.get(key)))[:600]}"
            if found := _first(expected[key], seen[key], f"{path}/{key}"):
                return found
        return ""
    if isinstance(expected, list) and isinstance(seen, list) and len(expected) == len(seen):
        pairs = enumerate(zip(expected, seen, strict=True))
        return next((found for i, (e, s) in pairs if (found := _first(e, s, f"{path}/{i}"))), "")
    return "" if expected == seen else f"{path}: recorded {json.dumps(expected)[:900]}, seen {json.dumps(seen)[:900]}"


def _without(state: JSON, pointers: list[str]) -> JSON:
    if not pointers:
        return state
    state = json.loads(json.dumps(state))
    for pointer in pointers:
        at: Any = state
        *way, last = pointer.split("/")
        for key in way:
            at = at.get(key, {})
        at.pop(last, None)
    return state
