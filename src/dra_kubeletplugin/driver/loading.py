"""Finds a driver class: in a file, or by ``module:Class``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from ..errors import DriverError
from .contract import Driver
from .making import called


def load_driver(target: str) -> type[Driver]:
    """The driver class that ``target`` names: ``path/to/driver.py``, ``path/to/driver.py:Class`` or ``module:Class``.

    Raises :class:`DriverError` with what was looked for and what was found.
    """
    head, colon, class_name = target.rpartition(":")
    if not colon:
        head, class_name = target, ""
    path = Path(head)
    if path.is_dir() and (path / "driver.py").is_file():
        path = path / "driver.py"
    module = _from_file(path) if path.suffix == ".py" else _from_name(head, target)
    if class_name:
        found = getattr(module, class_name, None)
        if not (inspect.isclass(found) and issubclass(found, Driver)):
            raise DriverError(f"{target}: {class_name} is no subclass of Driver in {head}")
        return found
    classes = [
        c
        for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, Driver) and c is not Driver and c.__module__ == module.__name__
    ]
    if len(classes) != 1:
        names = ", ".join(c.__name__ for c in classes) or "none"
        raise DriverError(f"{target} has {len(classes)} subclasses of Driver ({names}): name one as {head}:Class")
    return classes[0]


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DriverError(f"{path} is not a file: give a driver's .py file or module:Class")
    name = "driver_" + path.parent.name.replace("-", "_") + "_" + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        called(f"importing {path}", functools.partial(spec.loader.exec_module, module))
    except BaseException:
        del sys.modules[name]  # half a module is none
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def _from_name(name: str, target: str) -> ModuleType:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        found = None  # no such package above it, or no name of a module at all
    if found is None:
        raise DriverError(f"{target}: no module {name}: install it, or give a path to a .py file")
    return called(f"importing {name}", functools.partial(importlib.import_module, name))
