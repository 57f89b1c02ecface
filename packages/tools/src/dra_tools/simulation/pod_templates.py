"""Finds the pod templates in an object of any kind by their shape, and the number of pods that each template creates.

A pod template is an object whose ``spec`` has a list ``containers``, or an object with such a list itself. The fields for the
number of pods, such as ``replicas``, are multiplied along the path to the template. A field for a number of pods that is
on no such path, or whose meaning is not known, is named, because the object may create other pods. An object whose number of pods
another component changes later (``maxReplicas``, ``suspend``) is counted as it is written, and named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import counted

# The first of these fields that an object has is the number of replicas.
_REPLICAS = ("replicas", "instances", "count", "minReplicas", "minMember")
_SIZES = ("size", "groupSize", "numOfHosts", "nodeCount", "numNodes")  # each is the number of pods of one replica
_AT_ONCE = ("parallelism", "completions")
_LIMITS = ("maxReplicas", "maxReplicaCount")
_COUNTS = (*_REPLICAS, *_SIZES, *_AT_ONCE)
# Names of other fields that are probably a number of pods, and names that look so and are not.
_LIKE_COUNT = re.compile(
    r"(?!max).*(replicas|size|count|parallelism|completions|instances|members?|nodes|hosts|workers|executors)", re.I
)
_OTHER_COUNTS = {"subGroupSize", "succeededCount", "minMember"}
# Fields that contain no further template.
_CLOSED = {"apiVersion", "kind", "metadata", "status", "selector", "volumeClaimTemplates", "resourceClaims"}
_CLOSED |= {"containers", "initContainers", "ephemeralContainers", "volumes", "affinity", "tolerations"}
_CLOSED |= {"securityContext", "topologySpreadConstraints"}
_OF_OTHERS = re.compile(r".*(Template|Runtime|Policy|Class|Profile|Override)")


@dataclass(frozen=True)
class PodTemplate:
    """A template with the path at which it was found. ``limit`` is the number of pods to which it may grow; 0 if there is none."""

    path: str
    template: Any
    count: int
    limit: int = 0

    @property
    def part(self) -> str:
        """The path without the parts that most kinds have."""
        return re.sub(r"(^|\.)(spec|template)(?=\.|$)", "", self.path).strip(".")


@dataclass(frozen=True)
class FoundTemplates:
    """The templates of one object, and sentences about the pods whose number is not known."""

    templates: tuple[PodTemplate, ...]
    faults: tuple[str, ...]


def pod_templates(obj: ReadOnlyJSON) -> FoundTemplates:
    """Returns the templates of an object."""
    search = _TemplateSearch()
    search.walk({k: v for k, v in obj.items() if k not in _CLOSED}, "", (1, 1), ())
    faults = list(search.faults)
    templates = search.templates
    kind = str(obj["kind"])
    faults += (_scaling(t) for t in templates if kind.startswith("Scaled") or (t.limit and autoscales(obj)))
    faults += search.suspended
    if templates and _OF_OTHERS.fullmatch(str(obj["kind"])):
        return FoundTemplates((), ("other objects decide how many pods are created from its pod template",))
    if unused := [
        *(p for where, paths in search.counts.items() if where not in search.used for p in paths),
        *search.unknown,
    ]:
        faults.append(f"the number of its pods also depends on {', '.join(unused)}, which is not evaluated")
    if not (templates or search.faults):
        faults = ["it has no pod template that is known here, and it may create pods"]
    return FoundTemplates(tuple(templates), tuple(faults))


def autoscales(obj: ReadOnlyJSON) -> bool:
    """Returns whether fields such as ``maxReplicas`` are in effect: a Ray cluster needs another field for that."""
    return not str(obj["kind"]).startswith("Ray") or '"enableInTreeAutoscaling": true' in json.dumps(obj, default=str)


def _scaling(found: PodTemplate) -> str:
    number = f"{counted(found.count, 'pod')} of {found.path} {'is' if found.count == 1 else 'are'} counted"
    return f"{number}, and an autoscaler may start {f'up to {found.limit}' if found.limit else 'more'}"


def suspension(spec: ReadOnlyJSON, path: str) -> list[str]:
    """Returns a sentence for an object that creates its pods only after a user or a queue resumes it."""
    return (
        [f"{path}.suspend is true: its pods are counted as if it were resumed"] if spec.get("suspend") is True else []
    )


def is_pod_spec(value: Any) -> bool:
    containers = value.get("containers") if isinstance(value, Mapping) else None
    return bool(
        isinstance(containers, list)
        and containers
        and all(isinstance(c, Mapping) and c.keys() & {"name", "image"} for c in containers)
    )


@dataclass
class _TemplateSearch:
    """The search in one object.

    Attributes:
        counts: the paths of fields for a number of pods, by the path of the object that has them.
        used: the paths of objects that contain a template.
        unknown: the paths of fields that are probably a number of pods.
        suspended: sentences about parts that create no pods yet.
    """

    templates: list[PodTemplate] = field(default_factory=list)
    counts: dict[str, list[str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    suspended: list[str] = field(default_factory=list)

    def walk(
        self, value: Any, path: str, count: tuple[int, int], around: tuple[str, ...], owner: ReadOnlyJSON | None = None
    ) -> None:
        """Searches a value. ``owner`` is the object whose field ``spec`` is this value."""
        if isinstance(value, list):
            for i, item in enumerate(value):
                self.walk(item, f"{path}[{i}]", count, around)
        if not isinstance(value, Mapping):
            return
        around = (*around, path)
        self._note_counts(value, path)
        self.suspended += suspension(value, path)
        if is_pod_spec(value):
            self._add(path.removesuffix(".spec"), owner or {"spec": value}, _times(count, _factor(value, "")), around)
        elif "containers" in value:
            self.faults.append(f"{path} has containers that are not those of a pod: each needs a name or an image")
        elif _has_claims(value):
            self.faults.append(
                f"{path} has resourceClaims and no containers: the pods that get these claims are not known"
            )
        elif isinstance(value.get("image"), str) or _asks_for_resources(value):
            self.faults.append(f"{path} describes a container outside of a pod template")
        for key, inner in value.items():
            if key not in _CLOSED and isinstance(inner, list | Mapping):
                below = _times(count, _factor(value, key))
                self.walk(inner, f"{path}.{key}".lstrip("."), below, around, value if key == "spec" else None)

    def _add(self, path: str, template: ReadOnlyJSON, count: tuple[int, int], around: tuple[str, ...]) -> None:
        self.used.update(around)
        if re.search(r"(^|\.)templates\[", path):
            self.faults.append(f"the number of pods of {path} is decided when it runs")
        elif re.search(r"override|patch", path, re.I):
            self.faults.append(f"{path} changes pods that another object describes")
        else:
            number, limit = count
            self.templates.append(PodTemplate(path, template, number, limit if limit > number else 0))

    def _note_counts(self, value: ReadOnlyJSON, path: str) -> None:
        for key, number in value.items():
            where = f"{path}.{key}".lstrip(".")
            if key in _COUNTS and number is not None:
                if not _is_number(number):
                    self.unknown.append(where)
                elif key not in _OTHER_COUNTS:
                    self.counts.setdefault(path, []).append(where)
            elif key not in _OTHER_COUNTS and _is_number(number) and number > 1 and _LIKE_COUNT.fullmatch(key):
                self.unknown.append(where)


def _times(count: tuple[int, int], factor: tuple[int, int]) -> tuple[int, int]:
    """Multiplies a number of pods, and the number to which it may grow."""
    return count[0] * factor[0], count[1] * factor[1]


def _factor(value: ReadOnlyJSON, child: str) -> tuple[int, int]:
    """Returns the number of pods for each template below ``child``, and the number to which it may grow."""
    counts = {key: int(value[key]) for key in _COUNTS if _is_number(value.get(key))}
    replicas = next((counts[key] for key in _REPLICAS if key in counts), 1)
    if "minReplicas" in counts and not any(key in counts for key in _REPLICAS[:3]):
        replicas = max(1, replicas)  # an autoscaler that scales to zero creates a pod for the first request
    number = 1
    for key in _SIZES:
        number *= _of_group(value, child, counts[key]) if key in counts else 1
    number *= at_once(counts)
    limit = max([replicas, *(value[key] for key in _LIMITS if _is_number(value.get(key)))])
    return replicas * number, limit * number


def _of_group(value: ReadOnlyJSON, child: str, size: int) -> int:
    """Returns the number of pods of one template in a group of ``size`` pods, which may have a leader with a template of its own."""
    leads, works = (any(key.startswith(word) for key in value) for word in ("leader", "worker"))
    if leads and works and child.startswith("leader"):
        return 1
    return size - 1 if leads and works and child.startswith("worker") else size


def at_once(job: ReadOnlyJSON) -> int:
    """Returns the number of pods of a Job that run at the same time. Raises ``TypeError`` or ``ValueError``."""
    parallelism, completions = job.get("parallelism"), job.get("completions")
    number = 1 if parallelism is None else int(parallelism)
    return number if completions is None else min(number, int(completions))


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number of pods that a server of the kind could accept."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _has_claims(value: ReadOnlyJSON) -> bool:
    entries = value.get("resourceClaims")
    named = {"resourceClaimName", "resourceClaimTemplateName"}
    return isinstance(entries, list) and any(isinstance(e, Mapping) and e.keys() & named for e in entries)


def _asks_for_resources(value: ReadOnlyJSON) -> bool:
    resources = value.get("resources")
    return (
        isinstance(resources, Mapping)
        and bool(resources.keys() & {"limits", "requests", "claims"})
        and "accessModes" not in value
    )
