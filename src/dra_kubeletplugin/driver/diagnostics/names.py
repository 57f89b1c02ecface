"""Finds misspelt names in an author's class. The framework would never call a misspelt method, and no error would show it."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping

from ...errors import DriverError, printable
from ..config.model import Config
from ..contract import Driver

SET = ("host", "settings", "log", "role", "gates_off")
"""Attributes that the framework sets in every driver."""
_DATA = ("name", "config", "options", "unhealthy_taint", "metadata", "privileged", "processes", "subsystems")
_EITHER = {
    "devices": "pools",
    "pools": "devices",
}  # a driver that implements one of them may use the other name for itself
_OF_CONFIG = ("KIND", "API_VERSION", "OLDER", "DEVICES", "check", "convert_from")
# Names that other libraries use for the method `check`. The framework never calls methods with these names.
_SYNONYMS = {"validate": "check", "verify": "check"}
_NEAR = 0.8
_FORMS = ("ed", "ing")  # endings: prepared() and starting() are not misspelt
_WORDS = frozenset({"healthy"})  # more names that are not misspelt


def check_names(cls: type[Driver], called: Mapping[str, tuple[str, ...]]) -> None:
    """Rejects names in a driver's class that are misspelt or reserved.

    Args:
        cls: the driver's class.
        called: the methods that the framework calls, with their arguments.

    Raises:
        DriverError: a name is similar to one in ``called`` or to an attribute that a class sets, or only the framework sets it.
    """
    given = dict(_written(cls, Driver))
    for name in SET:
        if name in given:
            raise DriverError(f"{cls.__name__}.{name} is set by the framework: remove it from the class")
    for name in given:
        if name in vars(Driver) and name not in (*called, *_DATA):
            raise DriverError(f"{cls.__name__}.{name} is a method of the framework that the driver calls: rename yours")
    open_names = [n for n in (*called, *_DATA) if n not in given and _EITHER.get(n) not in given]
    for name, value in _written(cls, Driver, of_base=True):
        if hasattr(Driver, name):
            continue
        near = _near(name, open_names)
        if not near or _is_used(name, cls):
            continue
        if near in called and _callable_with(value, called[near]):
            raise DriverError(
                f"{cls.__name__}.{name}() is never called, did you mean `{near}`? Begin the name of a method of your own with _"
            )
        if near in _DATA and not callable(getattr(value, "__get__", None)):
            raise DriverError(
                f"{cls.__name__}.{name} is never used, did you mean `{near}`? Begin a name of your own with _"
            )


def near_config_name(kind: type[Config], name: str) -> str:
    """Returns the attribute of :class:`Config` that an author probably meant by ``name``; empty if none is similar."""
    return _near(_SYNONYMS.get(name, name), [n for n in _OF_CONFIG if n not in vars(kind)])


def check_config_names(kind: type[Config]) -> None:
    """Raises :class:`DriverError` if a method of ``kind`` has nearly the name of a method that the framework calls."""
    for name, value in _written(kind, Config, of_base=True):
        if not hasattr(Config, name) and (inspect.isroutine(value) or isinstance(value, classmethod)):
            near = near_config_name(kind, name)
            if near in {"check", "convert_from"} and not _is_used(name, kind):
                raise DriverError(f"{kind.__name__}.{name}() is never called, did you mean `{near}`?")


def _written(cls: type, base: type, *, of_base: bool = False) -> Iterator[tuple[str, object]]:
    """Yields public attributes of a class and of its bases up to ``base``. With ``of_base``, only of subclasses of ``base``."""
    for one in cls.__mro__:
        if one is base:
            return
        if of_base and not issubclass(one, base):
            continue
        for name, value in vars(one).items():
            if not name.startswith("_"):
                yield printable(name), value


def _is_used(name: str, cls: type) -> bool:
    """Whether the author's own code uses the name in another place, so that the name is intended."""
    for one in cls.__mro__:
        if one in {Driver, Config}:
            break
        try:
            tree = ast.parse(inspect.getsource(sys.modules[one.__module__]))
        except (OSError, TypeError, KeyError):  # the source cannot be read, so the name may be used there
            return True
        if any(name in _names_read(node) for node in ast.walk(tree)):
            return True
    return False


def _names_read(node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name, ctx=ast.Load()):
            return [name]
        case ast.Call():  # as in getattr(self, "name")
            return [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return []


def _near(name: str, known: list[str]) -> str:
    """Returns the known name that is similar, also if ``name`` is in camelCase; empty if ``name`` is a form such as ``prepared``."""
    plain = {_plain(n): n for n in known if n[0].lower() == name[0].lower()}
    if name in _WORDS or any(_plain(name) in {stem.removesuffix("e") + end for end in _FORMS} for stem in plain):
        return ""
    if not plain:
        return ""
    import difflib  # imported here, because few authors' classes need it

    found = difflib.get_close_matches(_plain(name), list(plain), 1, _NEAR)
    return plain[found[0]] if found else ""


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _callable_with(value: object, arguments: tuple[str, ...]) -> bool:
    """Whether the framework could call this method with ``arguments``; if not, the method is a helper of the author."""
    function: object = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    if not callable(function) or isinstance(value, type):
        return False
    given = arguments if isinstance(value, staticmethod) else ("self", *arguments)
    try:
        inspect.signature(function).bind(*given)
    except (TypeError, ValueError):  # ValueError: the signature is unknown
        return False
    return True
