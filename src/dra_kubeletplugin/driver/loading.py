"""Finds a driver class: in a file, in the folder of a package, or by ``module:Class``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ..errors import DriverError
from .contract import Driver
from .making import called


def load_driver(target: str) -> type[Driver]:
    """The driver class that ``target`` names: a file, the folder of a package, or a module, each with ``:Class`` where it has several.

    A folder has its driver in ``src/PACKAGE/driver.py``, as ``dra new`` makes it, or in ``driver.py``; nothing has to be installed.
    Raises :class:`DriverError` with what was looked for and what was found.
    """
    head, colon, class_name = target.rpartition(":")
    if not colon:
        head, class_name = target, ""
    path = Path(head)
    if head and path.is_dir():
        module = _from_folder(path)
    else:
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


def _from_folder(folder: Path) -> ModuleType:
    own = next((f for name in ("driver.py", "__init__.py") if (f := folder / name).is_file()), None)
    files = [own] if own else sorted(folder.glob("src/*/driver.py"))
    if not files:
        raise DriverError(
            f"{folder} has neither src/PACKAGE/driver.py nor driver.py: give a driver's file, its package's folder, or module:Class"
        )
    if len(files) > 1:
        raise DriverError(f"{folder} has {len(files)} drivers: name one of {', '.join(map(str, files))}")
    return _from_file(files[0])


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DriverError(f"{path} is not a file: give a driver's file, its package's folder, or module:Class")
    if (path.parent / "__init__.py").is_file():
        return _from_package(path)
    name = "driver_" + path.parent.name.replace("-", "_") + "_" + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importable(path.parent):
            called(f"importing {path}", functools.partial(spec.loader.exec_module, module))
    except BaseException:
        del sys.modules[name]  # half a module is none
        raise
    return module


def _from_package(path: Path) -> ModuleType:
    """Under its name in the package, so that it can import what is beside it."""
    names = [] if path.name == "__init__.py" else [path.stem]
    above = path.resolve().parent
    while (above / "__init__.py").is_file():
        names.insert(0, above.name)
        above = above.parent
    loaded = sys.modules.get(names[0])
    if loaded is not None and not _is_in(loaded, above / names[0]):
        where = getattr(loaded, "__file__", None) or "Python itself"
        raise DriverError(f"{path}: Python has another module {names[0]} already ({where}): rename this package")
    with _importable(above):
        return called(f"importing {path}", functools.partial(importlib.import_module, ".".join(names)))


def _is_in(package: ModuleType, folder: Path) -> bool:
    return any(Path(entry).resolve() == folder for entry in getattr(package, "__path__", ()))


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    importlib.invalidate_caches()  # what is there may be newer than what Python has seen of the folder
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _from_name(name: str, target: str) -> ModuleType:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        found = None  # no such package above it, or no name of a module at all
    if found is None:
        raise DriverError(f"{target}: no module {name}: install it, or give a path to a .py file")
    return called(f"importing {name}", functools.partial(importlib.import_module, name))
