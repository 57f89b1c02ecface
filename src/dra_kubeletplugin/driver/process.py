"""The arguments of :meth:`Claim.start_process`, with their validation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..errors import DriverError, clip, kind_of, printable, shown

Ready = Callable[[], Awaitable[bool] | bool]
_Text = Annotated[str, msgspec.Meta(pattern=r"\A[^\0\ud800-\udfff]*\Z")]  # an argument of a program, in a record
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=600)]


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a claim, see :meth:`Claim.start_process`. ``devices`` are pool and name of each device that needs it."""

    name: Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?\Z")]
    argv: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]
    env: dict[Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")], _Text]
    cwd: Annotated[str, msgspec.Meta(pattern=r"\A/[^\0\ud800-\udfff]*\Z")]
    ready: Any  # a Ready, or None
    ready_timeout: _Seconds
    stop: tuple[_Text, ...]
    stop_timeout: _Seconds
    devices: list[tuple[str, str]]

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> ProcessSpec:
        """Validates the arguments. Paths, and texts of subclasses such as enums, become plain text. Raises :class:`DriverError`."""
        call = f"claim.start_process({shown(arguments['name'])})"
        ready = arguments["ready"]
        if ready is not None and not callable(ready):
            raise DriverError(f"{call}: ready is {shown(ready)}, it must be a function that returns True or False")
        plain = {name: _plain(value) for name, value in arguments.items()}
        for name, value in plain["env"].items() if isinstance(plain["env"], dict) else ():
            if not isinstance(value, str):  # the path of msgspec's error would not name the variable
                raise DriverError(f"{call}: env {printable(name)} is {kind_of(value)}: pass text, or omit the variable")
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as e:
            raise DriverError(f"{call}: {clip(e)}") from None

    @property
    def call(self) -> str:
        return f"claim.start_process({shown(self.name)})"


def _plain(value: Any) -> Any:
    """Returns paths and texts as plain text: a record cannot have another type."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
