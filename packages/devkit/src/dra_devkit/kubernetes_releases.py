"""A Kubernetes release with its feature gates, and the behavior of its allocator and kubelet.

Every component that imitates a release reads it. Releases, gates, versions and fields come from the framework's table
(``resourceapi/fields.toml``). Source of the behavior: release notes, the pull requests that attributes name, and
kubernetes/kubernetes#140212, #140274, #140527 for the kubelet's bug fixes in 1.37.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.resourceapi.fields import on_since, table

_TABLE = table()
RELEASES = tuple(_TABLE.releases)
DEFAULT = "1.36"
VARIABLE = "DRA_KUBERNETES_VERSION"
"""The environment variable with the default release of a local cluster."""
GATES_VARIABLE = "DRA_FEATURE_GATES"
"""The environment variable with gates of local clusters that differ from the release's defaults. Explicit gates override it."""


class Stage(Enum):
    """The stage of a feature gate in a release."""

    ABSENT = ""
    ALPHA = "alpha"
    BETA_OFF = "beta, off"
    BETA = "beta"
    UNLOCKED = "stable, not locked"
    STABLE = "stable"

    @property
    def on(self) -> bool:
        """Whether the gate is on by default."""
        return self in {Stage.BETA, Stage.UNLOCKED, Stage.STABLE}


NEEDS: Mapping[str, tuple[str, ...]] = {name: row.needs for name, row in _TABLE.gates.items()}
"""The gates that a gate requires; without them it has no effect."""
NOT_IMPLEMENTED: Mapping[str, str] = {name: row.not_local for name, row in _TABLE.gates.items() if row.not_local}
"""Gates that the local cluster does not implement, and why. Enabling one is an error."""
_DIFFERENT_IN_RELEASE: Mapping[tuple[str, str], str] = {
    ("GenericWorkload", "1.35"): "it implements the PodGroups of 1.36; in 1.35 they are part of Workloads"
}
"""Gates that the local cluster implements, but differently from this release."""

_STABLE_VERSION = "v1"


def all_versions(*kinds: str) -> tuple[str, ...]:
    """Returns the versions of kinds in all releases, preferred first."""
    newest_first = (version for kind in kinds for served in reversed(_TABLE.kinds[kind].values()) for version in served)
    return tuple(dict.fromkeys(newest_first))


API_VERSIONS = all_versions("ResourceSlice", "DeviceTaintRule")  # of resource.k8s.io, preferred first
POD_GROUP_VERSIONS = all_versions("PodGroup")  # of scheduling.k8s.io, preferred first


@dataclass(frozen=True)
class AllocatorBehavior:
    """The behavior of a release's allocator that a claim can observe. Each attribute names its pull request.

    Attributes:
        compares_all_devices: ``distinctAttribute`` compares a device with all chosen devices. If false, it compares with
            the latest device of each request (kubernetes#140600).
        all_needs_exhausted: allocation mode ``All`` fails if a shared device has too little capacity left. If false, it
            skips the device (#140769).
        keeps_shares: a device that still has shares is not allocated as a whole after its slice made it unshareable
            (#140798).
        knows_empty_shares: a further share of a device consumes no counters also if the shares in use consumed no
            capacity (#140437).
        counts_shares: devices that are in use as shares consume their counters (#139040).
        shortens_config: configuration that applies to all requests has no list of requests in the result (#139731,
            #139814).
    """

    compares_all_devices: bool
    all_needs_exhausted: bool
    keeps_shares: bool
    knows_empty_shares: bool
    counts_shares: bool
    shortens_config: bool


_ALLOCATOR_SINCE = {
    "compares_all_devices": "1.37",
    "all_needs_exhausted": "1.37",
    "keeps_shares": "1.37",
    "knows_empty_shares": "1.37",
    "counts_shares": "1.36",
    "shortens_config": "1.37",
}


