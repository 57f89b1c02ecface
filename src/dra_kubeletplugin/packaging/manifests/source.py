"""What there is to render: manifests with ``${parameter}`` in them, and with lines that only some drivers want.

``#? feature`` at the end of a line says that it, and what is indented below it, is there only with that feature; ``#? !feature``
without. On the ``apiVersion`` of a manifest it is said of the whole.

``#= field`` at the end of a line says that the value of this name (:mod:`.fields`) takes the place of the line and what belongs to
it; alone, that it stands there once it is given. ``#+ field``, alone: what is given comes beside what stands above.
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
"""Stands at the head of every file that is rendered: no other is ever replaced."""
HELM = "helm"
"""A mark for lines that kustomize does otherwise."""
PARAMETER = re.compile(r"\$\{(\w+)\}")
_MARK = re.compile(r" #\? (!?)(\w+)$")
_FIELD = re.compile(r" #= (\w+)$")
_ALONE = re.compile(r"( *)#([=+]) (\w+)")


class SourceError(Exception):
    """What is wrong with the source, or with a driver's values; ``faults`` are sentences."""

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True)
class Parameter:
    """``default`` is None where a value must be given: always, or with the feature that ``needed`` names. ``pattern`` is a regular
    expression for the whole of a text, ``longest`` how many characters it may have where not 0."""

    name: str
    help: str
    default: str | int | None = None
    pattern: str = ""
    needed: str = ""
    longest: int = 0

    @property
    def choices(self) -> tuple[str, ...]:
        """What a text may be, where there are few."""
        found = tuple(self.pattern.split("|"))
        return found if len(found) > 1 and all(map(str.isalnum, found)) else ()

    @property
    def most(self) -> int:
        """Of a number, which is a port or counts replicas."""
        return 65535 if self.name.endswith("Port") else 100


@dataclass(frozen=True)
class Feature:
    name: str
    help: str
    default: bool


@dataclass(frozen=True)
class Distribution:
    """Values that go on top of a driver's."""

    name: str
    help: str
    values: JSON


@dataclass(frozen=True)
class Manifest:
    """One object. ``feature`` is what the whole of it is for; empty for what every driver has."""

    text: str
    feature: str

    @property
    def kind(self) -> str:
        found = re.search(r"^kind: (\w+)$", self.text, re.MULTILINE)
        assert found, self.text
        return found[1]

    @property
    def features(self) -> Set[str]:
        """Those that only parts of it are for."""
        marks = (_MARK.search(_FIELD.sub("", line)) for line in self.text.splitlines())
        return {m[2] for m in marks if m} - {self.feature, HELM}

    def with_features(self, on: Set[str]) -> str:
        """Its text with those features and no others."""
        kept: list[str] = []
        skipped = ""  # the line that is left out, with what belongs to it
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
        """Its lines, each with a step in front of it where a part begins or has ended: ``if FEATURE``, ``unless FEATURE``, ``end``.

        Of fields: ``given FIELD``, then what stands there where it is not, and ``else FIELD`` with the line; ``set FIELD`` and
        ``add FIELD`` with the indentation.
        """
        parts: list[tuple[str, str]] = []  # those that are open: the first line, and the field where one is given
        for marked in self.text.splitlines():
            alone = _ALONE.fullmatch(marked)
            line = marked if alone else _FIELD.sub("", marked)
            while parts and not _belongs(line, parts[-1][0]):
                yield from _ended(*parts.pop())
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
            yield from _ended(*parts.pop())


def _ended(line: str, field: str) -> Iterator[tuple[str, str]]:
    if field:
        yield f"else {field}", line
    yield "end", ""


def _belongs(line: str, opener: str) -> bool:
    """Whether a line is part of what an earlier one begins: indented below it, or an item of the list that it names."""
    indent, of_opener = (len(text) - len(text.lstrip()) for text in (line, opener))
    names_list = _MARK.sub("", opener).endswith(":") and not opener.lstrip().startswith("- ")
    return indent > of_opener or (indent == of_opener and names_list and line.lstrip().startswith("- "))


@dataclass(frozen=True)
class Source:
    parameters: Mapping[str, Parameter]
    features: Mapping[str, Feature]
    distributions: Mapping[str, Distribution]
    manifests: Mapping[str, tuple[Manifest, ...]]  # by the name of the file, without its ending

    @property
    def variables(self) -> Set[str]:
        """Environment variables that the manifests set, with whichever features."""
        return set(re.findall(r"- \{?name: ([A-Z][A-Z_]+)\b", "".join(m.text for m in self.all)))

    @property
    def all(self) -> Iterator[Manifest]:
        for manifests in self.manifests.values():
            yield from manifests


def load(folder: Path = SOURCE) -> Source:
    """Raises :class:`SourceError` for a mark or a parameter that is not described."""
    said = yaml.safe_load((folder / "parameters.yaml").read_text())
    source = Source(
        {name: Parameter(name, **p) for name, p in said["parameters"].items()},
        {name: Feature(name, **f) for name, f in said["features"].items()},
        {name: Distribution(name, **d) for name, d in said["distributions"].items()},
        {n: tuple(_manifests((folder / f"{n}.yaml").read_text())) for n in ("node", "controller", "webhook")},
    )
    for manifest in source.all:
        if unknown := (manifest.features | {manifest.feature}) - {*source.features, ""}:
            raise SourceError(f"{', '.join(sorted(unknown))} is marked with `#?` and no feature of parameters.yaml")
        if unknown := set(PARAMETER.findall(manifest.text)) - set(source.parameters):
            raise SourceError(f"${{{', '.join(sorted(unknown))}}} is no parameter of parameters.yaml")
    return source


def _manifests(text: str) -> Iterator[Manifest]:
    for part in re.split(r"^---\n", text, flags=re.MULTILINE):
        first = next(line for line in part.splitlines() if not line.startswith("#"))
        mark = _MARK.search(first)
        yield Manifest(part, mark[2] if mark else "")
