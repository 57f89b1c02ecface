"""Finds pod features that the local cluster does not support.

A pod with such a feature stays Pending with a message. Otherwise, a test could pass although the feature has no effect.
"""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from .containers import roles

_REFUSED = ("volumeDevices",)
_PROFILES = ("seccompProfile", "appArmorProfile")
_DOMAIN = "cluster.local"
_MAX_HOST_NAME = 64  # characters of a host name


def refusals(pod: ReadOnlyJSON) -> list[str]:
    """Returns one message for each unsupported feature of the pod. The pod stays Pending if there is a message."""
    found = [f"{field} of container {c['name']}" for c, _ in roles(pod) for field in _REFUSED if c.get(field)]
    if name := pod["spec"].get("runtimeClassName"):
        found.append(f"runtimeClassName {name}")
    contexts = [("pod", pod["spec"]), *((f"container {c['name']}", c) for c, _ in roles(pod))]
    for of, given in contexts:
        context = given.get("securityContext") or {}
        found += [
            f"{field} {context[field].get('localhostProfile')} of {of}: profiles of a node are not known here"
            for field in _PROFILES
            if (context.get(field) or {}).get("type") == "Localhost"
        ]
    out = [f"not supported by the local cluster: {what}" for what in found]
    return out + [why for why in (_long_name(pod),) if why]


def _long_name(pod: ReadOnlyJSON) -> str:
    """Returns an error if the pod's fully qualified host name is longer than the kernel allows; empty otherwise."""
    spec, meta = pod["spec"], pod["metadata"]
    if not spec.get("setHostnameAsFQDN") or not spec.get("subdomain"):
        return ""
    host = str(spec.get("hostname") or meta["name"])[:63].rstrip("-.")
    name = f"{host}.{spec['subdomain']}.{meta['namespace']}.svc.{_DOMAIN}"
    if len(name) <= _MAX_HOST_NAME:
        return ""
    return (
        f"failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long "
        f"({_MAX_HOST_NAME} characters is the max, {len(name)} characters requested)"
    )
