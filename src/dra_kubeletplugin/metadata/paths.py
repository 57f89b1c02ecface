"""Where metadata files lie in a container. Source: KEP-5304, as built in Kubernetes 1.36 and 1.37."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

CONTAINER_ROOT = Path("/var/run/kubernetes.io/dra-device-attributes")
CLAIMS = "resourceclaims"
TEMPLATES = "resourceclaimtemplates"
SUFFIX = "-metadata.json"


def in_container(claim: str, pod_claim: str, request: str, driver: str) -> PurePosixPath:
    """The file of one driver for one request.

    Args:
        claim: the name of the ResourceClaim.
        pod_claim: the name in the pod's ``spec.resourceClaims`` of a claim that was made from a template; else empty.
        request: as in the allocation; of ``request/alternative`` the first part counts.
    """
    kind, name = (TEMPLATES, pod_claim) if pod_claim else (CLAIMS, claim)
    return PurePosixPath(CONTAINER_ROOT.as_posix(), kind, name, base_request(request), driver + SUFFIX)


def base_request(request: str) -> str:
    """``request`` of ``request/alternative``."""
    return request.partition("/")[0]
