"""Validates a pod's containers: names, images, ports, environment, restart policy.

Source: the validation package of the core API group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, duplicate, forbidden, invalid, required

from .checks import choice, missing, optional_choice, port, port_name, unique_label
from .container_resources import validate_resources
from .pod_probes import validate_lifecycle
from .pod_references import validate_references
from .pod_security import validate_container_security
from .pod_volumes import validate_volume_uses

RESTART_POLICIES = ("Always", "Never", "OnFailure")
_PULL = ("Always", "IfNotPresent", "Never")
_ENV = re.compile(r"[ -<>-~]+")
_NOT_OF_INIT_CONTAINERS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")
_ONE_SOURCE = "may not have more than one field specified at a time"


def validate_containers(
    containers: Sequence[ReadOnlyJSON],
    path: str,
    claims: set[Any],
    volumes: Mapping[str, ReadOnlyJSON],
    seen: set[str],
    *,
    host_network: bool,
    init: bool = False,
) -> list[FieldError]:
    """Validates containers and adds their names to ``seen``.

    Args:
        claims: the names of the pod's claims.
        volumes: the pod's volumes, by name.
    """
    out: list[FieldError] = []
    for i, container in enumerate(containers):
        where = f"{path}[{i}]"
        name = container.get("name", "")
        out += unique_label(f"{where}.name", name, seen)
        image = container.get("image", "")
        if not image:
            out.append(required(f"{where}.image"))
        elif image != image.strip():
            out.append(invalid(f"{where}.image", image, "must not have leading or trailing whitespace"))
        out += choice(container.get("imagePullPolicy"), f"{where}.imagePullPolicy", _PULL)
        out += _ports(container.get("ports") or [], f"{where}.ports", host_network=host_network)
        out += _environment(container.get("env") or [], f"{where}.env")
        out += _environment_from(container.get("envFrom") or [], f"{where}.envFrom")
        out += validate_volume_uses(container, where, volumes)
        out += validate_container_security(container, where)
        out += validate_lifecycle(container, where)
        out += validate_resources(container.get("resources") or {}, f"{where}.resources", claims)
        if init:
            out += optional_choice(container.get("restartPolicy"), f"{where}.restartPolicy", RESTART_POLICIES)
        if init and container.get("restartPolicy") != "Always":
            found = [f for f in _NOT_OF_INIT_CONTAINERS if container.get(f) is not None]
            rule = "may not be set for init containers without restartPolicy=Always"
            out += [forbidden(f"{where}.{field}", rule) for field in found]
    return out


def _ports(ports: Sequence[ReadOnlyJSON], path: str, *, host_network: bool) -> list[FieldError]:
    out: list[FieldError] = []
    known: set[str] = set()
    for i, item in enumerate(ports):
        where = f"{path}[{i}]"
        if name := item.get("name"):
            faults = port_name(name, f"{where}.name")
            out += faults or ([duplicate(f"{where}.name", name)] if name in known else [])
            known.add(name)
        number, host = item.get("containerPort", 0), item.get("hostPort")
        out += port(number, f"{where}.containerPort") if number else [required(f"{where}.containerPort")]
        if host and (faults := port(host, f"{where}.hostPort")):
            out += faults
        elif host and host_network and host != number:
            out.append(invalid(f"{where}.containerPort", number, "must match `hostPort` when `hostNetwork` is true"))
        out += choice(item.get("protocol"), f"{where}.protocol", ("TCP", "UDP", "SCTP"))
    return out


def validate_host_ports(containers: Sequence[ReadOnlyJSON], path: str) -> list[FieldError]:
    """Rejects containers that use the same port of the host."""
    out: list[FieldError] = []
    taken: set[str] = set()
    for i, container in enumerate(containers):
        for j, item in enumerate(container.get("ports") or []):
            if not item.get("hostPort"):
                continue
            key = f"{item.get('protocol', '')}/{item.get('hostIP', '')}/{item['hostPort']}"
            if key in taken:
                out.append(duplicate(f"{path}[{i}].ports[{j}].hostPort", key))
            taken.add(key)
    return out


def _environment(env: Sequence[ReadOnlyJSON], path: str) -> Iterator[FieldError]:
    for i, entry in enumerate(env):
        where, name = f"{path}[{i}].valueFrom", entry.get("name", "")
        yield from missing(entry, f"{path}[{i}]", "name")
        if name and not _ENV.fullmatch(name):
            rule = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            yield invalid(f"{path}[{i}].name", name, rule)
        source = entry.get("valueFrom")
        if source is None:
            continue
        if entry.get("value"):
            yield invalid(where, "", "may not be specified when `value` is not empty")
        elif len(source) > 1:
            yield invalid(where, "", _ONE_SOURCE)
        elif not source:
            sources = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            yield invalid(where, "", f"must specify one of: {sources}")
        else:
            yield from validate_references(source, where, volume=False)
            for kind in ("configMapKeyRef", "secretKeyRef"):
                if (ref := source.get(kind)) is not None:
                    yield from missing(ref, f"{where}.{kind}", "name", "key")


def _environment_from(sources: Sequence[ReadOnlyJSON], path: str) -> Iterator[FieldError]:
    for i, source in enumerate(sources):
        kinds = [k for k in ("configMapRef", "secretRef") if source.get(k) is not None]
        if len(kinds) != 1:
            yield invalid(
                f"{path}[{i}]", "", _ONE_SOURCE if kinds else "must specify one of: `configMapRef` or `secretRef`"
            )
        for kind in kinds:
            yield from missing(source[kind], f"{path}[{i}].{kind}", "name")
