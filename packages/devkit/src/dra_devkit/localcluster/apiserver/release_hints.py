"""Finds the Kubernetes release and the feature gates with which an object is valid, if it is not valid now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import SettingsError

from ...kubernetes_releases import RELEASES, Features, Stage, gate_phrase, gates, stage

IsValid = Callable[[JSON, Features], bool]


def release_hint(document: JSON, features: Features, is_valid: IsValid, api_versions: Sequence[str] = ()) -> str:
    """Returns a sentence with the first such release; empty if the object is never valid.

    The order is: gates of the same release, other releases, their gates. Unless gates of the same release are enough, the sentence
    ends with another version of the kind that the same release serves.

    Args:
        is_valid: whether a release with its gates accepts the object.
        api_versions: the values of ``apiVersion`` with which the kind is known.
    """
    if gates_needed := _needed(document, features, is_valid):
        return _valid_in(features.release, gates_needed)
    other_version = _other_version(document, features, is_valid, api_versions)
    return "; ".join(filter(None, (_other_release(document, features, is_valid), other_version)))


def _other_release(document: JSON, features: Features, is_valid: IsValid) -> str:
    others = sorted(RELEASES, key=lambda r: abs(RELEASES.index(r) - RELEASES.index(features.release)))[1:]
    defaults = [Features.of(release, environment=False) for release in others]
    for start in defaults:
        if is_valid(document, start):
            return _valid_in(start.release, [])
    for start in defaults:
        if gates_needed := _needed(document, start, is_valid):
            return _valid_in(start.release, gates_needed)
    return ""


def _other_version(document: JSON, features: Features, is_valid: IsValid, api_versions: Sequence[str]) -> str:
    for api_version in api_versions:
        other, text = {**document, "apiVersion": api_version}, f"in Kubernetes {features.release} use {api_version}"
        if is_valid(other, features):
            return text
        if gates_needed := _needed(other, features, is_valid):
            return f"{text} with {_listed(gates_needed, features.release)}"
    return ""


def _needed(document: JSON, start: Features, is_valid: IsValid) -> list[str]:
    """Returns the fewest gates that make the object valid in a release; empty if no gates do."""
    wanted = [g for g in gates() if stage(g, start.release) is not Stage.ABSENT and g not in start.gates]
    if (found := _with(start, wanted)) is None or not is_valid(document, found):
        return []
    for gate in reversed(wanted):  # in the table, a gate comes after the gates that it needs
        rest = [g for g in wanted if g != gate]
        if (fewer := _with(start, rest)) is not None and is_valid(document, fewer):
            wanted = rest
    return wanted


def _valid_in(release: str, wanted: list[str]) -> str:
    return f"it is valid in Kubernetes {release}{f' with {_listed(wanted, release)}' if wanted else ''}"


def _with(start: Features, on: list[str]) -> Features | None:
    """Returns the features with more gates on; None if a gate needs another gate."""
    switched = dict.fromkeys(start.gates, True) | dict.fromkeys(on, True)
    try:
        return Features.of(start.release, switched, environment=False, implemented=False)
    except SettingsError:
        return None


def _listed(names: list[str], release: str) -> str:
    """Returns the gates with their defaults. Gates with the same default share its clause."""
    by_default: dict[str, list[str]] = {}
    for name in names:
        by_default.setdefault(gate_phrase(name, release).removeprefix(name), []).append(name)
    parts = []
    for clause, of_clause in by_default.items():
        if len(of_clause) == 1:
            parts.append(f"the feature gate {of_clause[0]}{clause}")
        else:
            parts.append(f"the feature gates {' and '.join(of_clause)}{clause.replace(' is ', ' are ')}")
    return ", and ".join(parts)
