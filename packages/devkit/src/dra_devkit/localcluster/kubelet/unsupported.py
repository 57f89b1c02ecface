"""Finds pod features that the local cluster does not support.

A pod with such a feature stays Pending with a message. Otherwise, a test could pass although the feature has no effect.
"""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from .containers import roles

_REFUSED = ("volumeDevices",)
_PROFILES = ("seccompProfile", "appArmorProfile")


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
    return [f"not supported by the local cluster: {what}" for what in found]