def allocator_behavior(release: str) -> AllocatorBehavior:
    """Returns the behavior of a release's allocator. An unknown release behaves as the nearest one that is known."""
    known = nearest(release)
    return AllocatorBehavior(
        **{rule: RELEASES.index(known) >= RELEASES.index(since) for rule, since in _ALLOCATOR_SINCE.items()}
    )


def nearest(version: str) -> str:
    """Returns the known release that is nearest to a version such as ``v1.36.2``; the default if it is no version."""
    found = re.match(r"v?1\.(\d+)", version)
    if not found:
        return DEFAULT
    return min(RELEASES, key=lambda r: abs(int(r.partition(".")[2]) - int(found[1])))


@dataclass(frozen=True)
class KubeletBehavior:
    """The behavior of a release's kubelet that a plugin can observe.

    Attributes:
        health: the supported versions of the health service, newest first; empty if the gate is off.
        health_unadvertised: the kubelet also opens a health stream to a plugin that does not advertise the service. After
            any response it retries with a pause. If false, it does not retry after ``Unimplemented``.
        unprepares_in_use: when a pod that was never allowed to use a claim is deleted, the kubelet unprepares the
            claim although another pod uses it.
        joins_unprepare: a pod that arrives while its claim is being unprepared starts with the claim's old devices.
        prepares_again: after a failure for one claim of a pod, a retry covers all its claims, and the new response is
            appended to the old one. The runtime then receives each CDI device twice.
        shares_groups: a pod may use claims that were created or reserved for its PodGroup.
    """

    health: tuple[str, ...]
    health_unadvertised: bool
    unprepares_in_use: bool
    joins_unprepare: bool
    prepares_again: bool
    shares_groups: bool


