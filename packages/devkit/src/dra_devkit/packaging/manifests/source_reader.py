"""Reads the source of all manifests: ``source/parameters.yaml``, and the templates of the Helm chart in ``source/templates``.

The chart contains the unchanged templates, and Helm renders them. :mod:`.kustomize` needs the same objects with and without each feature,
so this module parses the templates. It supports these forms:

- ``{{ .Values.httpPort }}`` is a parameter. ``include "dra.name" .`` is the parameter ``name``, and ``.Release.Namespace`` is the
  parameter ``namespace``. Each may have ``| quote``.
- ``{{- if .Values.features.probes }}`` on a line of its own, also with ``{{- else }}``: the lines up to ``{{- end }}`` need the
  feature.
- ``{{- define "dra.plugin" }}`` begins the object that ``{{- include "dra.workload" (list . "plugin") }}`` inserts.
- Other lines with ``{{- include ... }}`` and comments are ignored, because they are only for Helm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.driver import Driver

SOURCE = Path(__file__).parent / "source"
TEMPLATES = SOURCE / "templates"
MADE = "Made by `dra deploy`"
"""The mark at the start of every rendered file. Files without this mark are never replaced."""
_HEAD = 1000  # bytes at the start of a file that are searched for the mark
HEADER = f"# {MADE}: changes here will be lost.\n"
PODS = ("plugin", "supervisor", "controller", "webhook")
"""The names of the pods in the values; each has a file of templates."""
_PARAMETER = re.compile(r"\{\{ (.+?)( \| quote)? \}\}")
_NAMES = {'include "dra.name" .': "name", ".Release.Namespace": "namespace"}
_IF = re.compile(r" *\{\{- if \.Values\.features\.(\w+) \}\}")
_DEFINE = re.compile(r'\{\{- define "dra\.(\w+)" \}\}')
_WORKLOAD = re.compile(r'\{\{- include "dra\.workload" \(list \. "(\w+)"\) \}\}')
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def is_rendered(path: Path) -> bool:
    """Whether a file has the mark of rendered files. False for a link, because the user created it."""
    return not path.is_symlink() and MADE in path.read_bytes()[:_HEAD].decode(errors="replace")


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Args:
        default: the default value; None if there is no default.
        needed: the feature with which a parameter without a default requires a value; empty if it always requires a value.
        pattern: a regular expression for the whole text.
        longest: the maximum number of characters; 0 for no limit.
    """

    name: str
    help: str
    default: str | int | None = None
    pattern: str = ""
    needed: str = ""
    longest: int = 0

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed texts if the pattern is a list of words such as ``a|b``; empty otherwise."""
        found = tuple(self.pattern.split("|"))
        return found if len(found) > 1 and all(map(str.isalnum, found)) else ()

    @property
    def most(self) -> int:
        """The maximum of a parameter that is a number: a port, or a number of replicas."""
        return 65535 if self.name.endswith("Port") else 100


@dataclass(frozen=True)
class Feature:
    name: str
    help: str
    default: bool


@dataclass(frozen=True)
class Conflict:
    """An invalid combination of features: all of ``enabled`` are on, and all of ``disabled`` are off."""

    message: str
    enabled: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()

    def applies(self, on: Set[str]) -> bool:
        return on >= set(self.enabled) and not on & set(self.disabled)


@dataclass(frozen=True)
class PodField:
    """A Kubernetes field that an operator can set on a driver's pods.

    Args:
        of: the part of the pod that has the field: ``metadata``, ``spec``, or ``container`` for the first container.
        adds: whether the operator's value is added to the value in the template. If False, it replaces that value, even if it is empty.
    """

    name: str
    of: str
    adds: bool = False


@dataclass(frozen=True)
class Distribution:
    """Values for a Kubernetes distribution or release, which override a driver's values."""

    name: str
    help: str
    values: JSON


@dataclass(frozen=True)
class Line:
    """A line of a template. ``needs`` maps features to True or False: the line is kept only if they are on or off."""

    text: str
    needs: Mapping[str, bool]


