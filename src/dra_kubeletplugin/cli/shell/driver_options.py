"""Flags for the options that a driver defines. The driver is loaded only if the command line contains such a flag."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...base.text import did_you_mean
from ...driver import Driver, declared, load_driver, read_options
from ...errors import DriverError, SettingsError, printable
from .options import add_option
from .parsing import Parser

S = TypeVar("S")
_SIMILARITY = 0.8  # similarity from which an unknown flag counts as a misspelt flag of this package
_DEST = "own "  # prefix that no other argument uses


def add_own_options(parser: Parser, drivers: Sequence[type[Driver]]) -> None:
    """Adds a group of flags for each driver. A flag that several drivers define is added once.

    Raises :class:`SettingsError` if a flag is a switch for one driver and has a value for another.
    """
    for driver in drivers:
        group = None
        for f in declared(driver):
            flag, switch = f.metadata["flag"], f.metadata["holds"](False)
            known = parser.known(flag)
            if known is not None:
                if (known.nargs == 0) is not switch:
                    raise SettingsError(
                        f"{flag} needs a value for one of these drivers and none for another: set environment variables instead"
                    )
                continue
            group = group or parser.add_argument_group(
                f"options of {driver.__name__}",
                "defined by the driver; each can also be set with its environment variable",
            )
            add_option(group, f, _DEST + f.name)


def given_own(args: argparse.Namespace, driver: type[Driver]) -> dict[str, Any]:
    """Returns a driver's options from the command line, by name."""
    known = vars(args)
    return {f.name: known[_DEST + f.name] for f in declared(driver) if known.get(_DEST + f.name) is not None}


def add_flags_of(
    parser: Parser, targets: Sequence[str], unknown: Sequence[str], *, certain: bool = True
) -> dict[str, type[Driver]]:
    """Adds the flags of drivers and returns the drivers by target; each is loaded once.

    Args:
        parser: the parser to which the flags are added.
        targets: drivers in the form of the command line, such as a file.
        unknown: flags of the command line that a driver may define; if empty, only the help needs the flags.
        certain: whether all targets are drivers. Otherwise some may be values of flags, and at least one must be a driver.

    Raises :class:`DriverError` if a driver cannot be loaded.
    """
    loaded: dict[str, type[Driver]] = {}
    try:
        loaded = _loaded(targets, certain=certain)
        add_own_options(parser, list(loaded.values()))
    except DriverError as e:
        if not unknown:
            parser.add_argument_group("options of the driver", f"cannot be listed: {printable(e)}".replace("%", "%%"))
        # If a flag is misspelt, the parser reports it; otherwise the driver's error is raised.
        elif not any(did_you_mean(flag, parser.flags, _SIMILARITY) for flag in unknown):
            raise
    return loaded


def _loaded(targets: Sequence[str], *, certain: bool) -> dict[str, type[Driver]]:
    """Loads drivers; see :func:`add_flags_of`. Raises :class:`DriverError`."""
    loaded: dict[str, type[Driver]] = {}
    errors: list[DriverError] = []
    for target in targets:
        try:
            loaded[target] = load_driver(target)
        except DriverError as e:
            errors.append(e)
    if errors and (certain or not loaded):
        raise errors[0]
    return loaded


def load_options(settings: Callable[[], S], driver: type[Driver], own: Mapping[str, Any]) -> tuple[S, object]:
    """Returns the settings and the driver's options. Raises :class:`SettingsError` with all their faults."""
    try:
        found = settings()
    except SettingsError as e:
        faults = [*e.faults]
        try:
            read_options(driver, own)
        except SettingsError as of_driver:
            faults += of_driver.faults
        raise SettingsError(*faults) from None
    return found, read_options(driver, own)


def variables(drivers: Sequence[type[Driver]]) -> Iterator[str]:
    """Yields the names of the drivers' environment variables."""
    return (f.metadata["env"] for driver in drivers for f in declared(driver))
