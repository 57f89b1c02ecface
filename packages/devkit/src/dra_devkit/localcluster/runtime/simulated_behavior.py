"""Decides how a simulated container behaves: how long it runs, its exit code and the results of its probes.

Annotations of the pod set the behavior. An annotation with a container's name overrides the same annotation without a name::

    simulated.dra-kubeletplugin.dev/duration: 5s          # or "forever"
    simulated.dra-kubeletplugin.dev/duration.main: 500ms
    simulated.dra-kubeletplugin.dev/exit-code: "1,0"      # the exit code of the first start, and that of all later starts
    simulated.dra-kubeletplugin.dev/readiness-probe: fail,pass  # the result of the first run after each start, and that of all later runs
    simulated.dra-kubeletplugin.dev/startup-probe, liveness-probe, post-start, pre-stop: likewise

Without annotations, containers of a pod with restart policy Always run forever, because such a pod is probably a
server. Containers of other pods, for example of a Job, run forever if their command waits forever. Otherwise they run
for the time of the ``sleep`` in their command, or one second. They fail if the command ends with, for example,
``exit 3`` or ``false``. A probe has no result; a hook succeeds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .interface import (
    ContainerConfig,
    ContainerError,
    HandlerAction,
    HandlerOccasion,
    Outcome,
    ProbeResult,
    Role,
    Sandbox,
)

PREFIX = "simulated.dra-kubeletplugin.dev"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SLEEP = re.compile(r"\bsleep\s+(\d+(?:\.\d+)?)([smhd]?)\b")
_FOREVER = re.compile(r"\bsleep\s+inf|\btail\s+-[fF]|\bwhile\b|\buntil\b|(?:^|[\s/])pause(?:\s|$)")
_EXIT = re.compile(r"(?:^|[\s;&|])exit\s+(\d{1,3})\s*;?\s*$")
_FALSE = re.compile(r"(?:^|[\s;&|/])false\s*;?\s*$")
_DEFAULT_DURATION = 1.0  # seconds that a container runs if its command contains no time
_OCCASIONS = {
    HandlerOccasion.STARTUP: "startup-probe",
    HandlerOccasion.READINESS: "readiness-probe",
    HandlerOccasion.LIVENESS: "liveness-probe",
    HandlerOccasion.POST_START: "post-start",
    HandlerOccasion.PRE_STOP: "pre-stop",
}
_HOOKS = {HandlerOccasion.POST_START, HandlerOccasion.PRE_STOP}
_RESULTS = {"pass": ProbeResult.PASS, "fail": ProbeResult.FAIL}


@dataclass(frozen=True)
class Behavior:
    """When and how a container ends. ``seconds`` is its running time; None if it runs until it is stopped."""

    seconds: float | None
    exit_code: int = 0


def behavior_of(sandbox: Sandbox, container: ContainerConfig) -> Behavior:
    """Returns the behavior of a container.

    Raises:
        ContainerError: an annotation is invalid.
    """
    duration = _annotation(sandbox.annotations, container.name, "duration")
    codes = _annotation(sandbox.annotations, container.name, "exit-code")
    seconds = _seconds(duration[1], duration[0]) if duration else _guess(sandbox, container)
    if duration is None and codes is not None and seconds is None and container.role is not Role.SIDECAR:
        seconds = _DEFAULT_DURATION  # an exit code implies that the container ends
    return Behavior(seconds, _code(codes[1], codes[0], container.attempt) if codes else _guessed_code(container))


def outcome_of(container: str, action: HandlerAction) -> Outcome:
    """Returns the result of a simulated container's probe or hook."""
    what = _OCCASIONS[action.occasion]
    found = _annotation(action.annotations, container, what)
    if found is None:
        if action.occasion in _HOOKS:
            return Outcome(ProbeResult.PASS)
        return Outcome(
            ProbeResult.UNDEFINED,
            f"there is no process to probe: annotate {PREFIX}/{what}: pass, fail or fail,pass",
        )
    key, text = found
    results = [part.strip() for part in text.split(",")]
    if not _RESULTS.keys() >= set(results):
        return Outcome(ProbeResult.ERROR, str(_invalid(key, text, "pass, fail, or several of them: fail,fail,pass")))
    return Outcome(_RESULTS[results[min(action.number, len(results) - 1)]], f"simulated by annotation {key}")


def _annotation(annotations: Mapping[str, str], container: str, what: str) -> tuple[str, str] | None:
    for key in (f"{PREFIX}/{what}.{container}", f"{PREFIX}/{what}"):
        if key in annotations:
            return key, annotations[key]
    return None


def _guess(sandbox: Sandbox, container: ContainerConfig) -> float | None:
    if container.role is Role.INIT:
        return 0.0
    if container.role is Role.SIDECAR or sandbox.restart_policy == "Always":
        return None
    text = _text(container)
    if _FOREVER.search(text):
        return None
    slept = [float(number) * _UNITS[unit or "s"] for number, unit in _SLEEP.findall(text)]
    return sum(slept) if slept else _DEFAULT_DURATION


def _guessed_code(container: ContainerConfig) -> int:
    text = _text(container)
    if found := _EXIT.search(text):
        return int(found[1]) % 256
    return int(bool(_FALSE.search(text)))


def _text(container: ContainerConfig) -> str:
    return " ".join([*container.command, *container.args])


def _seconds(text: str, key: str) -> float | None:
    if text == "forever":
        return None
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise _invalid(key, text, "a duration like 500ms, 5s or 1m30s, or forever")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _code(text: str, key: str, attempt: int) -> int:
    codes = [part.strip() for part in text.split(",")]
    if not all(c.isdecimal() and int(c) <= 255 for c in codes):
        raise _invalid(key, text, 'exit codes of 0 to 255, for example "1,0"')
    return int(codes[min(attempt, len(codes) - 1)])


def _invalid(key: str, text: str, wanted: str) -> ContainerError:
    return ContainerError(f"annotation {key} is {text!r}, but must be {wanted}", "CreateContainerConfigError")
