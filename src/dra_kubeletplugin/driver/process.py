"""The arguments of :meth:`Claim.start_process`, with their validation."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DriverError, printable, shown

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SECONDS = 600.0
Ready = Callable[[], Awaitable[bool] | bool]


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """A process of a claim, see :meth:`Claim.start_process`. ``devices`` are pool and name of each device that needs it.

    Raises :class:`DriverError` if an argument is invalid.
    """

    name: str
    argv: Sequence[str | Path]
    env: Mapping[str, str]
    cwd: str | Path
    ready: Ready | None
    ready_timeout: float
    stop: Sequence[str | Path]
    stop_timeout: float
    devices: Sequence[tuple[str, str]]

    def __post_init__(self) -> None:
        call = self.call
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise DriverError(
                f"{call}: the name must have at most 40 lower case letters, digits and '-', such as 'mps'"
            )
        if self.ready is not None and not callable(self.ready):
            raise DriverError(f"{call}: ready is {shown(self.ready)}, it must be a function that returns True or False")
        for option, seconds in (("ready_timeout", self.ready_timeout), ("stop_timeout", self.stop_timeout)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _MAX_SECONDS:
                raise DriverError(
                    f"{call}: {option} is {shown(seconds)}, it must be above 0 and at most {_MAX_SECONDS:g} seconds"
                )
        cwd = str(self.cwd) if isinstance(self.cwd, Path) else self.cwd
        if not _is_text(cwd) or not cwd.startswith("/"):
            raise DriverError(f"{call}: cwd is {shown(cwd)}, it must be an absolute path")
        for key, value in self.env.items():
            if not isinstance(key, str) or not _VARIABLE.fullmatch(key) or not _is_text(value):
                raise DriverError(
                    f"{call}: env contains {printable(key)}={shown(value)}, which is not a variable with a text value"
                )
        # Of a subclass of str, which a record cannot have, only the text is kept.
        object.__setattr__(self, "name", _plain(self.name))
        object.__setattr__(self, "cwd", _plain(cwd))
        object.__setattr__(self, "env", {_plain(key): _plain(value) for key, value in self.env.items()})
        object.__setattr__(self, "argv", _words(call, "argv", self.argv))
        object.__setattr__(self, "stop", _words(call, "stop", self.stop, may_be_empty=True))

    @property
    def call(self) -> str:
        return f"claim.start_process({shown(self.name)})"


def _words(call: str, option: str, words: Sequence[str | Path], *, may_be_empty: bool = False) -> tuple[str, ...]:
    if isinstance(words, str) or not isinstance(words, Sequence) or not (words or may_be_empty):
        raise DriverError(f"{call}: {option} is {shown(words)}, it must be a list: the program and its arguments")
    texts = [str(w) if isinstance(w, Path) else w for w in words]
    if wrong := next((w for w in texts if not _is_text(w)), None):
        raise DriverError(f"{call}: {option} contains {shown(wrong)}, it must contain text")
    return tuple(map(_plain, texts))


def _plain(text: str) -> str:
    return str.__str__(text)


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
