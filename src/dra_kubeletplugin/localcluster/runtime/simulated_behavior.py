"""How long a simulated container lasts, how it ends and how its probes do: from annotations of the pod, or else from what it would run.

Annotations, of which those that name a container come first::

    simulated.dra-kubeletplugin.dev/duration: 5s          # or "forever"
    simulated.dra-kubeletplugin.dev/duration.main: 500ms
    simulated.dra-kubeletplugin.dev/exit-code: "1,0"      # of the first start, and of all that follow
    simulated.dra-kubeletplugin.dev/readiness-probe: fail,pass  # the first after each start, and all that follow
    simulated.dra-kubeletplugin.dev/startup-probe, liveness-probe, post-start, pre-stop: likewise

Without them a pod whose containers are restarted for ever runs for ever, since a server is what it most likely is. Of other pods,
Jobs among them, a container lasts as long as its ``sleep`` says, for ever where it waits for ever, and a second otherwise;
it fails where its last words are ``exit 3`` or ``false``. How a probe would end nobody knows; a hook is taken to pass, as the
command is taken to run.
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
_SHORT = 1.0  # seconds
_OCCASIONS = {
    HandlerOccasion.STARTUP: "startup-probe",
    HandlerOccasion.READINESS: "readiness-probe",
    HandlerOccasion.LIVENESS: "liveness-probe",
    HandlerOccasion.POST_START: "post-start",
    HandlerOccasion.PRE_STOP: "pre-stop",
}
_HOOKS = {HandlerOccasion.POST_START, HandlerOccasion.PRE_STOP}
_ENDS = {"pass": ProbeResult.PASS, "fail": ProbeResult.FAIL}


@dataclass(frozen=True)
class Behavior:
    """``seconds`` is None for a container that ends only when it is stopped."""

    seconds: float | None
    exit_code: int = 0


def part_of(sandbox: Sandbox, container: ContainerConfig) -> Behavior:
    """Raises :class:`ContainerError` for an annotation that cannot be read."""
    duration = _annotation(sandbox.annotations, container.name, "duration")
    codes = _annotation(sandbox.annotations, container.name, "exit-code")
    seconds = _seconds(duration[1], duration[0]) if duration else _guess(sandbox, container)
    if duration is None and codes is not None and seconds is None and container.role is not Role.SIDECAR:
        seconds = _SHORT  # a code is of something that ends
    return Behavior(seconds, _code(codes[1], codes[0], container.attempt) if codes else _guessed_code(container))


def outcome_of(container: str, action: HandlerAction) -> Outcome:
    """How a probe or hook of a simulated container ends."""
    what = _OCCASIONS[action.occasion]
    found = _annotation(action.annotations, container, what)
    if found is None:
        if action.occasion in _HOOKS:
            return Outcome(ProbeResult.PASS)
        return Outcome(
            ProbeResult.NOBODY, f"nothing runs that could be probed: annotate {PREFIX}/{what}: pass, fail or fail,pass"
        )
    key, text = found
    ends = [part.strip() for part in text.split(",")]
    if not _ENDS.keys() >= set(ends):
        return Outcome(ProbeResult.ERROR, str(_wrong(key, text, "pass, fail, or several of them: fail,fail,pass")))
    return Outcome(_ENDS[ends[min(action.number, len(ends) - 1)]], f"simulated, as annotation {key} says")


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
    return sum(slept) if slept else _SHORT


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
        raise _wrong(key, text, "a duration like 500ms, 5s or 1m30s, or forever")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _code(text: str, key: str, attempt: int) -> int:
    codes = [part.strip() for part in text.split(",")]
    if not all(c.isdecimal() and int(c) <= 255 for c in codes):
        raise _wrong(key, text, 'exit codes of 0 to 255, for example "1,0"')
    return int(codes[min(attempt, len(codes) - 1)])


def _wrong(key: str, text: str, wanted: str) -> ContainerError:
    return ContainerError(f"annotation {key} is {text!r}, and must be {wanted}", "CreateContainerConfigError")


__all__ = ["PREFIX", "Behavior", "outcome_of", "part_of"]
