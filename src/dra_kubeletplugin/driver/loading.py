"""Loads a driver class from a file, from the folder of a package, or from ``module:Class``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TypeGuard, TypeVar

from ..base.text import did_you_mean
from ..errors import DriverError
from .contract import Driver
from .diagnostics.author_errors import author_code

T = TypeVar("T")
_importing: ContextVar[bool] = ContextVar("importing", default=False)


def load_driver(target: str) -> type[Driver]:
    """Imports and returns the driver class that ``target`` names. The driver need not be installed.

    Args:
        target: a file, the folder of a package, or a module. Append ``:Class`` if it contains several drivers. A folder contains its
            driver in ``driver.py``, else in ``__init__.py``, else in its only ``src/*/driver.py``, as ``dra new`` creates it.

    Raises:
        DriverError: there is no such driver, or several; the message contains the name that was searched and the names that exist.
    """
    head, colon, class_name = target.rpartition(":")
    if not colon:
        head, class_name = target, ""
    path = Path(head)
    if head and path.is_dir():
        module = _from_folder(path)
    else:
        module = _from_file(path) if path.suffix == ".py" or "/" in head else _from_name(head, target)
    if class_name:
        found = getattr(module, class_name, None)
        if not (inspect.isclass(found) and issubclass(found, Driver)):
            hint = did_you_mean(class_name, [n for n, c in vars(module).items() if _is_driver(c)])
            raise DriverError(f"{target}: {class_name} is not a subclass of Driver in {head}{hint}")
        return found
    classes = [c for c in vars(module).values() if _is_driver(c) and c.__module__ == module.__name__]
    if len(classes) > 1:
        names = " or ".join(f"{head}:{c.__name__}" for c in classes)
        raise DriverError(f"{target} has {len(classes)} subclasses of Driver: select one with {names}")
    if not classes:
        raise DriverError(f"{target} defines no subclass of Driver{_missing_driver_hint(module, head)}")
    return classes[0]


def _is_driver(value: object) -> TypeGuard[type[Driver]]:
    return inspect.isclass(value) and issubclass(value, Driver) and value is not Driver


def _missing_driver_hint(module: ModuleType, head: str) -> str:
    """Returns a hint for a module without a driver, with the class that is probably meant."""
    for name, value in vars(module).items():
        if _is_driver(value):
            return f": it imports one, {head}:{name}"
        if (
            inspect.isclass(value)
            and value.__module__ == module.__name__
            and (hasattr(value, "devices") or hasattr(value, "prepare"))
        ):
            return f": derive it from Driver, class {name}(Driver)"
    return ": define one, class Name(Driver)"


def _from_folder(folder: Path) -> ModuleType:
    own = next((f for name in ("driver.py", "__init__.py") if (f := folder / name).is_file()), None)
    files = [own] if own else sorted(folder.glob("src/*/driver.py"))
    if not files:
        raise DriverError(
            f"{folder} has neither src/PACKAGE/driver.py nor driver.py: give a driver's file, its package's folder, or module:Class"
        )
    if len(files) > 1:
        raise DriverError(f"{folder} has {len(files)} drivers: select one of {', '.join(map(str, files))}")
    return _from_file(files[0])


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        there = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, there, 0.75)
        raise DriverError(f"{path} is not a file: give a driver's file, its package's folder, or module:Class{hint}")
    if (names := _names_in_package(path)) is not None:
        return _from_package(path, *names)
    name = re.sub(r"\W", "_", f"driver_{path.parent.name}_{path.stem}")  # a name with a dot would belong to a package
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DriverError(f"{path} is not a Python file: give a driver's file, its package's folder, or module:Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importable(path.parent):
            _imported(path, functools.partial(spec.loader.exec_module, module))
    except BaseException:
        del sys.modules[name]  # a partly imported module must not stay
        raise
    return module


def _imported(what: str | Path, load: Callable[[], T]) -> T:
    """Calls ``load``, which imports a file or a module, and returns its result. Meanwhile :func:`importing` is True."""
    token = _importing.set(True)
    try:
        with author_code(f"importing {what}", DriverError, hint=functools.partial(_hint, what)):
            return load()
    finally:
        _importing.reset(token)


def importing() -> bool:
    """Whether a driver's file is being imported, and therefore is not run as the main program."""
    return _importing.get()


def _hint(what: str | Path, e: BaseException) -> str:
    """Returns a hint for an import that failed; empty if there is none."""
    if isinstance(e, ModuleNotFoundError) and e.name:
        return f": install it in the Python that runs this, {sys.executable}, and name it in pyproject.toml"
    if isinstance(what, Path) and isinstance(e, ImportError) and "no known parent package" in str(e):
        folder = what.absolute().parent
        if (folder / "__init__.py").is_file():
            return f": rename {folder}, this is not a valid package name"
        return f": put an empty __init__.py into {folder}, which makes it a package"
    return ""


def _names_in_package(path: Path) -> tuple[Path, list[str]] | None:
    """Returns the folder above the outermost package of a file, and the parts of the module's name.

    Returns None if the file is in no package, or if a folder's name is not a valid package name. Links are not followed: a mounted
    ConfigMap or a build tool keeps the file under another name, which the author did not choose.
    """
    names = [] if path.name == "__init__.py" else [path.stem]
    above = Path(os.path.abspath(path)).parent  # noqa: PTH100 - must not follow links
    if not (above / "__init__.py").is_file():
        return None
    while above.name and (above / "__init__.py").is_file():
        names.insert(0, above.name)
        above = above.parent
    return None if not names or any("." in n for n in names) or (above / "__init__.py").is_file() else (above, names)


def _from_package(path: Path, above: Path, names: Sequence[str]) -> ModuleType:
    """Imports a file under its name in its package, so that it can import the package's other modules."""
    if where := _other_module(above / names[0], path):
        raise DriverError(
            f"{path}: Python has already imported another module {names[0]} ({where}): rename this package"
        )
    with _importable(above):
        return _imported(path, functools.partial(importlib.import_module, ".".join(names)))


def _other_module(package: Path, file: Path) -> str:
    """Returns the file of another module with the name of ``package``, imported or not; empty if there is none.

    Code that imports the other module must not get this package instead. An installed copy of this package does not count; it has a
    file at the same path within the package as ``file``.
    """
    loaded = sys.modules.get(package.name)
    if loaded is not None or package.name in sys.stdlib_module_names:
        is_it = _is_in(getattr(loaded, "__path__", ()), package)
        return "" if is_it else getattr(loaded, "__file__", None) or "Python itself"
    spec = importlib.util.find_spec(package.name)
    if spec is None or spec.origin is None:  # a folder without __init__.py
        return ""
    within = Path(os.path.abspath(file)).relative_to(package)  # noqa: PTH100 - must not follow links
    places = spec.submodule_search_locations or ()
    is_it = _is_in(places, package) or any((Path(entry) / within).is_file() for entry in places)
    return "" if is_it else spec.origin


def _is_in(places: Iterable[str], folder: Path) -> bool:
    return any(Path(entry).resolve() == folder.resolve() for entry in places)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    # Python may have cached the folder before its files were written. importlib.invalidate_caches() would load 1 MiB of modules.
    sys.path_importer_cache.pop(str(folder), None)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _from_name(name: str, target: str) -> ModuleType:
    package, _, last = name.rpartition(".")
    try:
        return _imported(name, functools.partial(importlib.import_module, name))
    except DriverError as e:
        cause = e.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if last and (not missing or not f"{name}.".startswith(f"{missing}.")):
            raise
    # A package that is missing, or that is a plain module, has no modules.
    where = getattr(sys.modules.get(package), "__path__", ()) if package else None
    known = [f"{package}.{m.name}" if package else m.name for m in pkgutil.iter_modules(where)]
    hint = did_you_mean(name, [n for n in known if n != name], 0.8)
    raise DriverError(f"{target}: no module {name}: install it, or give a path to a .py file{hint}")
