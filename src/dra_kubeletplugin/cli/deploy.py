"""``dra deploy``: a driver's manifests from its values."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from ..deploying.source import SourceError, load
from ..deploying.writing import values_of, write_driver, write_shared
from ..errors import SettingsError, describe, printable


def deploy(args: argparse.Namespace) -> int:
    """Raises :class:`SettingsError` with what is wrong with the values, or cannot be read or written."""
    if bool(args.values) == bool(args.shared):
        raise SettingsError("give VALUES, a driver's values.yaml, or --shared FOLDER")
    source = load()
    try:
        if args.shared:
            write_shared(source, Path(args.shared))
        else:
            first = Path(args.values)
            paths = [first / "values.yaml" if first.is_dir() else first, *map(Path, args.above)]
            write_driver(source, values_of(source, paths), Path(args.out or paths[0].parent), args.base)
    except (SourceError, yaml.YAMLError) as e:
        raise SettingsError(printable(e)) from None
    except (OSError, UnicodeError) as e:
        raise SettingsError(f"the manifests cannot be rendered: {describe(e)}") from None
    return 0
