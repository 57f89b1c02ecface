"""Loads settings from flags, environment and defaults."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import Field
from typing import Any, TypeVar, overload

from ...errors import SettingsError
from .node import Settings
from .values import OptionFault

S = TypeVar("S", bound=Settings)


@overload
def load(given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings: ...


@overload
def load(given: Mapping[str, Any] | None, environ: Mapping[str, str] | None, kind: type[S]) -> S: ...


def load(
    given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, kind: type[Settings] = Settings
) -> Settings:
    """Loads settings: a flag wins over the environment, which wins over the default.

    Args:
        given: values of flags by field name; None for a flag that is not set.
        environ: environment; None for the process's own.
        kind: the settings class of the role.

    Raises :class:`SettingsError` with all values that cannot be parsed. :meth:`Settings.check` checks whether the settings work on
    this machine.
    """
    values, faults = values_of(kind.options(), given or {}, os.environ if environ is None else environ)
    if faults:
        raise SettingsError(*faults)
    for name in ("kubelet_root", "cdi_root", "sysfs_root", "dev_root", "proc_root"):
        if name in values:
            values[name] = values[name].absolute()
    return kind(**values)


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
