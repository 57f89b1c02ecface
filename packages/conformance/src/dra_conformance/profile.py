"""Reads the profile of a driver from a TOML file. The profile contains facts about the driver that the suite cannot find out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.errors import SettingsError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_DURATIONS = frozenset({"ready_timeout", "idle", "prepare_p99", "prepare_many_p99"})
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_API_VERSIONS = ("v1", "v1beta2", "v1beta1")


@dataclass(frozen=True)
class ConformanceLimits:
    """Sizes and budgets. Durations are in seconds.

    Attributes:
        idle: the time for which the suite observes an idle driver.
        idle_requests: maximum number of requests per minute of an idle driver, without watches that end.
        kills: number of kills in RST-002.
        cycles: number of cycles of prepare and unprepare in PRF-002.
        prepare_p99: maximum duration of a call for one claim, 99th percentile; 0 for no limit.
        prepare_many_p99: maximum duration of a call for up to 32 claims, 99th percentile; 0 for no limit.
        memory_growth: maximum growth of the resident memory in PRF-002, in percent.
    """

    idle: float = 60.0
    idle_requests: float = 30.0
    kills: int = 50
    cycles: int = 1000
    prepare_p99: float = 0.0
    prepare_many_p99: float = 0.0
    memory_growth: float = 5.0


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


_SECTIONS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "driver": {"name": str, "ready_timeout": str, "api_versions": list},
    "devices": {"minimum": int, "exclusive": bool},
    "config": {"default": str, "valid": list, "invalid": list, "errors": dict},
    "hooks": {"reboot": str, "is_configured": str, "make_unhealthy": str, "make_healthy": str},
    "limits": {
        "idle": str,
        "idle_requests": (int, float),
        "kills": int,
        "cycles": int,
        "prepare_p99": str,
        "prepare_many_p99": str,
        "memory_growth": (int, float),
    },
}
_WORDS = {
    str: "a string",
    list: "a list",
    dict: "a table of strings",
    int: "a whole number",
    bool: "true or false",
    (int, float): "a number",
}


def read_profile(path: Path, checks: Sequence[str]) -> ConformanceProfile:
    """Reads a profile.

    Args:
        checks: the ids of all checks.

    Raises :class:`SettingsError` with all errors.
    """
    try:
        found = tomllib.loads(path.read_text())
    except OSError as e:
        raise SettingsError(f"the profile {path} cannot be read: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise SettingsError(f"the profile {path} is not valid TOML: {e}") from None
    faults = [f"{path}: {fault}" for fault in _faults(found, checks)]
    if faults:
        raise SettingsError(*faults)
    return _profile(found, path.parent, str(path))


def _faults(found: Mapping[str, Any], checks: Sequence[str]) -> list[str]:
    out = []
    for section, values in found.items():
        known = _SECTIONS.get(section)
        if not isinstance(values, dict):
            out.append(f"{section} must be a section: write [{section}]")
        elif section in {"skip", "xfail"}:
            out += [f"[{section}] {id}: {_unknown_check(id, checks)}" for id in sorted(set(values) - set(checks))]
            out += [f"[{section}] {id}: a reason is mandatory" for id, why in values.items() if not _is_text(why)]
        elif known is None:
            out.append(f"there is no section [{section}]{did_you_mean(section, [*_SECTIONS, 'skip', 'xfail'])}")
        else:
            out += [fault for key, value in values.items() if (fault := _value_fault(section, key, value))]
    return out or _contradictions(found)


def _unknown_check(id: str, checks: Sequence[str]) -> str:
    if group := [name for name in checks if name.partition("-")[0] == id]:
        return f"a group is not allowed here: name its checks, {', '.join(group)}"
    return f"there is no such check{did_you_mean(id, checks)}"


def _contradictions(found: Mapping[str, Any]) -> list[str]:
    """Returns entries of a valid profile that would have no effect."""
    config = found.get("config", {})
    invalid = config.get("invalid", [])
    out = [
        f"[config] errors: {name} is not one of the files of [config] invalid{did_you_mean(name, invalid)}"
        for name in config.get("errors", {})
        if name not in invalid
    ]
    both = sorted(set(found.get("skip", {})) & set(found.get("xfail", {})))
    return out + [f"{id} is in [skip] and in [xfail]: delete one of the entries" for id in both]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _value_fault(section: str, key: str, value: object) -> str:
    kind = _SECTIONS[section].get(key)
    where = f"[{section}] {key}"
    if kind is None:
        return f"{where}: there is no such key{did_you_mean(key, list(_SECTIONS[section]))}"
    if key in _DURATIONS and not (isinstance(value, str) and _DURATION.fullmatch(value)):
        return f'{where} must be a duration such as "10s" or "250ms"'
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return f"{where} must be {_WORDS[kind]}"
    if isinstance(value, int | float) and value < 0:
        return f"{where} must not be negative"
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        return f"{where} must be a list of strings"
    if isinstance(value, dict) and not all(isinstance(item, str) for item in value.values()):
        return f"{where} must be a table of strings"
    if key == "api_versions" and isinstance(value, list) and (wrong := sorted(set(value) - set(_API_VERSIONS))):
        return f"{where}: {wrong[0]!r} is not one of {', '.join(_API_VERSIONS)}"
    return ""


def seconds(text: str) -> float:
    """Reads a duration such as ``10s``, which :func:`read_profile` has checked."""
    found = _DURATION.fullmatch(text)
    assert found
    return float(found[1]) * _UNITS[found[2]]


def _profile(found: Mapping[str, Any], folder: Path, where: str) -> ConformanceProfile:
    driver, devices, config = (found.get(name, {}) for name in ("driver", "devices", "config"))
    limits: dict[str, Any] = {
        key: seconds(value) if isinstance(value, str) else value for key, value in found.get("limits", {}).items()
    }
    default = config.get("default")
    options: dict[str, Any] = {**driver, **devices, "limits": ConformanceLimits(**limits)}
    if "ready_timeout" in driver:
        options["ready_timeout"] = seconds(driver["ready_timeout"])
    return ConformanceProfile(
        **options,
        default=_parameters(folder / default, where) if default else None,
        valid=_all_parameters(config.get("valid"), folder, where),
        invalid=_all_parameters(config.get("invalid"), folder, where),
        errors=config.get("errors", {}),
        hooks=found.get("hooks", {}),
        skip=found.get("skip", {}),
        xfail=found.get("xfail", {}),
    )


def _all_parameters(names: Sequence[str] | None, folder: Path, where: str) -> Mapping[str, Any] | None:
    return None if names is None else {name: _parameters(folder / name, where) for name in names}


def _parameters(path: Path, where: str) -> Any:
    """Reads opaque parameters from a file with JSON or YAML. Raises :class:`SettingsError`."""
    import yaml

    try:
        value = yaml.safe_load(path.read_text())
    except OSError as e:
        raise SettingsError(f"{where}: the parameters {path} cannot be read: {e.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise SettingsError(f"{where}: the parameters {path} are not valid JSON or YAML: {e}") from None
    if not isinstance(value, dict):
        raise SettingsError(f"{where}: the parameters {path} must be an object")
    return value
