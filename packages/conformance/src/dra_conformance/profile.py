"""Reads the profile of a driver from a TOML file. The profile contains facts about the driver that the suite cannot find out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.errors import SettingsError

from .pace import DEFAULT, Pace

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Reason = Annotated[str, msgspec.Meta(min_length=1)]


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


@dataclass(frozen=True)
class ConformanceProfile:
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
    ready_timeout: float = 30.0
    api_versions: Sequence[str] = ("v1",)
    minimum: int = 1
    exclusive: bool = True
    default: Mapping[str, Any] | None = None
    valid: Mapping[str, Any] | None = None
    invalid: Mapping[str, Any] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[str, str] = field(default_factory=dict)
    limits: ConformanceLimits = field(default_factory=ConformanceLimits)
    skip: Mapping[str, str] = field(default_factory=dict)
    xfail: Mapping[str, str] = field(default_factory=dict)
    pace: Pace = DEFAULT


class _Section(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A section of the file. It has no key that a profile does not know."""


class _Driver(_Section):
    name: str = ""
    ready_timeout: Duration = Duration(30.0)
    api_versions: Sequence[Literal["v1", "v1beta2", "v1beta1"]] = ("v1",)


class _Devices(_Section):
    minimum: _Number = 1
    exclusive: bool = True


class _Config(_Section):
    default: str = ""
    valid: list[str] | None = None
    invalid: list[str] | None = None
    errors: dict[str, str] = {}


class _File(_Section):
    driver: _Driver = msgspec.field(default_factory=_Driver)
    devices: _Devices = msgspec.field(default_factory=_Devices)
    config: _Config = msgspec.field(default_factory=_Config)
    hooks: dict[Literal["reboot", "is_configured", "make_unhealthy", "make_healthy"], str] = {}
    limits: ConformanceLimits = ConformanceLimits()
    skip: dict[str, _Reason] = {}
    xfail: dict[str, _Reason] = {}


def read_profile(path: Path, checks: Sequence[str]) -> ConformanceProfile:
    """Reads a profile.

    Args:
        checks: the ids of all checks.

    Raises :class:`SettingsError`.
    """
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=_File, dec_hook=_decode)
    except OSError as e:
        raise SettingsError(f"the profile {path} cannot be read: {e.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise SettingsError(f"the profile {path}: {e}") from None
    if faults := [f"{path}: {fault}" for fault in _faults(found, checks)]:
        raise SettingsError(*faults)

    def parameters(names: Sequence[str] | None) -> Mapping[str, Any] | None:
        return None if names is None else {name: _parameters(path, name) for name in names}

    driver, devices, config = found.driver, found.devices, found.config
    return ConformanceProfile(
        driver.name,
        driver.ready_timeout,
        driver.api_versions,
        devices.minimum,
        devices.exclusive,
        default=_parameters(path, config.default) if config.default else None,
        valid=parameters(config.valid),
        invalid=parameters(config.invalid),
        errors=config.errors,
        hooks={str(name): hook for name, hook in found.hooks.items()},
        limits=found.limits,
        skip=found.skip,
        xfail=found.xfail,
    )


def _decode(kind: type, value: object) -> object:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a duration is a text such as "10s" or "250ms"')
    return kind(float(match[1]) * _UNITS[match[2]])


def _faults(found: _File, checks: Sequence[str]) -> Iterator[str]:
    """Yields names that stand for nothing, and entries that would have no effect."""
    for section, reasons in (("skip", found.skip), ("xfail", found.xfail)):
        for id in sorted(set(reasons) - set(checks)):
            yield f"[{section}] {id}: there is no such check{did_you_mean(id, checks)}"
    for name in set(found.config.errors) - set(invalid := found.config.invalid or []):
        yield f"[config] errors: {name} is not one of the files of [config] invalid{did_you_mean(name, invalid)}"
    for id in sorted(set(found.skip) & set(found.xfail)):
        yield f"{id} is in [skip] and in [xfail]: delete one of the entries"


def _parameters(profile: Path, name: str) -> Any:
    """Reads opaque parameters from a file with JSON or YAML, beside the profile. Raises :class:`SettingsError`."""
    import yaml

    path = profile.parent / name
    try:
        value = yaml.safe_load(path.read_text())
    except OSError as e:
        raise SettingsError(f"{profile}: the parameters {path} cannot be read: {e.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise SettingsError(f"{profile}: the parameters {path} are not valid JSON or YAML: {e}") from None
    if not isinstance(value, dict):
        raise SettingsError(f"{profile}: the parameters {path} must be an object")
    return value
