"""How long a simulated container lasts, and how it ends: from annotations of the pod, or else from what it would run.

Annotations, of which those that name a container come first::

    simulated.dra-kubeletplugin.dev/duration: 5s          # or "forever"
    simulated.dra-kubeletplugin.dev/duration.main: 500ms
    simulated.dra-kubeletplugin.dev/exit-code: "1,0"      # of the first start, and of all that follow

Without them a pod whose containers are restarted for ever runs for ever, since a server is what it most likely is. Of other pods,
Jobs among them, a container lasts as long as its ``sleep`` says, for ever where it waits for ever, and a second otherwise;
it fails where its last words are ``exit 3`` or ``false``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .interface import ContainerConfig, ContainerError, Role, Sandbox

PREFIX = "simulated.dra-kubeletplugin.dev"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SLEEP = re.compile(r"\bsleep\s+(\d+(?:\.\d+)?)([smhd]?)\b")
_FOREVER = re.compile(r"\bsleep\s+inf|\btail\s+-[fF]|\bwhile\b|\buntil\b|(?:^|[\s/])pause(?:\s|$)")
_EXIT = re.compile(r"(?:^|[\s;&|])exit\s+(\d{1,3})\s*;?\s*$")
_FALSE = re.compile(r"(?:^|[\s;&|/])false\s*;?\s*$")
_SHORT = 1.0  # seconds


@dataclass(frozen=True)
class Part:
    """``seconds`` is None for a container that ends only when it is stopped."""

    seconds: float | None
    exit_code: int = 0


def part_of(sandbox: Sandbox, container: ContainerConfig) -> Part:
    """Raises :class:`ContainerError` for an annotation that cannot be read."""
    duration = _annotation(sandbox, container, "duration")
    codes = _annotation(sandbox, container, "exit-code")
    seconds = _seconds(duration[1], duration[0]) if duration else _guess(sandbox, container)
    if duration is None and codes is not None and seconds is None and container.role is not Role.SIDECAR:
        seconds = _SHORT  # a code is of something that ends
    return Part(seconds, _code(codes[1], codes[0], container.attempt) if codes else _guessed_code(container))


def _annotation(sandbox: Sandbox, container: ContainerConfig, what: str) -> tuple[str, str] | None:
    for key in (f"{PREFIX}/{what}.{container.name}", f"{PREFIX}/{what}"):
        if key in sandbox.annotations:
            return key, sandbox.annotations[key]
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


__all__ = ["PREFIX", "Part", "part_of"]
