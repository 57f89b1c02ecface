"""A resource of the API in one version, its paths, and constants for the resources that several packages use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from ..resourceapi.conversion import GROUP

_UNQUOTED = re.compile("[a-z0-9.-]+")  # the characters of valid names


@dataclass(frozen=True)
class Resource:
    """A kind of object in one version, e.g. ``Resource("resource.k8s.io", "v1", "resourceclaims", namespaced=True)``."""

    group: str
    version: str
    plural: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        out = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            out += f"/namespaces/{_quoted(namespace)}"
        out += f"/{self.plural}"
        if name:
            out += f"/{_quoted(name)}"
        return out + (f"/{sub}" if sub else "")


def _quoted(name: str) -> str:
    return name if _UNQUOTED.fullmatch(name) else quote(name, safe="")


PODS = Resource("", "v1", "pods", namespaced=True)
NODES = Resource("", "v1", "nodes")
NAMESPACES = Resource("", "v1", "namespaces")
EVENTS = Resource("", "v1", "events", namespaced=True)
CONFIG_MAPS = Resource("", "v1", "configmaps", namespaced=True)
SECRETS = Resource("", "v1", "secrets", namespaced=True)
QUOTAS = Resource("", "v1", "resourcequotas", namespaced=True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", namespaced=True)

# These have the version resource.k8s.io/v1. KubeClient.dra returns them in the version that a server has.
CLAIMS = Resource(GROUP, "v1", "resourceclaims", namespaced=True)
TEMPLATES = Resource(GROUP, "v1", "resourceclaimtemplates", namespaced=True)
CLASSES = Resource(GROUP, "v1", "deviceclasses")
SLICES = Resource(GROUP, "v1", "resourceslices")
# A server has this kind in other versions than the kinds above, or not at all.
TAINT_RULES = Resource(GROUP, "v1", "devicetaintrules")
# A server has these alpha kinds in one of several versions, or not at all.
POOL_STATUS_REQUESTS = Resource(GROUP, "v1alpha3", "resourcepoolstatusrequests")
POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", namespaced=True)
