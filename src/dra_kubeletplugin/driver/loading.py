"""Finds a driver class: in a file, or by ``module:Class``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TypeGuard, TypeVar

from ..errors import DriverError, near
from .contract import Driver
from .making import called
from .mistakes import explained

T = TypeVar("T")
_importing: ContextVar[bool] = ContextVar("importing", default=False)


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
    is_file = path.suffix == ".py" or path.is_dir() or "/" in head
    module = _from_file(path) if is_file else _from_name(head, target)
    if class_name:
        found = getattr(module, class_name, None)
        if not (inspect.isclass(found) and issubclass(found, Driver)):
            hint = near(class_name, [n for n, c in vars(module).items() if _is_driver(c)])
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


def _from_file(path: Path) -> ModuleType:
    if path.is_dir():
        raise DriverError(f"{path} is a folder without driver.py: give the driver's .py file or module:Class")
    if not path.is_file():
        there = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise DriverError(f"{path} is not a file: give a driver's .py file or module:Class{near(path.name, there)}")
    name = "driver_" + path.parent.name.replace("-", "_") + "_" + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    running = functools.partial(spec.loader.exec_module, module)
    try:
        called(f"importing {path}", functools.partial(_loaded, running), functools.partial(_hint, path))
    except BaseException:
        del sys.modules[name]  # half a module is none
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def _loaded(load: Callable[[], T]) -> T:
    """While a driver's file is imported, :func:`importing` is true."""
    token = _importing.set(True)
    try:
        return load()
    finally:
        _importing.reset(token)


def importing() -> bool:
    """Whether a driver's file is being imported: it is not the one to be run then."""
    return _importing.get()


def _hint(path: Path, e: BaseException) -> str:
    """What helps where a file cannot be imported."""
    if isinstance(e, ModuleNotFoundError) and e.name:
        return f": install it in the Python that runs this, {sys.executable}, and name it in pyproject.toml"
    if isinstance(e, ImportError) and "no known parent package" in str(e):
        module = path.stem
        for parent in path.absolute().parents:
            if not (parent / "__init__.py").is_file():
                break
            module = f"{parent.name}.{module}"
        return f": a file is loaded alone; install its package (pip install -e .) and give {module}:Class"
    return ""


def _from_name(name: str, target: str) -> ModuleType:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        found = None  # no such package above it, or no name of a module at all
    except Exception as e:
        raise DriverError(f"importing {name.rpartition('.')[0]} raised {explained(e)}") from e
    if found is None:
        hint = near(name, _modules_beside(name), 0.7)
        raise DriverError(f"{target}: no module {name}: install it, or give a path to a .py file{hint}")
    running = functools.partial(importlib.import_module, name)
    return called(f"importing {name}", functools.partial(_loaded, running))


def _modules_beside(name: str) -> list[str]:
    """Names of the modules in the innermost package of ``name`` that there is."""
    package, _, _ = name.rpartition(".")
    while package:
        try:
            found = importlib.util.find_spec(package)
        except (ImportError, ValueError, AttributeError):
            found = None
        if found is not None:
            return [f"{package}.{m.name}" for m in pkgutil.iter_modules(found.submodule_search_locations)]
        package, _, _ = package.rpartition(".")
    tail = name.partition(".")[2]
    return [f"{m.name}.{tail}" if tail else m.name for m in pkgutil.iter_modules()]
