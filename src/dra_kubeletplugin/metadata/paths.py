"""The paths of metadata files in a container. Source: KEP-5304, as implemented in Kubernetes 1.36 and 1.37."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ..resourceapi.validation.names import label, subdomain

CONTAINER_ROOT = Path("/var/run/kubernetes.io/dra-device-attributes")
CLAIMS = "resourceclaims"
TEMPLATES = "resourceclaimtemplates"
SUFFIX = "-metadata.json"


def in_container(claim: str, pod_claim: str, request: str, driver: str) -> PurePosixPath:
    """Returns the path of one driver's file for one request.

    Args:
        claim: the name of the ResourceClaim.
        pod_claim: the claim's name in the pod's ``spec.resourceClaims``, if the claim was created from a template; else empty.
        request: the name in the allocation: ``request`` or ``request/alternative``. The path contains only ``request``.

    Raises ``ValueError`` if the name of the claim or request is invalid, because such a name could lead out of the folder.
    """
    kind, name = (TEMPLATES, pod_claim) if pod_claim else (CLAIMS, claim)
    base = base_request(request)
    if subdomain(claim):
        raise ValueError(f"the claim's name {claim!r} is not a DNS subdomain")
    if pod_claim and label(pod_claim):
        raise ValueError(f"the pod's name for the claim, {pod_claim!r}, is not a DNS label")
    if label(base):
        raise ValueError(f"the name of request {request!r} is not a DNS label")
    return PurePosixPath(CONTAINER_ROOT.as_posix(), kind, name, base, driver + SUFFIX)


def base_request(request: str) -> str:
    """Returns the part ``request`` of ``request/alternative``."""
    return request.partition("/")[0]