@dataclass(frozen=True)
class Features:
    """One release with its gates, as a cluster runs it. Created with :meth:`of`."""

    release: str
    gates: frozenset[str]  # the enabled gates
    served: frozenset[str]  # the served versions of resource.k8s.io

    @classmethod
    def of(
        cls,
        release: str = "",
        gates: Mapping[str, bool] | None = None,
        runtime_config: Mapping[str, bool] | None = None,
        *,
        environment: bool = True,
        implemented: bool = True,
    ) -> Features:
        """Returns a release with changed gates.

        Args:
            release: e.g. ``1.36``; by default the environment variable ``DRA_KUBERNETES_VERSION``, else 1.36.
            gates: whether a gate is on, by name, as in Kubernetes' ``--feature-gates``. They override
                ``DRA_FEATURE_GATES``.
            runtime_config: whether a version of resource.k8s.io, or ``api/all``, is served, as in the API server's
                ``--runtime-config``. A version of scheduling.k8s.io may only be on, and has no effect: the gate decides.
            environment: whether the environment variables with the default release and its gates are used.
            implemented: whether a gate that the local cluster does not implement is an error. Validation needs no implementation.

        Raises :class:`SettingsError` with all errors.
        """
        release = release or (environment and os.environ.get(VARIABLE, "")) or DEFAULT
        if release not in RELEASES:
            raise SettingsError(f"Kubernetes {release!r} is not supported: use one of {', '.join(RELEASES)}")
        gates = parse_gates(os.environ.get(GATES_VARIABLE, "") if environment else "") | dict(gates or {})
        faults: list[str] = []
        on = {name for name in _TABLE.gates if stage(name, release).on}
        for name, wanted in gates.items():
            if fault := _gate_fault(name, release, wanted=wanted, implemented=implemented):
                faults.append(fault)
            (on.add if wanted else on.discard)(name)
        for name in [n for n, wanted in gates.items() if wanted]:
            for needed in NEEDS.get(name, ()):
                if needed not in on:
                    faults.append(f"feature gate {name} needs {needed}, which is off: switch both on")
        on = {n for n in on if on.issuperset(NEEDS.get(n, ()))}
        served = _served(runtime_config or {}, faults)
        if faults:
            raise SettingsError(*faults)
        return cls(release, frozenset(on), served)

    def has(self, gate: str) -> bool:
        """Returns whether a gate is on.

        Raises ``KeyError`` for an unknown gate, because a misspelled one would always be off.
        """
        if gate not in _TABLE.gates:
            raise KeyError(gate)
        return gate in self.gates

    def is_at_least(self, release: str) -> bool:
        return RELEASES.index(self.release) >= RELEASES.index(release)

    @property
    def version(self) -> str:
        """The version with patch level, for ``/version`` and for nodes."""
        return _TABLE.releases[self.release]

    def metrics(self) -> str:
        """Returns the gates in the format of an API server's metrics, ``kubernetes_feature_enabled``."""
        words = {Stage.ALPHA: "ALPHA", Stage.BETA_OFF: "BETA", Stage.BETA: "BETA", Stage.UNLOCKED: "", Stage.STABLE: ""}
        lines = ["# TYPE kubernetes_feature_enabled gauge"]
        for name in sorted(_TABLE.gates):
            if (found := stage(name, self.release)) in words:
                lines.append(
                    f'kubernetes_feature_enabled{{name="{name}",stage="{words[found]}"}} {int(name in self.gates)}'
                )
        return "\n".join(lines) + "\n"

    @property
    def taint_rules(self) -> tuple[str, ...]:
        """The API versions of DeviceTaintRule in this release."""
        return versions_of("DeviceTaintRule", self.release)

    @property
    def taint_rules_gate(self) -> str:
        """The feature gate of DeviceTaintRules. Before 1.35, which added a gate of their own, it is the gate of taints."""
        has_own = stage("DRADeviceTaintRules", self.release) is not Stage.ABSENT
        return "DRADeviceTaintRules" if has_own else "DRADeviceTaints"

    @property
    def enforced_taint_rules(self) -> str:
        """The API version of DeviceTaintRule that the cluster reads; "" if the rules have no effect."""
        if not self.has(self.taint_rules_gate):
            return ""
        return next((v for v in self.taint_rules if v in self.served), "")

    @property
    def pool_status_requests(self) -> tuple[str, ...]:
        """The API versions of ResourcePoolStatusRequest; none if its gate is off."""
        has_gate = self.has("DRAResourcePoolStatus")
        return versions_of("ResourcePoolStatusRequest", self.release) if has_gate else ()

    @property
    def pod_groups(self) -> str:
        """The version of scheduling.k8s.io that has PodGroups; "" without PodGroups."""
        return next(iter(versions_of("PodGroup", self.release)), "") if self.has("GenericWorkload") else ""

    @property
    def slice_fields(self) -> tuple[str, ...]:
        """The fields of ResourceSlices, other than the name, that field selectors support."""
        return ("spec.driver", "spec.nodeName", *(("spec.pool.name",) if self.is_at_least("1.37") else ()))

    @property
    def allocator(self) -> AllocatorBehavior:
        return allocator_behavior(self.release)

    @property
    def kubelet(self) -> KubeletBehavior:
        fixed = self.is_at_least("1.37")
        known = (("v1.DRAResourceHealth",) if fixed else ()) + ("v1alpha1.DRAResourceHealth",)
        on = self.has("ResourceHealthStatus")
        shares = self.has("DRAWorkloadResourceClaims")
        return KubeletBehavior(known if on else (), on and not fixed, not fixed, not fixed, not fixed, shares)


def gates() -> tuple[str, ...]:
    """Returns the names of all known gates."""
    return tuple(_TABLE.gates)


def stage(gate: str, release: str) -> Stage:
    """Returns the stage of a gate in a release. Raises ``KeyError`` for an unknown gate."""
    stages = _TABLE.gates[gate].stages
    return Stage(stages.get(_latest(stages, release), ""))


def versions_of(kind: str, release: str) -> tuple[str, ...]:
    """Returns the versions of a kind in a release, preferred first."""
    versions = _TABLE.kinds[kind]
    return tuple(versions.get(_latest(versions, release), ()))


