"""Imports the public names of a package on first access, so that a program imports only the modules that it uses."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Returns the ``__getattr__`` of ``package``. ``modules`` maps each of its modules to names, separated by spaces.

    The modules themselves are found too, as if they were imported: ``dra_kubeletplugin.errors``.
    """
    packages = {module.split(".")[1] for module in modules}
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> object:
        if name in packages:
            return importlib.import_module(f".{name}", package)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(homes[name], package), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
