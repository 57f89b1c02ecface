"""Checks a driver's values for errors and for likely mistakes."""

from __future__ import annotations

import base64
import binascii
import json
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import ControllerSettings, Settings, WebhookSettings
from dra_kubeletplugin.base.settings.values import OptionFault
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.base.yaml import is_text
from dra_kubeletplugin.driver import Driver
from dra_kubeletplugin.errors import SettingsError, printable

from ...near_names import nearest_or_all
from ...yaml.manifests import PlacedText
from . import option_validation, pod_values_validation
from .source_reader import ManifestSource, Parameter

OTHERS = ("features", "options", "deviceClasses", "pods")
"""Values that are mappings; the value ``pciDevices`` is a list, and all other values are parameters."""
PCI_DEVICE = "[0-9a-f]{4}(:[0-9a-f]{4})?"
_NO_NODE_LABEL = (
    "node feature discovery sets the label nodeLabel on nodes with these devices: switch the feature nodeLabel on, "
    "and set the value nodeLabel"
)
OPTION = "[A-Za-z_][A-Za-z0-9_]*"
_CONTROL = re.compile(r"[^\t\n -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ROLES = (Settings, ControllerSettings, WebhookSettings)
# The minimum similarity of suggested names. It is higher than the default, because a driver's option may resemble one of the framework.
_SIMILARITY = 0.85


def value_errors(source: ManifestSource, raw: JSON, driver: type[Driver] | None = None) -> Iterator[PlacedText]:
    """Yields the errors of the values in ``raw``. With ``driver``, also checks the options that the driver defines."""
    if wrong := [name for name in OTHERS if not isinstance(raw.get(name), dict | None)]:
        yield from (PlacedText(name, f"{_shown(raw[name])}, not a mapping of names to values") for name in wrong)
        raw = {key: value for key, value in raw.items() if key not in wrong}
    names = (*source.parameters, *OTHERS, "pciDevices")
    # Helm reserves the name "global".
    hints = {name: nearest_or_all(name, names) for name in raw if name not in names and name != "global"}
    yield from (PlacedText(name, f"no such value{hint}") for name, hint in hints.items())
    features = {f.name: f.default for f in source.features.values()} | (raw.get("features") or {})
    on = {name for name, wanted in features.items() if wanted is True}
    for name, wanted in features.items():
        if name not in source.features:
            yield PlacedText(f"features.{name}", f"no such feature{nearest_or_all(name, source.features)}")
        elif not isinstance(wanted, bool):
            yield PlacedText(f"features.{name}", f"{_shown(wanted)} is neither true nor false")
    for p in source.parameters.values():
        value = raw.get(p.name, p.default)
        if value is None:
            reported = f", did you mean {p.name!r}?" in hints.values()
            if not reported and (not p.needed or p.needed in on):
                yield PlacedText(p.name, f"a value is required: {p.help}")
        elif fault := _parameter_error(p, value):
            yield PlacedText(p.name, fault)
    options = raw.get("options") or {}
    yield from _option_errors(source, options)
    if driver is not None:
        texts = {n: v for n, v in options.items() if isinstance(v, str) and re.fullmatch(OPTION, n)}
        yield from option_validation.option_errors(driver, texts, framework_options() | source.variables)
    for name, spec in (raw.get("deviceClasses") or {}).items():
        yield from _class_errors(name, spec, raw.get("resourceAPI", "v1"))
    yield from _pci_device_errors(raw, on)
    yield from pod_values_validation.pod_value_errors(source, raw.get("pods") or {}, on)
    yield from (PlacedText("", conflict.message) for conflict in source.conflicts if conflict.applies(on))


def value_warnings(raw: JSON, driver: type[Driver] | None = None) -> Iterator[PlacedText]:
    """Yields warnings about valid values that are likely mistakes."""
    if driver is not None and driver.privileged and (raw.get("features") or {}).get("privileged") is False:
        yield PlacedText(
            "features.privileged", f"false, but {driver.__name__} sets privileged = True: its writes to sysfs will fail"
        )
    known = framework_options()
    for name in raw.get("options") or {}:
        if name not in known and (hint := did_you_mean(name, known, _SIMILARITY)):
            yield PlacedText(
                f"options.{name}",
                f"not an option of the framework{hint} It is passed on, because it may be an option of the driver",
            )
    # the features of optional pods (supervisor, controller, webhook) are off by default
    on = {name for name, wanted in (raw.get("features") or {}).items() if wanted}
    yield from pod_values_validation.pod_value_warnings(raw.get("pods") or {}, on)
    driver_name = str(raw["driverName"])
    for name, spec in (raw.get("deviceClasses") or {}).items():
        for i, selector in enumerate(spec.get("selectors") or ()):
            for text in re.findall(r"""["']([^"']+)["']""", selector["cel"]["expression"]):
                if text != driver_name and (hint := did_you_mean(text, [driver_name], _SIMILARITY)):
                    yield PlacedText(
                        f"deviceClasses.{name}.selectors[{i}].cel.expression", f"{text!r} is not driverName{hint}"
                    )


def framework_options() -> set[str]:
    """Returns the names of the environment variables of all options of the framework."""
    return {f.metadata["env"] for role in _ROLES for f in role.options()}


def _option_errors(source: ManifestSource, options: JSON) -> Iterator[PlacedText]:
    for name, value in options.items():
        if not re.fullmatch(OPTION, name):
            yield PlacedText(f"options.{name}", "not a valid name of an environment variable")
        elif name in source.variables:
            own = re.sub("_(.)", lambda found: found[1].upper(), name.lower())  # LOG_LEVEL is the value logLevel
            todo = (
                f"set the value {own}" if own in source.parameters else f"see the values {', '.join(source.parameters)}"
            )
            yield PlacedText(f"options.{name}", f"the manifests set this variable: {todo}")
        elif not isinstance(value, str):
            written = str(value).lower() if isinstance(value, bool) else value
            yield PlacedText(f"options.{name}", f'{_shown(value)} is not text: write it in quotes, "{written}"')
        elif _CONTROL.search(value):
            yield PlacedText(f"options.{name}", f"{printable(value)!r} has a character that is not allowed in YAML")
        elif value != value.strip("\"'"):
            yield PlacedText(f"options.{name}", f"{value!r} begins or ends with a quote, which kustomize removes")
        else:
            yield from dict.fromkeys(fault for role in _ROLES for fault in _setting_errors(name, value, role))


def _setting_errors(name: str, value: str, role: type[Settings]) -> list[PlacedText]:
    """Returns the errors of a variable as a setting of one role; none if the role does not read the variable."""
    try:
        found: Sequence[str] = role.load({}, {name: value}).common_faults()
    except SettingsError as e:
        found = e.faults
    return [PlacedText(f"options.{name}", f.problem) for f in found if isinstance(f, OptionFault) and f.env == name]


def _pci_device_errors(raw: JSON, on: Set[str]) -> Iterator[PlacedText]:
    devices = raw.get("pciDevices")
    if not isinstance(devices, list | None):
        yield PlacedText("pciDevices", f"{_shown(devices)}, not a list of PCI ids")
        return
    for i, text in enumerate(devices or ()):
        if not isinstance(text, str) or not re.fullmatch(PCI_DEVICE, text):
            how = 'write VENDOR:DEVICE or VENDOR in quotes, such as "1d0f:5000"'
            yield PlacedText(f"pciDevices[{i}]", f"{_shown(text)} is not a PCI id: {how}")
    if devices and "nodeLabel" not in on:
        yield PlacedText("pciDevices", _NO_NODE_LABEL)
    elif devices and isinstance(label := raw.get("nodeLabel"), str) and "/" not in label:
        effect = f"node feature discovery would set feature.node.kubernetes.io/{label}"
        yield PlacedText("nodeLabel", f"{_shown(label)} has no prefix: {effect}")


def _class_errors(name: str, spec: Any, version: object) -> Iterator[PlacedText]:
    """Checks a DeviceClass with the API server's rules."""
    where = f"deviceClasses.{name}"
    if not isinstance(spec, dict):
        yield PlacedText(where, f"{_shown(spec)} is not a spec of a DeviceClass")
        return
    from ...localcluster.apiserver import manifest_validation  # imported only if there is a class

    if version != "v1":  # the manifests for older API versions omit this field
        spec = {key: value for key, value in spec.items() if key != "extendedResourceName"}
    head = {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceClass", "metadata": {"name": name}}
    try:
        found = manifest_validation.object_errors(head | {"spec": spec})
    except manifest_validation.UnknownKind:
        return  # resourceAPI is invalid, which is reported separately
    for fault in found:
        inner = re.sub(r"^(metadata\.name|spec)", "", fault.path)
        yield PlacedText(f"{where}{inner}", fault.text)


def _parameter_error(parameter: Parameter, value: Any) -> str:
    if isinstance(parameter.default, int):
        return _number_error(value, parameter.most)
    if not isinstance(value, str):
        return f"{_shown(value)} is not text: write it in quotes"
    if not re.fullmatch(parameter.pattern, value):
        choices = parameter.choices
        one_of = f"is not one of {', '.join(choices)}{did_you_mean(value, choices)}"
        return f"{_shown(value)} {one_of if choices else f'does not match {parameter.pattern}'}"
    if not is_text(value):
        return f"{value!r} would be read as another type, because kustomize writes it without quotes: use another value"
    if parameter.name == "webhookCABundle":
        return _certificate_error(value)
    too_long = parameter.longest and len(value) > parameter.longest
    return f"{_shown(value)} has more than {parameter.longest} characters" if too_long else ""


def _number_error(value: Any, most: int) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most:
        return ""
    quoted = isinstance(value, str) and value.isdecimal()
    return f"{_shown(value)} is not a number from 1 to {most}" + (": write it without quotes" if quoted else "")


def _certificate_error(value: str) -> str:
    try:
        ssl.create_default_context(cadata=base64.b64decode(value, validate=True).decode())
    except (binascii.Error, ValueError, ssl.SSLError):
        return "not a certificate: give PEM in base64, the output of `base64 -w0 ca.crt`"
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(printable(value))
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else printable(json.dumps(value))
