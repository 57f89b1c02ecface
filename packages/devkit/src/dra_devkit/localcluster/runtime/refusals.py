"""Refuses features of pods that would give a real container access to this machine, or that the runtime does not implement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .base_spec import CAPABILITIES
from .interface import ContainerConfig, ContainerError, Sandbox

_HARMLESS_SECCOMP = {"RuntimeDefault", "Unconfined"}
_KNOWN = {
    "allowPrivilegeEscalation",
    "appArmorProfile",
    "capabilities",
    "fsGroup",
    "fsGroupChangePolicy",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
    "windowsOptions",
}


@dataclass(frozen=True)
class Allowed:
    """The accepted part of a container's security context."""

    capabilities: tuple[str, ...]
    no_new_privileges: bool
    read_only_root: bool
    groups: tuple[int, ...]


def allowed(sandbox: Sandbox, container: ContainerConfig, uid: int) -> Allowed:
    """Checks the security context, mounts and host settings of a container.

    Raises:
        ContainerError: at least one feature is refused. The text lists all refused features.
    """
    security = container.security
    why: list[str] = []
    if sandbox.host_network:
        why.append("hostNetwork: containers here have their own network with only a loopback device")
    why += [
        f"hostPath {m.host}: containers here cannot see the files of this machine"
        for m in container.mounts
        if m.from_host
    ]
    if security.get("privileged"):
        why.append("privileged: containers here get only the devices of their claims")
    if security.get("procMount") not in {None, "Default"}:
        why.append(f"procMount {security['procMount']}")
    kept = _capabilities(security.get("capabilities") or {}, why)
    for name, harmless in (("seccompProfile", _HARMLESS_SECCOMP), ("appArmorProfile", _HARMLESS_SECCOMP)):
        if (kind := (security.get(name) or {}).get("type")) not in {None, *harmless}:
            why.append(f"{name} {kind}: profiles are not loaded here")
    why += [
        f"{name}: not implemented here"
        for name in ("seLinuxOptions", "sysctls", "windowsOptions")
        if security.get(name)
    ]
    why += [f"{name}: not known here" for name in sorted(set(security) - _KNOWN)]
    if why:
        raise ContainerError(f"dra dev --containers refuses {'; '.join(why)}", "CreateContainerConfigError")
    if security.get("runAsNonRoot") and uid == 0:
        raise ContainerError(
            "container has runAsNonRoot and image will run as root "
            f'(pod: "{sandbox.name}_{sandbox.namespace}({sandbox.uid})", container: {container.name})',
            "CreateContainerConfigError",
        )
    groups = [*(security.get("supplementalGroups") or ()), *([security["fsGroup"]] if security.get("fsGroup") else ())]
    return Allowed(
        kept,
        no_new_privileges=security.get("allowPrivilegeEscalation") is False,
        read_only_root=bool(security.get("readOnlyRootFilesystem")),
        groups=tuple(dict.fromkeys(groups)),
    )


def _capabilities(spec: Mapping[str, Any], why: list[str]) -> tuple[str, ...]:
    dropped = {_name(c) for c in spec.get("drop") or ()}
    added = {_name(c) for c in spec.get("add") or ()}
    if beyond := sorted(added - set(CAPABILITIES)):
        why.append(f"capabilities {', '.join(beyond)}: a container here gets the default capabilities only")
    kept = [] if "CAP_ALL" in dropped else [c for c in CAPABILITIES if c not in dropped]
    return tuple(dict.fromkeys([*kept, *(c for c in CAPABILITIES if c in added)]))


def _name(capability: object) -> str:
    text = str(capability).upper()
    return text if text.startswith("CAP_") else f"CAP_{text}"
