"""Validates a pod's containers: names, images, ports, environment, restart policy.

Source: the validation package of the core API group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    required,
    unsupported,
)

from .container_resources import validate_resources
from .pod_probes import validate_lifecycle
from .pod_references import validate_references
from .pod_security import validate_container_security
from .pod_volumes import validate_volume_uses
from .unique_names import unique_label

RESTART_POLICIES = ("Always", "Never", "OnFailure")
_PULL = ("Always", "IfNotPresent", "Never")
_ENV = re.compile(r"[ -<>-~]+")
_PORT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


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
        if container.get("imagePullPolicy") not in _PULL:
            out.append(choice_error(f"{where}.imagePullPolicy", container.get("imagePullPolicy"), _PULL))
        out += _ports(container.get("ports") or [], f"{where}.ports", host_network=host_network)
        out += _environment(container.get("env") or [], f"{where}.env")
        out += _environment_from(container.get("envFrom") or [], f"{where}.envFrom")
        out += validate_volume_uses(container, where, volumes)
        out += validate_container_security(container, where) + validate_lifecycle(container, where)
        out += validate_resources(container.get("resources") or {}, f"{where}.resources", claims)
        out += _restart(container, where, init=init)
    return out


def _restart(container: ReadOnlyJSON, where: str, *, init: bool) -> list[FieldError]:
    out: list[FieldError] = []
    policy = container.get("restartPolicy")
    if init and policy is not None and policy not in RESTART_POLICIES:
        out.append(unsupported(f"{where}.restartPolicy", policy, RESTART_POLICIES))
    if init and policy != "Always":
        for probe in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
            if container.get(probe) is not None:
                out.append(
                    forbidden(f"{where}.{probe}", "may not be set for init containers without restartPolicy=Always")
                )
    return out


def _ports(ports: Sequence[ReadOnlyJSON], path: str, *, host_network: bool) -> list[FieldError]:
    out: list[FieldError] = []
    known: set[str] = set()
    for i, port in enumerate(ports):
        where = f"{path}[{i}]"
        if name := port.get("name"):
            if len(name) > 15 or not _PORT_NAME.fullmatch(name) or not any(c.isalpha() for c in name) or "--" in name:
                rule = "must be a valid port name of at most 15 characters (e.g. http or http-2)"
                out.append(invalid(f"{where}.name", name, rule))
            elif name in known:
                out.append(duplicate(f"{where}.name", name))
            known.add(name)
        number = port.get("containerPort", 0)
        if not number:
            out.append(required(f"{where}.containerPort"))
        elif not 1 <= number <= 65535:
            out.append(invalid(f"{where}.containerPort", number, "must be between 1 and 65535, inclusive"))
        host = port.get("hostPort")
        if host and not 1 <= host <= 65535:
            out.append(invalid(f"{where}.hostPort", host, "must be between 1 and 65535, inclusive"))
        elif host and host_network and host != number:
            out.append(invalid(f"{where}.containerPort", number, "must match `hostPort` when `hostNetwork` is true"))
        if port.get("protocol") not in {"TCP", "UDP", "SCTP"}:
            out.append(choice_error(f"{where}.protocol", port.get("protocol"), ("TCP", "UDP", "SCTP")))
    return out


def validate_host_ports(containers: Sequence[ReadOnlyJSON], path: str) -> list[FieldError]:
    """Rejects containers that use the same port of the host."""
    out: list[FieldError] = []
    taken: set[str] = set()
    for i, container in enumerate(containers):
        for j, port in enumerate(container.get("ports") or []):
            if not port.get("hostPort"):
                continue
            key = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{port['hostPort']}"
            if key in taken:
                out.append(duplicate(f"{path}[{i}].ports[{j}].hostPort", key))
            taken.add(key)
    return out


def _environment(env: Sequence[ReadOnlyJSON], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for i, entry in enumerate(env):
        name = entry.get("name", "")
        if not name:
            out.append(required(f"{path}[{i}].name"))
        elif not _ENV.fullmatch(name):
            rule = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            out.append(invalid(f"{path}[{i}].name", name, rule))
        source = entry.get("valueFrom")
        if source is not None and entry.get("value"):
            out.append(invalid(f"{path}[{i}].valueFrom", "", "may not be specified when `value` is not empty"))
        elif source is not None and len(source) != 1:
            rule = (
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            )
            out.append(
                invalid(
                    f"{path}[{i}].valueFrom",
                    "",
                    rule if not source else "may not have more than one field specified at a time",
                )
            )
        elif source:
            out += _env_source(source, f"{path}[{i}].valueFrom")
    return out


def _env_source(source: ReadOnlyJSON, path: str) -> Iterable[FieldError]:
    yield from validate_references(source, path, volume=False)
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if (ref := source.get(kind)) is not None:
            for field in ("name", "key"):
                if not ref.get(field):
                    yield required(f"{path}.{kind}.{field}")


def _environment_from(sources: Sequence[ReadOnlyJSON], path: str) -> Iterable[FieldError]:
    for i, source in enumerate(sources):
        kinds = [k for k in ("configMapRef", "secretRef") if source.get(k) is not None]
        if not kinds:
            yield invalid(f"{path}[{i}]", "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(kinds) > 1:
            yield invalid(f"{path}[{i}]", "", "may not have more than one field specified at a time")
        for kind in kinds:
            if not source[kind].get("name"):
                yield required(f"{path}[{i}].{kind}.name")


def choice_error(path: str, value: Any, allowed: Sequence[str]) -> FieldError:
    """Returns the error for a value that is missing or not in ``allowed``."""
    return unsupported(path, value, allowed) if value else required(path)