@dataclass(frozen=True)
class SourceManifest:
    """One object. ``feature`` is the feature that the whole object needs; empty if every driver has the object."""

    lines: tuple[Line, ...]
    feature: str

    @property
    def kind(self) -> str:
        return next(line.text for line in self.lines if line.text.startswith("kind: ")).removeprefix("kind: ")

    @property
    def features(self) -> Set[str]:
        """The features that change the object, without ``feature``."""
        return {feature for line in self.lines for feature in line.needs} - {self.feature}

    def text(self, on: Set[str], values: Mapping[str, object]) -> str:
        """Returns the object as YAML, with ``feature`` and the features in ``on``.

        Args:
            values: a value for each parameter. :mod:`.kustomize` passes a marker, and finds the places of parameters with it.
        """

        def value(found: re.Match[str]) -> str:
            shown = str(values[_NAMES.get(found[1]) or found[1].removeprefix(".Values.")])
            return json.dumps(shown) if found[2] else shown

        all_on = on | {self.feature}
        kept = [line.text for line in self.lines if all((f in all_on) is wanted for f, wanted in line.needs.items())]
        return _PARAMETER.sub(value, "\n".join(kept)) + "\n"

    def render(self, on: Set[str], values: Mapping[str, object]) -> JSON:
        """Returns the result of :meth:`text` as an object."""
        found: JSON = parse_yaml(self.text(on, values))
        return found


@dataclass(frozen=True)
class ManifestSource:
    parameters: Mapping[str, Parameter]
    features: Mapping[str, Feature]
    conflicts: tuple[Conflict, ...]
    pod_fields: Mapping[str, PodField]
    distributions: Mapping[str, Distribution]
    manifests: Mapping[str, tuple[SourceManifest, ...]]
    """The objects by the name of the pod that uses them; the Namespace is below ``namespace``."""

    def with_defaults_of(self, driver: type[Driver] | None) -> ManifestSource:
        """Returns the source with ``privileged`` and ``supervisor`` on by default if the driver's class needs these features."""
        needed = {"privileged": driver.privileged, "supervisor": driver.processes} if driver else {}
        on = {name: replace(self.features[name], default=True) for name, wanted in needed.items() if wanted}
        return replace(self, features={**self.features, **on}) if on else self

    @property
    def variables(self) -> Set[str]:
        """The environment variables that the manifests set, with all features."""
        text = "\n".join(line.text for manifest in self.all for line in manifest.lines)
        return set(re.findall(r"- \{?name: ([A-Z][A-Z_]+)\b", text))

    @property
    def all(self) -> Iterator[SourceManifest]:
        for manifests in self.manifests.values():
            yield from manifests


def parse_yaml(text: str) -> Any:
    """Parses one document. Uses libyaml if PyYAML has it, because it is ten times as fast as the parser in Python."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506


def load_source() -> ManifestSource:
    """Loads the source. Raises ``ValueError`` for a template with a form that this module does not support."""
    data = parse_yaml((SOURCE / "parameters.yaml").read_text())
    files = {"namespace": SOURCE / "namespace.yaml"} | {pod: TEMPLATES / f"{pod}.yaml" for pod in PODS}
    return ManifestSource(
        parameters={name: Parameter(name, **p) for name, p in data["parameters"].items()},
        features={name: Feature(name, **f) for name, f in data["features"].items()},
        conflicts=tuple(Conflict(**c) for c in data["conflicts"]),
        pod_fields={name: PodField(name, **f) for name, f in data["podFields"].items()},
        distributions={name: Distribution(name, **d) for name, d in data["distributions"].items()},
        manifests={name: tuple(parse_manifests(path.read_text())) for name, path in files.items()},
    )


def parse_manifests(text: str) -> Iterator[SourceManifest]:
    """Yields the objects of a template file. The feature of an object is the feature that the line ``---`` before it needs."""
    lines = _lines(text)
    starts = [i for i, line in enumerate(lines) if line.text == "---"]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield SourceManifest(tuple(lines[start + 1 : end]), next(iter(lines[start].needs), ""))


def _lines(text: str) -> list[Line]:
    """Returns the lines of a template file, with the lines of each ``define`` at the place that includes it."""
    whole: list[Line] = []
    defined: dict[str, list[Line]] = {}
    target = whole
    needs: list[tuple[str, bool]] = []  # the features that the open ``if`` blocks need
    for line in text.splitlines():
        if found := _IF.fullmatch(line):
            needs.append((found[1], True))
        elif line.lstrip() == "{{- else }}":
            feature, wanted = needs.pop()
            needs.append((feature, not wanted))
        elif line.lstrip() == "{{- end }}" and needs:
            needs.pop()
        elif line == "{{- end }}":
            target = whole
        elif found := _DEFINE.fullmatch(line):
            target = defined.setdefault(found[1], [])
        elif found := _WORKLOAD.fullmatch(line):
            target += [Line(inner.text, {**dict(needs), **inner.needs}) for inner in defined[found[1]]]
        elif not line.lstrip().startswith("{{-"):
            target.append(Line(line, dict(needs)))
        elif not line.startswith(("{{- include ", "{{- /*")):
            raise ValueError(f"source_reader.py cannot read {line.strip()!r}: use the forms that it lists")
    return whole
