"""Finds a driver class: in a file, or by ``module:Class``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from ..errors import DriverError
from .contract import Driver


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
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _from_name(name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise DriverError(f"{target}: no module {e.name}: install it, or give a path to a .py file") from None
