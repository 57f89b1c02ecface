"""SKW: kubelets and API servers of other releases."""

from __future__ import annotations

from ..catalogue import CheckNotApplicable, expect, must
from ..driver_command import DriverNotReady
from ..harness import Harness
from .slices import require_published

_API_VERSIONS = ("v1", "v1beta2", "v1beta1")


async def prepare_with_version(h: Harness, version: str, kubelets: str) -> None:
    if version not in h.plugin.info.versions:
        raise CheckNotApplicable(f"the driver does not offer {version}: it needs {kubelets}")
    claim = await h.claim()
    for call, name in ((h.plugin.prepare, "NodePrepareResources"), (h.plugin.unprepare, "NodeUnprepareResources")):
        error = (await call(claim, version=version)).of(claim).error
        expect(not error, f"{version}: {name} succeeds", error)


@must(
    "SKW-001",
    "works with a kubelet that uses v1beta1 only, if it offers v1beta1",
    consequence="no pod with a claim starts on nodes with an older kubelet",
    source="kubelet 1.32 and 1.33: v1beta1.DRAPlugin only",
)
async def old_kubelet(h: Harness) -> None:
    """Prepares and unprepares a claim with calls of v1beta1."""
    await prepare_with_version(h, "v1beta1.DRAPlugin", "kubelets from 1.34 on")


@must(
    "SKW-002",
    "works with a kubelet that uses v1 only, if it offers v1",
    consequence="no pod with a claim starts on nodes with a newer kubelet",
    source="kubelet from 1.34 on: v1.DRAPlugin first",
)
async def new_kubelet(h: Harness) -> None:
    """Prepares and unprepares a claim with calls of v1."""
    await prepare_with_version(h, "v1.DRAPlugin", "kubelets that still call v1beta1")


@must(
    "SKW-003",
    "publishes and prepares with API servers of each version of resource.k8s.io that the profile names",
    consequence="the driver does not work on a supported cluster",
    source="Kubernetes: v1 from 1.34 on, v1beta2 in 1.33, v1beta1 in 1.32; [driver] api_versions in the profile",
    limit=240,
)
async def api_versions(h: Harness) -> None:
    """For each version: starts the driver on an API server with this version, and prepares and unprepares a claim."""
    await require_published(h)
    for version in _API_VERSIONS:
        if version not in h.profile.api_versions:
            h.facts["figures"].append(f"{version} alone was not tested: add it to [driver] api_versions")
            continue
        await h.kill()
        h.api.remove_slices(h.name)
        h.api.injected_faults.serve([version])
        try:
            await h.start(h.driver.uid)
            found = h.published()
            expect(found, f"complete pools on an API server with {version} only", f"{len(h.slices)} slices")
            await h.cycles()
        except DriverNotReady as e:
            expect(False, f"the driver starts with an API server with {version} only", e)
        finally:
            h.api.clear_faults()
            await h.kill()  # because a running driver would continue with the version that it found at its start
