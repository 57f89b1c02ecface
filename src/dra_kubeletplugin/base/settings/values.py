"""Options as fields of a dataclass. A field has the flag, environment variable, default and parser of its option, and its audience.

A parser raises ``ValueError`` with the end of the sentence "FLAG TEXT is ...".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field
from enum import Enum, Flag, auto
from typing import Any

MAX_DURATION = 30 * 86400.0
ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class OptionFault(str):
    """A sentence about the value of one option: its flag or variable, then ``problem``. ``env`` is the option's variable."""

    __slots__ = ("env", "problem")
    env: str
    problem: str

    @classmethod
    def of(cls, source: str, env: str, problem: str) -> OptionFault:
        fault = cls(f"{source} {problem}")
        fault.env, fault.problem = env, problem
        return fault


class Audience(Flag):
    """The processes to which an option applies."""

    NODE = auto()
    CONTROLLER = auto()
    WEBHOOK = auto()
    ROLES = NODE | CONTROLLER
    ALL = NODE | CONTROLLER | WEBHOOK


def option(
    env: str,
    default: Any,
    help: str,
    parse: Callable[[str], Any] = str,
    *,
    to: Audience = Audience.NODE,
    flag: str = "",
    **more: Any,
) -> Any:
    """Returns a field. The flag's name follows from the variable's, unless ``flag`` is set."""
    flag = flag or f"--{env.lower().replace('_', '-')}"
    return field(default=default, metadata={"flag": flag, "env": env, "help": help, "parse": parse, "to": to, **more})


def duration(env: str, default: float, help: str, least: float = 0.1, *, to: Audience = Audience.NODE) -> Any:
    """Returns a field for a duration in seconds, at least ``least``. This minimum is below useful values, so that tests can be fast."""
    return option(env, default, help, read_seconds, to=to, least=least)


def values_of(
    options: Iterable[Field[Any]], given: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[OptionFault]]:
    """Returns the values that are set, by name, and a sentence for each value that cannot be parsed."""
    values: dict[str, Any] = {}
    faults: list[OptionFault] = []
    for f in options:
        raw = given.get(f.name)
        source = f.metadata["flag"]
        if raw is None and environ.get(f.metadata["env"]):
            raw, source = environ[f.metadata["env"]], f.metadata["env"]
        if raw is None:
            continue
        try:
            if isinstance(raw, str):
                _check_utf8(raw)
            values[f.name] = f.metadata["parse"](raw) if isinstance(raw, str) else raw
        except ValueError as e:
            faults.append(OptionFault.of(source, f.metadata["env"], f"{raw!r} is {e}"))
    return values, faults


def _check_utf8(text: str) -> None:
    """Raises ``ValueError`` for bytes that are not UTF-8, which the API server, gRPC and the records reject."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("not valid UTF-8") from None


def as_text(value: object) -> str:
    """Formats a value as it is written in a flag or an environment variable."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value.value if isinstance(value, Enum) else value)


def read_seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)?", text, re.ASCII)
    if not match:
        raise ValueError("not a duration; write it like 500ms, 45s, 5m or 1h")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(filter(None, allowed))}")
        return text

    return parse


def read_flag(text: str) -> bool:
    if text.lower() in ON:
        return True
    if text.lower() in OFF:
        return False
    raise ValueError("neither 1 nor 0")


def read_count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise ValueError("not a number from 1 to 9999")
    return int(text)


def read_address(text: str) -> str:
    match = re.fullmatch(r"(?:\[[0-9a-fA-F:]+\]|[^:\s]*):(\d{1,5})", text, re.ASCII)
    if text and (not match or int(match[1]) > 65535):
        raise ValueError("not HOST:PORT or :PORT")
    return text
