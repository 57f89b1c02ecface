"""Loads the sources of all manifests: YAML with ``${parameter}`` and with marks for optional lines.

``#? feature`` at the end of a line: the line, and the lines indented below it, exist only with this feature. With ``#? !feature``
they exist only without this feature. On the line ``apiVersion``, the mark applies to the whole manifest.

``#= field`` at the end of a line: the pod field of this name (:mod:`.pod_fields`), if set, replaces the line and the lines indented
below it. ``#= field`` on a line of its own: the field is inserted there if it is set. ``#+ field`` on a line of its own: the items
of the field are added to the items above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

JSON = dict[str, Any]
SOURCE = Path(__file__).parent / "source"
MADE = "Made by `dra deploy`"
"""The mark at the head of every rendered file. Files without it are never replaced."""
HELM = "helm"
"""The mark ``#? helm`` is for lines that only the Helm chart contains; kustomize has other means for their purpose."""
PARAMETER = re.compile(r"\$\{(\w+)\}")
_MARK = re.compile(r" #\? (!?)(\w+)$")
_FIELD = re.compile(r" #= (\w+)$")
_ALONE = re.compile(r"( *)#([=+]) (\w+)")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class SourceError(Exception):
    """Errors in the source or in a driver's values; ``faults`` has one sentence for each error."""

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Args:
        default: None if a value is required.
        needed: the feature that requires a value; if empty, a value is always required.
        pattern: a regular expression for the whole text.
        longest: the maximum number of characters; 0 means no limit.
    """

    name: str
    help: str
    default: str | int | None = None
    pattern: str = ""
    needed: str = ""
    longest: int = 0

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed texts, if the pattern is a list of texts such as ``a|b``."""
        found = tuple(self.pattern.split("|"))
        return found if len(found) > 1 and all(map(str.isalnum, found)) else ()

    @property
    def most(self) -> int:
        """The maximum of a number, which is a port or a number of replicas."""
        return 65535 if self.name.endswith("Port") else 100


@dataclass(frozen=True)
class Feature:
    name: str
    help: str
    default: bool


@dataclass(frozen=True)
class Distribution:
    """Values of a Kubernetes distribution, merged over a driver's values."""

    name: str
    help: str
    values: JSON


@dataclass(frozen=True)
class Manifest:
    """One object. ``feature`` is the feature that the whole object needs; empty if every driver has it."""

    text: str
    feature: str

    @property
    def kind(self) -> str:
        found = re.search(r"^kind: (\w+)$", self.text, re.MULTILINE)
        assert found, self.text
        return found[1]

    @property
    def features(self) -> Set[str]:
        """The features that parts of the object need."""
        marks = (_MARK.search(_FIELD.sub("", line)) for line in self.text.splitlines())
        return {m[2] for m in marks if m} - {self.feature, HELM}

    def with_features(self, on: Set[str]) -> str:
        """Returns the object's text with these features and no other features."""
        kept: list[str] = []
        skipped = ""  # the line that was left out; lines that belong to it are left out too
        for line in (_FIELD.sub("", line) for line in self.text.splitlines() if not _ALONE.fullmatch(line)):
            if skipped and _belongs(line, skipped):
                continue
            mark = _MARK.search(line)
            left_out = mark and mark[2] != self.feature and (mark[2] in on) is bool(mark[1])
            skipped = line if left_out else ""
            if not left_out:
                kept.append(_MARK.sub("", line))
        return "\n".join(kept) + "\n"

    def as_template(self) -> Iterator[tuple[str, str]]:
        """Yields pairs of a step for the Helm template and a line of the object. The step is "" for a line without a mark.

        For a feature: ``if FEATURE`` or ``unless FEATURE`` before the marked lines, and ``end`` after them.
        For a field that replaces lines: ``given FIELD``, the lines, ``else FIELD`` with the first of the lines, ``end``.
        For a field on a line of its own: ``set FIELD`` or ``add FIELD``; the line is then the indentation.
        """
        parts: list[tuple[str, str]] = []  # open parts: the first line, and the field's name if a field opened it
        for marked in self.text.splitlines():
            alone = _ALONE.fullmatch(marked)
            line = marked if alone else _FIELD.sub("", marked)
            while parts and not _belongs(line, parts[-1][0]):
                yield from _closing_steps(*parts.pop())
            if alone:
                yield f"{'set' if alone[2] == '=' else 'add'} {alone[3]}", alone[1]
                continue
            if field := _FIELD.search(marked):
                parts.append((line, field[1]))
                yield f"given {field[1]}", ""
            if (mark := _MARK.search(line)) and mark[2] not in {self.feature, HELM}:
                parts.append((line, ""))
                yield ("unless " if mark[1] else "if ") + mark[2], ""
            yield "", _MARK.sub("", line)
        while parts:
            yield from _closing_steps(*parts.pop())


def _closing_steps(line: str, field: str) -> Iterator[tuple[str, str]]:
    if field:
        yield f"else {field}", line
    yield "end", ""


def _belongs(line: str, opener: str) -> bool:
    """Whether ``line`` belongs to the earlier line ``opener``: indented below it, or an item of the list whose name it is."""
    indent, of_opener = (len(text) - len(text.lstrip()) for text in (line, opener))
    names_list = _MARK.sub("", opener).endswith(":") and not opener.lstrip().startswith("- ")
    return indent > of_opener or (indent == of_opener and names_list and line.lstrip().startswith("- "))


@dataclass(frozen=True)
class Source:
    parameters: Mapping[str, Parameter]
    features: Mapping[str, Feature]
    distributions: Mapping[str, Distribution]
    manifests: Mapping[str, tuple[Manifest, ...]]  # by file name without its suffix

    @property
    def variables(self) -> Set[str]:
        """The environment variables that the manifests set with any combination of features."""
        return set(re.findall(r"- \{?name: ([A-Z][A-Z_]+)\b", "".join(m.text for m in self.all)))

    @property
    def all(self) -> Iterator[Manifest]:
        for manifests in self.manifests.values():
            yield from manifests


def parse_yaml(text: str) -> Any:
    """Parses one document, with libyaml if PyYAML has it: libyaml is ten times as fast as the parser in Python."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506


def load(folder: Path = SOURCE) -> Source:
    """Loads the source. Raises :class:`SourceError` for a mark or a parameter that ``parameters.yaml`` does not define."""
    data = parse_yaml((folder / "parameters.yaml").read_text())
    source = Source(
        {name: Parameter(name, **p) for name, p in data["parameters"].items()},
        {name: Feature(name, **f) for name, f in data["features"].items()},
        {name: Distribution(name, **d) for name, d in data["distributions"].items()},
        {n: tuple(_manifests((folder / f"{n}.yaml").read_text())) for n in ("node", "controller", "webhook")},
    )
    for manifest in source.all:
        if unknown := (manifest.features | {manifest.feature}) - {*source.features, ""}:
            raise SourceError(f"{', '.join(sorted(unknown))} is in a mark `#?` but is not a feature in parameters.yaml")
        if unknown := set(PARAMETER.findall(manifest.text)) - set(source.parameters):
            raise SourceError(f"${{{', '.join(sorted(unknown))}}} is not a parameter in parameters.yaml")
    return source


def _manifests(text: str) -> Iterator[Manifest]:
    for part in re.split(r"^---\n", text, flags=re.MULTILINE):
        first = next(line for line in part.splitlines() if not line.startswith("#"))
        mark = _MARK.search(first)
        yield Manifest(part, mark[2] if mark else "")
