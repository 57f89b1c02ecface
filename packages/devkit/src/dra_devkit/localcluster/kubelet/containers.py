"""Builds the configuration of a container for the runtime: environment, mounts, devices and user."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CONFIG_MAPS, SECRETS
from dra_kubeletplugin.resourceapi.quantity import Quantity

from ...scheduling.framework.pod_info import CPU, MEMORY, OF_CLAIMS, used_by_claim
from ..runtime.interface import ContainerConfig, Limits, Mount, Role
from .config_objects import MissingError, data_of
from .fields import FieldUnknown, allocatable_of, field_value, resource_value
from .volumes import MountError, mounts_of

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


class ConfigError(Exception):
    """A container cannot be configured. The text is the same as a real kubelet's."""


def roles(pod: ReadOnlyJSON) -> list[tuple[ReadOnlyJSON, Role]]:
    """Returns all containers of a pod with their roles, in the order in which they start."""
    spec = pod["spec"]
    out = [
        (c, Role.SIDECAR if c.get("restartPolicy") == "Always" else Role.INIT) for c in spec.get("initContainers") or []
    ]
    return out + [(c, Role.MAIN) for c in spec["containers"]]


def requests_of(pod: ReadOnlyJSON, container: ReadOnlyJSON, claims: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns pairs of claim and request that a container uses. An empty request means all requests of the claim.

    Args:
        claims: the pod's claims: the name in the pod → the name of the ResourceClaim.
    """
    out = claim_requests(container, claims)
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    for mapping in extended.get("requestMappings") or []:
        if mapping["containerName"] == container["name"]:
            out.append((extended["resourceClaimName"], mapping["requestName"]))
    return out


def claim_requests(container: ReadOnlyJSON, claims: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the pairs of :func:`requests_of` without those of extended resources."""
    entries = (container.get("resources") or {}).get("claims") or []
    return [(claims[e["name"]], e.get("request") or "") for e in entries if claims.get(e["name"])]


async def config_of(
    client: KubeClient,
    pod: ReadOnlyJSON,
    container: ReadOnlyJSON,
    role: Role,
    attempt: int,
    volumes: Mapping[str, Mount],
    cdi_devices: Sequence[str],
) -> ContainerConfig:
    """Builds the configuration of a container.

    Raises:
        ConfigError: a reference, a limit or the user of the container is invalid.
    """
    env = await _environment(client, pod, container)
    known = dict(env)
    try:
        mounts = mounts_of(container, volumes)
    except MountError as e:
        raise ConfigError(str(e)) from None
    security = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    if security.get("runAsNonRoot") and security.get("runAsUser") == 0:
        meta = pod["metadata"]
        where = f'pod: "{meta["name"]}_{meta["namespace"]}({meta["uid"]})", container: {container["name"]}'
        raise ConfigError(f"container's runAsUser breaks non-root policy ({where})")
    return ContainerConfig(
        container["name"],
        role,
        attempt,
        container.get("image", ""),
        [expanded(str(c), known) for c in container.get("command") or []],
        [expanded(str(a), known) for a in container.get("args") or []],
        container.get("workingDir", ""),
        env,
        mounts,
        cdi_devices,
        security.get("runAsUser"),
        security.get("runAsGroup"),
        security,
        bool(container.get("stdin")),
        bool(container.get("stdinOnce")),
        bool(container.get("tty")),
        _limits(pod, container),
    )


def _limits(pod: ReadOnlyJSON, container: ReadOnlyJSON) -> Limits:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    try:
        memory, cpu = (Quantity(str(limits.get(name, "0"))).value for name in ("memory", "cpu"))
        share = Quantity(str(requests.get("cpu", "0"))).value
    except ValueError as e:
        raise ConfigError(str(e)) from None
    # Since 1.37, what the devices of a container use of the node raises its limits (KEP-5517). The form of 1.36 has "resources".
    entries = (pod.get("status") or {}).get(OF_CLAIMS) or ()
    used = [
        used_by_claim(e, 1)
        for e in entries
        if container["name"] in (e.get("containers") or ()) and "resources" not in e
    ]
    of_devices = {name: sum(u.get(name, 0) for u in used) for name in (MEMORY, CPU)}
    return Limits(
        int(memory) + of_devices[MEMORY] if memory else 0,
        math.ceil(cpu * 1000) + of_devices[CPU] if cpu else 0,
        math.ceil(share * 1000),
    )


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Replaces each ``$(NAME)`` of a known variable with its value, and ``$$`` with one dollar sign."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else known.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


async def _environment(client: KubeClient, pod: ReadOnlyJSON, container: ReadOnlyJSON) -> list[tuple[str, str]]:
    values: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        for kind, resource in (("configMapRef", CONFIG_MAPS), ("secretRef", SECRETS)):
            if ref := source.get(kind):
                found = await _data(client, pod, resource, ref["name"], bool(ref.get("optional")))
                values.update({source.get("prefix", "") + key: text for key, text in found.items()})
    for entry in container.get("env") or []:
        if source := entry.get("valueFrom"):
            text = await _value_from(client, pod, container, source)
            if text is not None:
                values[entry["name"]] = text
        else:
            values[entry["name"]] = expanded(str(entry.get("value") or ""), values)
    return list(values.items())


async def _value_from(
    client: KubeClient, pod: ReadOnlyJSON, container: ReadOnlyJSON, source: ReadOnlyJSON
) -> str | None:
    try:
        if ref := source.get("fieldRef"):
            return field_value(pod, ref["fieldPath"])
        if ref := source.get("resourceFieldRef"):
            name = ref.get("containerName")
            of = next((c for c, _ in roles(pod) if c["name"] == name), container) if name else container
            return resource_value(of, ref, await allocatable_of(client, pod))
    except FieldUnknown as e:
        raise ConfigError(str(e)) from None
    for kind, resource in (("configMapKeyRef", CONFIG_MAPS), ("secretKeyRef", SECRETS)):
        if ref := source.get(kind):
            optional = bool(ref.get("optional"))
            found = await _data(client, pod, resource, ref["name"], optional)
            if ref["key"] not in found and not optional:
                what = "ConfigMap" if resource is CONFIG_MAPS else "Secret"
                raise ConfigError(
                    f"couldn't find key {ref['key']} in {what} {pod['metadata']['namespace']}/{ref['name']}"
                )
            return found.get(ref["key"])
    raise ConfigError(f"environment from {', '.join(source) or 'nothing'} is not implemented by the local cluster")


async def _data(client: KubeClient, pod: ReadOnlyJSON, resource: Resource, name: str, optional: bool) -> dict[str, str]:
    try:
        found = await data_of(client, resource, name, pod["metadata"]["namespace"], optional=optional)
    except MissingError as e:
        raise ConfigError(str(e)) from None
    return {k: v.decode(errors="replace") for k, v in found.items()}
