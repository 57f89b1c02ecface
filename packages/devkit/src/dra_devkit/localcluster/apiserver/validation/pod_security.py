"""Validates security contexts and a pod's sharing of host namespaces. Source: the validation package of the core API group."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    required,
    unsupported,
)

from .checks import between, choice, optional_choice

_MAX_ID = 2**31 - 1  # highest user and group id
_SECCOMP = ("Localhost", "RuntimeDefault", "Unconfined")
_CHANGES = ("Always", "OnRootMismatch")
_SYSTEMS = ("linux", "windows")


def validate_security(spec: ReadOnlyJSON, path: str) -> Iterator[FieldError]:
    """Yields all errors of a pod's security context and of its use of host namespaces."""
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        rule = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield invalid(f"{path}.shareProcessNamespace", True, rule)
    if spec.get("hostUsers") is False:
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(field):
                yield forbidden(f"{path}.{field}", "when `hostUsers` is false")
    else:
        for field in ("initContainers", "containers"):
            for i, container in enumerate(spec.get(field) or []):
                if (container.get("securityContext") or {}).get("procMount") == "Unmasked":
                    where = f"{path}.{field}[{i}].securityContext.procMount"
                    yield invalid(where, "Unmasked", "`hostUsers` must be false to use `Unmasked`")
    if (system := spec.get("os")) is not None:
        yield from choice(system.get("name"), f"{path}.os.name", _SYSTEMS)
    context, at = spec.get("securityContext") or {}, f"{path}.securityContext"
    yield from _ids(context, at, ("fsGroup", "runAsUser", "runAsGroup"))
    for i, group in enumerate(context.get("supplementalGroups") or []):
        yield from between(group, f"{at}.supplementalGroups[{i}]", 0, _MAX_ID)
    yield from _seccomp(context, at)
    yield from optional_choice(context.get("fsGroupChangePolicy"), f"{at}.fsGroupChangePolicy", _CHANGES)
    seen: set[str] = set()
    for i, sysctl in enumerate(context.get("sysctls") or []):
        name = sysctl.get("name") or ""
        if not name:
            yield required(f"{at}.sysctls[{i}].name")
        elif name in seen:
            yield duplicate(f"{at}.sysctls[{i}].name", name)
        seen.add(name)


def validate_container_security(container: ReadOnlyJSON, where: str) -> Iterator[FieldError]:
    """Yields all errors of a container's security context."""
    context, at = container.get("securityContext") or {}, f"{where}.securityContext"
    yield from _ids(context, at, ("runAsUser", "runAsGroup"))
    yield from _seccomp(context, at)
    if context.get("allowPrivilegeEscalation") is not False:
        return
    if context.get("privileged"):
        yield invalid(at, context, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or []):
        rule = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
        yield invalid(at, context, rule)


def _ids(context: ReadOnlyJSON, at: str, fields: tuple[str, ...]) -> Iterator[FieldError]:
    for field in fields:
        if context.get(field) is not None:
            yield from between(context[field], f"{at}.{field}", 0, _MAX_ID)


def _seccomp(context: ReadOnlyJSON, at: str) -> Iterator[FieldError]:
    profile = context.get("seccompProfile")
    if profile is None:
        return
    path, kind = f"{at}.seccompProfile", profile.get("type") or ""
    if not kind:
        yield required(f"{path}.type", "type is required when seccompProfile is set")
    elif kind not in _SECCOMP:
        yield unsupported(f"{path}.type", kind, _SECCOMP)
    if kind == "Localhost" and not profile.get("localhostProfile"):
        yield required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost ")
    elif kind != "Localhost" and profile.get("localhostProfile") is not None:
        rule = "can only be set when seccomp type is Localhost"
        yield invalid(f"{path}.localhostProfile", profile["localhostProfile"], rule)
