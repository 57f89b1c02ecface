"""Finds a driver class: in a file, in the folder of a package, or by ``module:Class``."""

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
from ..errors import DriverError, is_a
from .class_validation import called
from .contract import Driver

T = TypeVar("T")
_importing: ContextVar[bool] = ContextVar("importing", default=False)


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
        module = _from_file(path) if path.suffix == ".py" or "/" in head else _from_name(head, target)
    if class_name:
        found = getattr(module, class_name, None)
        if not (inspect.isclass(found) and issubclass(found, Driver)):
            hint = did_you_mean(class_name, [n for n, c in vars(module).items() if _is_driver(c)])
            raise DriverError(f"{target}: {class_name} is no subclass of Driver in {head}{hint}")
        return found
    classes = [c for c in vars(module).values() if _is_driver(c) and c.__module__ == module.__name__]
    if len(classes) > 1:
        names = " or ".join(f"{head}:{c.__name__}" for c in classes)
        raise DriverError(f"{target} has {len(classes)} subclasses of Driver: name one, {names}")
    if not classes:
        raise DriverError(f"{target} defines no subclass of Driver{_instead(module, head)}")
    return classes[0]


def _is_driver(value: object) -> TypeGuard[type[Driver]]:
    return inspect.isclass(value) and issubclass(value, Driver) and value is not Driver


def _instead(module: ModuleType, head: str) -> str:
    """What the author may have meant, in a file without a driver."""
    for name, value in vars(module).items():
        if _is_driver(value):
            return f": it imports one, {head}:{name}"
        if (
            inspect.isclass(value)
            and value.__module__ == module.__name__
            and (hasattr(value, "devices") or hasattr(value, "prepare"))
        ):
            return f": write class {name}(Driver)"
    return ": write one, class Name(Driver)"


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
        there = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, there, 0.75)
        raise DriverError(f"{path} is not a file: give a driver's file, its package's folder, or module:Class{hint}")
    if (names := _names_in_package(path)) is not None:
        return _from_package(path, *names)
    name = re.sub(r"\W", "_", f"driver_{path.parent.name}_{path.stem}")  # with a dot it would be in a package
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DriverError(f"{path} is no file of Python's: give a driver's file, its package's folder, or module:Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importable(path.parent):
            _imported(path, functools.partial(spec.loader.exec_module, module))
    except BaseException:
        del sys.modules[name]  # half a module is none
        raise
    return module


def _imported(what: str | Path, load: Callable[[], T]) -> T:
    """What ``load`` imports from a file or a module; meanwhile :func:`importing` is true."""
    token = _importing.set(True)
    try:
        return called(f"importing {what}", load, functools.partial(_hint, what))
    finally:
        _importing.reset(token)


def importing() -> bool:
    """Whether a driver's file is being imported: it is not the one to be run then."""
    return _importing.get()


def _hint(what: str | Path, e: BaseException) -> str:
    """What helps where a driver cannot be imported."""
    if is_a(e, ModuleNotFoundError) and e.name:
        return f": install it in the Python that runs this, {sys.executable}, and name it in pyproject.toml"
    if isinstance(what, Path) and is_a(e, ImportError) and "no known parent package" in str(e):
        folder = what.absolute().parent
        if (folder / "__init__.py").is_file():
            return f": rename {folder}, no package can have this name"
        return f": put an empty __init__.py into {folder}, which makes it a package"
    return ""


def _names_in_package(path: Path) -> tuple[Path, list[str]] | None:
    """The folder above the outermost package of a file, and its names from there; None where no import could have these names.

    Links are not followed: where a mounted ConfigMap, or a build tool, keeps a file is nothing that its author named.
    """
    names = [] if path.name == "__init__.py" else [path.stem]
    above = Path(os.path.abspath(path)).parent  # noqa: PTH100 - links are not to be followed
    if not (above / "__init__.py").is_file():
        return None
    while above.name and (above / "__init__.py").is_file():
        names.insert(0, above.name)
        above = above.parent
    return None if not names or any("." in n for n in names) or (above / "__init__.py").is_file() else (above, names)


def _from_package(path: Path, above: Path, names: Sequence[str]) -> ModuleType:
    """Under its name in the package, so that it can import what is beside it."""
    if where := _taken(above / names[0], path):
        raise DriverError(f"{path}: Python has another module {names[0]} already ({where}): rename this package")
    with _importable(above):
        return _imported(path, functools.partial(importlib.import_module, ".".join(names)))


def _taken(package: Path, file: Path) -> str:
    """Where there is another module of the name of a ``package``, imported or not: whoever imports that must not get this one.

    An installed copy of the same package, which has a module like ``file`` in its place, is no other.
    """
    loaded = sys.modules.get(package.name)
    if loaded is not None or package.name in sys.stdlib_module_names:
        is_it = _is_in(getattr(loaded, "__path__", ()), package)
        return "" if is_it else getattr(loaded, "__file__", None) or "Python itself"
    spec = importlib.util.find_spec(package.name)
    if spec is None or spec.origin is None:  # only a folder
        return ""
    within = Path(os.path.abspath(file)).relative_to(package)  # noqa: PTH100 - as above
    places = spec.submodule_search_locations or ()
    is_it = _is_in(places, package) or any((Path(entry) / within).is_file() for entry in places)
    return "" if is_it else spec.origin


def _is_in(places: Iterable[str], folder: Path) -> bool:
    return any(Path(entry).resolve() == folder.resolve() for entry in places)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    importlib.invalidate_caches()  # what is there may be newer than what Python has seen of the folder
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _from_name(name: str, target: str) -> ModuleType:
    package, _, last = name.rpartition(".")
    if not _is_there(name):
        known = _modules_in(package)
        hint = did_you_mean(name, [f"{package}.{n}" if package else n for n in known if n != last], 0.8)
        raise DriverError(f"{target}: no module {name}: install it, or give a path to a .py file{hint}")
    return _imported(name, functools.partial(importlib.import_module, name))


def _is_there(name: str) -> bool:
    """Whether there is a module to import; the packages above it are imported for that. Raises :class:`DriverError` where one fails."""
    package, _, last = name.rpartition(".")
    if not last or (package and not _is_there(package)):
        return False
    if package:
        above = _imported(package, functools.partial(importlib.import_module, package))
        if not hasattr(above, "__path__"):
            return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):  # no name of a module, or one that was made by hand
        return name in sys.modules


def _modules_in(package: str) -> list[str]:
    """Names of the modules in a package that was imported, or of all that are in none."""
    where = getattr(sys.modules.get(package), "__path__", ()) if package else None
    return [m.name for m in pkgutil.iter_modules(where)]
