"""Flags for the options that a driver defines. The driver is loaded only if the command line contains such a flag."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...driver import Driver, declared, load_driver, read_options
from ...errors import DriverError, SettingsError, printable
from .options import option
from .parsing import Parser

S = TypeVar("S")
_DEST = "own "  # prefix that no other argument uses


def add_own_options(parser: Parser, drivers: Sequence[type[Driver]]) -> None:
    """Adds a group of flags for each driver. A flag that several drivers define is added once.

    Raises :class:`SettingsError` if a flag is a switch for one driver and has a value for another.
    """
    for driver in drivers:
        new = []
        for f in declared(driver):
            flag, is_switch = f.metadata["flag"], f.metadata["holds"](False)
            if known := parser.flags.get(flag):
                if (known.nargs == 0) is not is_switch:
                    raise SettingsError(
                        f"{flag} needs a value for one of these drivers and none for another: set environment variables instead"
                    )
                continue
            new.append(option(f, _DEST + f.name))
        if new:
            about = "defined by the driver; each can also be set with its environment variable"
            parser.add_settings(f"options of {driver.__name__}", about, new)


def given_own(args: argparse.Namespace, driver: type[Driver]) -> dict[str, Any]:
    """Returns a driver's options from the command line, by name."""
    known = vars(args)
    return {f.name: known[_DEST + f.name] for f in declared(driver) if known.get(_DEST + f.name) is not None}


def add_flags_of(parser: Parser, targets: Sequence[str], *, only_for_help: bool) -> dict[str, type[Driver]]:
    """Adds the flags of drivers and returns the drivers by target; each is loaded once.

    Args:
        parser: the parser to which the flags are added.
        targets: drivers in the form of the command line, such as a file.
        only_for_help: whether a driver that cannot be loaded is named in the help, instead of raising its error.

    Raises :class:`DriverError` if a driver cannot be loaded.
    """
    try:
        loaded = {target: load_driver(target) for target in targets}
        add_own_options(parser, list(loaded.values()))
    except DriverError as e:
        if not only_for_help:
            raise
        parser.add_argument_group("options of the driver", f"cannot be listed: {printable(e)}".replace("%", "%%"))
        return {}
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
