"""Reads the profile of a driver from a TOML file. The profile contains facts about the driver that the suite cannot find out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.errors import SettingsError

from .kubelet_client import CALL_TIMEOUT

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Reason = Annotated[str, msgspec.Meta(min_length=1)]


Hook = Literal["reboot", "is_configured", "make_unhealthy", "make_healthy"]


class Duration(float):
    """Seconds. In a file, a duration is a text such as ``10s`` or ``250ms``."""


class ConformanceLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes and budgets.

    Attributes:
        idle: the time for which the suite observes an idle driver.
        idle_requests: maximum number of requests per minute of an idle driver, without watches that end.
        kills: number of kills in RST-002.
        cycles: number of cycles of prepare and unprepare in PRF-002.
        prepare_p99: maximum duration of a call for one claim, 99th percentile; 0 for no limit.
        prepare_many_p99: maximum duration of a call for up to 32 claims, 99th percentile; 0 for no limit.
        memory_growth: maximum growth of the resident memory in PRF-002, in percent.
    """

    idle: Duration = Duration(60.0)
    idle_requests: _Amount = 30.0
    kills: _Number = 50
    cycles: _Number = 1000
    prepare_p99: Duration = Duration(0.0)
    prepare_many_p99: Duration = Duration(0.0)
    memory_growth: _Amount = 5.0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often and how long the checks call, watch and wait, in numbers and seconds. Tests of the suite use shorter times.

    The defaults are those that the texts of the checks name.

    Attributes:
        calls: calls for one claim whose time PRF-001 measures.
        warm_up: cycles of PRF-002 before the first measurement.
        pings: seconds of keep-alives, ten in each second: more than a kubelet sends in an idle hour.
        rejection: seconds until the driver has logged a rejected registration.
        slow: seconds by which the suite delays the read of a claim.
        returned: maximum seconds until deleted slices are published again. Drivers in Go wait 30 s after a change of a slice
            (DefaultSyncDelay in package resourceslice), and up to 60 s more after they created the slice (DefaultMutationCacheTTL).
        watched: seconds in which a driver without changes writes less often than ``writes``.
        writes: maximum number of these writes.
        quiet: seconds to wait until a driver without changes is quiet.
        report: maximum seconds until a driver has reported dropped fields.
        first_health: seconds until the first message of health.
        retry: seconds after which no retry of a call begins; each has the time of a kubelet's call.
        call: seconds for a call that is retried.
    """

    calls: int = 100
    warm_up: int = 50
    pings: float = 5.0
    rejection: float = 10.0
    slow: float = 3.0
    returned: float = 120.0
    watched: float = 5.0
    writes: int = 10
    quiet: float = 10.0
    report: float = 10.0
    first_health: float = 10.0
    retry: float = 15.0
    call: float = CALL_TIMEOUT


DEFAULT_PACE = Pace()


class ConformanceProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about a driver, from its author.

    Attributes:
        name: the driver's name; empty to use the name from its registration.
        ready_timeout: maximum seconds from the start until the driver is registered and has published.
        api_versions: versions of resource.k8s.io. The driver must work with an API server that serves only one of them.
        minimum: minimum number of published devices.
        exclusive: whether only one claim at a time can use a device that cannot be shared.
        default: opaque parameters for every claim of the suite; None for none.
        valid, invalid: opaque parameters, by file name; empty if the driver has none, None if the profile does not state them.
        errors: a text that the error must contain, such as the path of the wrong field, by the file name of invalid parameters.
        hooks: shell commands, by name.
        skip, xfail: reasons, by the id of a check.
        pace: how often and how long the checks call, watch and wait. The file has no key for it.
    """

    name: str = ""
    ready_timeout: Duration = Duration(30.0)
    api_versions: Sequence[Literal["v1", "v1beta2", "v1beta1"]] = ("v1",)
    minimum: _Number = 1
    exclusive: bool = True
    default: dict[str, Any] | None = None
    valid: dict[str, dict[str, Any]] | None = None
    invalid: dict[str, dict[str, Any]] | None = None
    errors: dict[str, str] = {}
    hooks: dict[Hook, str] = {}
    limits: ConformanceLimits = ConformanceLimits()
    skip: dict[str, _Reason] = {}
    xfail: dict[str, _Reason] = {}
    pace: Pace = DEFAULT_PACE


_SECTIONS = ("driver", "devices", "config")
"""The sections of the file whose keys are fields of the profile."""


def read_profile(path: Path, checks: Sequence[str]) -> ConformanceProfile:
    """Reads a profile.

    Args:
        checks: the ids of all checks.

    Raises :class:`SettingsError`.
    """
    try:
        found = msgspec.toml.decode(path.read_bytes())
        values = {key: value for key, value in found.items() if key not in _SECTIONS}
        for section in _SECTIONS:
            values |= found.get(section, {})
        if "pace" in values:  # only tests of the suite set it
            raise msgspec.ValidationError("Object contains unknown field `pace`")
        for key in {"valid", "invalid"} & values.keys():
            values[key] = {name: _parameters(path.parent / name) for name in values[key]}
        if "default" in values:
            values["default"] = _parameters(path.parent / values["default"])
        profile = msgspec.convert(values, ConformanceProfile, dec_hook=_decode)
    except OSError as e:
        what = "the profile" if e.filename == str(path) else f"{path}: the parameters"
        raise SettingsError(f"{what} {e.filename} cannot be read: {e.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as e:
        raise SettingsError(f"the profile {path}: {e}") from None
    if faults := [f"{path}: {fault}" for fault in _faults(profile, checks)]:
        raise SettingsError(*faults)
    return profile


def _decode(kind: type, value: object) -> object:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a duration is a text such as "10s" or "250ms"')
    return kind(float(match[1]) * _UNITS[match[2]])


def _faults(found: ConformanceProfile, checks: Sequence[str]) -> Iterator[str]:
    """Yields names that stand for nothing, and entries that would have no effect."""
    for section, reasons in (("skip", found.skip), ("xfail", found.xfail)):
        for id in sorted(set(reasons) - set(checks)):
            yield f"[{section}] {id}: there is no such check{did_you_mean(id, checks)}"
    for name in set(found.errors) - set(invalid := found.invalid or ()):
        yield f"[config] errors: {name} is not one of the files of [config] invalid{did_you_mean(name, invalid)}"
    for id in sorted(set(found.skip) & set(found.xfail)):
        yield f"{id} is in [skip] and in [xfail]: delete one of the entries"


def _parameters(path: Path) -> Any:
    """Reads opaque parameters from a file with JSON or YAML."""
    try:
        return msgspec.yaml.decode(path.read_bytes())
    except msgspec.DecodeError as e:
        raise msgspec.DecodeError(f"the parameters {path} are not valid JSON or YAML: {e}") from None
