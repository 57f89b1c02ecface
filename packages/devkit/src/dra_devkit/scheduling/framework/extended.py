"""Extended resources that devices provide (KEP-5004): maps their names to classes, and drafts the claim for a pod.

The claim is created only after a node is chosen. Until then it is a draft, with the requests for one node.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from .claim_cache import EXTENDED
from .pod_info import IMPLICIT, PodInfo, container_requests, is_extended

DRAFT = "<extended-resources>"  # an invalid name, so no real claim has it


def class_names(classes: Iterable[JSON]) -> dict[str, str]:
    """Returns the class of each extended resource that a class names explicitly, by the resource's name.

    If several classes name one resource, the newest class is used; of equally old classes, the first by name.
    """
    best: dict[str, tuple[str, str]] = {}
    for found in sorted(classes, key=lambda c: str(c["metadata"]["name"]), reverse=True):
        name = (found.get("spec") or {}).get("extendedResourceName")
        made = str(found["metadata"].get("creationTimestamp") or "")
        if name and (name not in best or made >= best[name][0]):
            best[name] = (made, str(found["metadata"]["name"]))
    return {name: class_name for name, (_, class_name) in best.items()}


def class_of(resource: str, explicit: Mapping[str, str], classes: Collection[str]) -> str:
    """Returns the class that provides an extended resource, or ""."""
    if not is_extended(resource):
        return ""
    if resource in explicit:
        return explicit[resource]
    implicit = resource.removeprefix(IMPLICIT)
    return implicit if implicit != resource and implicit in classes else ""


def wanted(pod: PodInfo, explicit: Mapping[str, str], classes: Collection[str]) -> dict[str, str]:
    """Returns the pod's extended resources that classes provide: resource name → class."""
    found = {name: class_of(name, explicit, classes) for name, amount in pod.requests.items() if amount}
    return {name: class_name for name, class_name in found.items() if class_name}


def draft(pod: PodInfo) -> JSON:
    """Returns the draft of the claim for a pod's extended resources, without requests."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
    meta = {
        "name": DRAFT,
        "generateName": f"{pod.name}-extended-resources-",
        "namespace": pod.namespace,
        "uid": str(uuid.uuid4()),
        "annotations": {EXTENDED: "true"},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": {}, "status": {}}


def is_draft(claim: Mapping[str, Any]) -> bool:
    return bool(claim["metadata"]["name"] == DRAFT)


def for_node(claim: JSON, pod: PodInfo, by_class: Mapping[str, str]) -> tuple[JSON, list[JSON]]:
    """Returns the draft with the requests for a node, and the mapping of containers to requests.

    Args:
        by_class: extended resource → class, for resources that the node's device plugins do not provide.
    """
    requests, mappings = requests_of(pod, by_class)
    filled = copy.deepcopy(claim)
    filled["spec"] = {"devices": {"requests": requests}}
    return filled, mappings


def requests_of(pod: PodInfo, by_class: Mapping[str, str]) -> tuple[list[JSON], list[JSON]]:
    """Returns one request per container and resource, and the mappings.

    An init container that ends uses devices of later containers, because these start after its end.
    """
    inits = pod.spec.get("initContainers") or []
    containers = [*inits, *pod.spec["containers"]]
    short = [i for i, c in enumerate(inits) if c.get("restartPolicy") != "Always"]
    requests: list[JSON] = []
    mappings: list[JSON] = []
    for resource in sorted(by_class):
        long_lived: list[JSON | None] = [None] * len(containers)
        for i, container in enumerate(containers):
            if i not in short:
                long_lived[i], mapped = _request(i, container, resource, by_class[resource], [])
                mappings += mapped
        largest: JSON | None = None
        names: set[str] = set()
        of_short: list[JSON] = []
        for i in short:
            reusable = [r for r in long_lived[i:] if r]
            request, mapped = _request(i, containers[i], resource, by_class[resource], reusable)
            of_short += mapped
            if request:
                names.add(request["name"])
                if largest is None or largest["exactly"]["count"] < request["exactly"]["count"]:
                    largest = request
        if largest:
            for mapping in of_short:
                if mapping["requestName"] in names:
                    mapping["requestName"] = largest["name"]
            requests.append(largest)
        requests += [r for r in long_lived if r]
        mappings += of_short
    return sorted(requests, key=lambda r: str(r["name"])), mappings


def _request(
    index: int, container: JSON, resource: str, class_name: str, reusable: list[JSON]
) -> tuple[JSON | None, list[JSON]]:
    wanted = container_requests(container)
    count = wanted.get(resource, 0)
    if not count:
        return None, []

    def mapping(name: str) -> JSON:
        return {"containerName": container["name"], "resourceName": resource, "requestName": name}

    mapped = []
    have = 0
    for request in reusable:
        have += request["exactly"]["count"]
        mapped.append(mapping(request["name"]))
        if have >= count:
            return None, mapped
    name = f"container-{index}-request-{sorted(wanted).index(resource)}"
    exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count - have}
    return {"name": name, "exactly": exactly}, [*mapped, mapping(name)]
