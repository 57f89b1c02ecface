"""What a driver's author says: values, checked, with the defaults of the source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from .source import JSON, Parameter, Source, SourceError

OTHERS = ("features", "options", "deviceClasses")
OPTION = "[A-Za-z_][A-Za-z0-9_]*"
_OTHER_TYPES = re.compile(
    r"(?i)null|true|false|yes|no|on|off|y|n|~|[0-9][0-9_]*(\.[0-9_]*)?(e[0-9]+)?|0[box][0-9a-f_]+"
)
_NO_WEBHOOK = "features: {0} is for the webhook's certificate: switch webhook on, or {0} off"
REFUSED = (
    (
        ("hostNetwork", "probes", "rollingUpdate"),
        "features: with hostNetwork, the old and the new pod of a rollingUpdate would serve probes on one port: switch rollingUpdate or "
        "probes off",
    ),
    (("certManager", "!webhook"), _NO_WEBHOOK.format("certManager")),
    (("webhookCABundle", "!webhook"), _NO_WEBHOOK.format("webhookCABundle")),
    (
        ("webhook", "!certManager", "!webhookCABundle"),
        "features: nobody trusts the webhook's certificate: switch certManager on, or webhookCABundle with the value of this name",
    ),
    (
        ("certManager", "webhookCABundle"),
        "features: cert-manager writes the CA bundle itself: switch certManager or webhookCABundle off",
    ),
)
"""Features that do not go together, those with ``!`` being off, and why."""


def _hold(features: Sequence[str], on: Set[str]) -> bool:
    """Whether all are on, and those with ``!`` in front are off."""
    return all((feature.lstrip("!") in on) is not feature.startswith("!") for feature in features)


@dataclass(frozen=True)
class Values:
    """``options`` are environment variables of the driver; ``classes`` the specs of DeviceClasses by name."""

    parameters: Mapping[str, str | int]
    features: frozenset[str]
    options: Mapping[str, str]
    classes: Mapping[str, JSON]


def merged(below: JSON, above: JSON) -> JSON:
    """As Helm merges files of values: maps by key, everything else replaced."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def read(source: Source, given: JSON) -> Values:
    """Raises :class:`SourceError` with everything that is wrong."""
    if wrong := [name for name in OTHERS if not isinstance(given.get(name) or {}, dict)]:
        raise SourceError(f"{', '.join(wrong)}: no map of names and values")
    features = {f.name: f.default for f in source.features.values()} | (given.get("features") or {})
    on = frozenset(name for name, wanted in features.items() if wanted)
    values = {p.name: given.get(p.name, p.default) for p in source.parameters.values()}
    if faults := list(_faults(source, given, features, values)):
        raise SourceError("; ".join(faults))
    return Values(
        {name: v for name, v in values.items() if v is not None},
        on,
        given.get("options") or {},
        given.get("deviceClasses") or {},
    )


def _faults(source: Source, given: JSON, features: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(set(given) - {*source.parameters, *OTHERS}, key=str):
        yield f"{name}: no such value; there are {', '.join((*source.parameters, *OTHERS))}"
    for name, wanted in features.items():
        if name not in source.features:
            yield f"features.{name}: no such feature; there are {', '.join(source.features)}"
        elif not isinstance(wanted, bool):
            yield f"features.{name}: {wanted!r} is neither true nor false"
    on = {name for name, wanted in features.items() if wanted is True}
    for p in source.parameters.values():
        if values[p.name] is None:
            if not p.needed or p.needed in on:
                yield f"{p.name}: must be given: {p.help}"
        elif fault := _fault(p, values[p.name]):
            yield f"{p.name}: {fault}"
    yield from _option_faults(source, given.get("options") or {})
    for name, spec in (given.get("deviceClasses") or {}).items():
        if not isinstance(spec, dict):
            yield f"deviceClasses.{name}: {spec!r} is no spec of a DeviceClass"
    yield from (why for together, why in REFUSED if _hold(together, on))


def _option_faults(source: Source, options: JSON) -> Iterator[str]:
    for name, value in options.items():
        if not isinstance(name, str) or not re.fullmatch(OPTION, name):
            yield f"options.{name}: no name of an environment variable"
        elif name in source.variables:
            yield f"options.{name}: the manifests set it themselves; see the values {', '.join(source.parameters)}"
        elif not isinstance(value, str):
            yield f'options.{name}: {value!r} is no text: write it in quotes, "{value}"'
        elif value != value.strip("\"'"):
            yield f"options.{name}: {value!r} begins or ends with a quote, which kustomize takes away"


def _fault(parameter: Parameter, value: Any) -> str:
    if isinstance(parameter.default, int):
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= parameter.most
        return "" if fits else f"{value!r} is no number from 1 to {parameter.most}"
    if not isinstance(value, str):
        return f"{value!r} is no text: write it in quotes"
    if _OTHER_TYPES.fullmatch(value):
        return f"{value!r} is no text to kustomize, which writes it without quotes: give another"
    return "" if re.fullmatch(parameter.pattern, value) else f"{value!r} does not match {parameter.pattern}"