def _latest(values: Mapping[str, object], release: str) -> str:
    """Returns the newest release in ``values`` that is not newer than ``release``; empty if all are newer."""
    return next((r for r in reversed(RELEASES[: RELEASES.index(release) + 1]) if r in values), "")


def parse_gates(text: str) -> dict[str, bool]:
    """Parses ``NAME=true,NAME=false`` as in ``--feature-gates``. Raises :class:`SettingsError`."""
    return _switches(text, "feature gates", "DRADeviceTaints=false")


def parse_runtime_config(text: str) -> dict[str, bool]:
    """Parses ``resource.k8s.io/v1beta1=true,...`` as in ``--runtime-config``. A name without a value is true.

    Raises :class:`SettingsError`.
    """
    return _switches(text, "runtime config", "resource.k8s.io/v1beta1=true", bare=True)


def _switches(text: str, what: str, example: str, *, bare: bool = False) -> dict[str, bool]:
    out: dict[str, bool] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (p.strip() for p in part.partition("="))
        if not equals and bare:
            value = "true"
        if value.lower() not in {"true", "false"}:
            raise SettingsError(f"{what} {part!r} is not NAME=true or NAME=false, such as {example}")
        out[name] = value.lower() == "true"
    return out


def gate_phrase(gate: str, release: str) -> str:
    """Returns the name of a gate with its default in a release, or with the release that added it."""
    found = stage(gate, release)
    if found is Stage.ABSENT:
        return f"{gate}, which Kubernetes {_added(gate)} adds"
    later = "" if found.on or not (since := on_since(gate)) else f" and on since {since}"
    return f"{gate}, which is {'on' if found.on else 'off'} by default in {release}{later}"


def _added(gate: str) -> str:
    return next(iter(_TABLE.gates[gate].stages))


def _gate_fault(name: str, release: str, *, wanted: bool, implemented: bool) -> str:
    if name not in _TABLE.gates:
        import difflib  # imported here because a plugin, which also loads this module, never needs it

        near = difflib.get_close_matches(name, _TABLE.gates, 1, 0.6)
        return f"feature gate {name!r} is not known: " + (f"did you mean {near[0]}?" if near else _known())
    found = stage(name, release)
    if found is Stage.ABSENT:
        return f"Kubernetes {release} has no feature gate {name}: it was added in {_added(name)}" if wanted else ""
    if found is Stage.STABLE and not wanted:
        return f"feature gate {name} cannot be switched off in Kubernetes {release}: it is stable there"
    if wanted and implemented and (why := NOT_IMPLEMENTED.get(name) or _DIFFERENT_IN_RELEASE.get((name, release))):
        return f"feature gate {name} cannot be switched on in the local cluster: {why}"
    return ""


def _known() -> str:
    return f"the known gates are {', '.join(_TABLE.gates)}"


def _served(wanted: Mapping[str, bool], faults: list[str]) -> frozenset[str]:
    """Returns the served versions.

    Since 1.24 only stable versions are served by default (KEP-3136). Appends errors to ``faults``.
    """
    served = {_STABLE_VERSION}
    for name, on in wanted.items():
        if on and name in {f"scheduling.k8s.io/{v}" for v in POD_GROUP_VERSIONS}:
            continue  # a real server needs it for PodGroups; here the gate is enough
        match = re.fullmatch(r"resource\.k8s\.io/(\w+)", name)
        versions: Iterable[str] = API_VERSIONS if name == "api/all" else [match[1]] if match else []
        if not versions or not set(API_VERSIONS).issuperset(versions):
            allowed = ", ".join(f"resource.k8s.io/{v}" for v in API_VERSIONS)
            groups = " or ".join(f"scheduling.k8s.io/{v}=true" for v in POD_GROUP_VERSIONS)
            faults.append(f"runtime config {name!r} is not supported: use api/all, {allowed}, {groups}")
        for version in versions:
            (served.add if on else served.discard)(version)
    return frozenset(served)
