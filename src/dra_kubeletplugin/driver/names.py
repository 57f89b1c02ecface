"""Names in an author's class that are nearly the framework's: a method that is misspelt is never called, and nobody would say so."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping

from ..errors import DriverError, printable
from .config import Config
from .contract import Driver

_SET = ("host", "settings", "log", "role", "gates_off")  # by the framework, in every driver
_CALLED_BY_AUTHOR = ("changed", "update_metadata", "attach", "config_kinds")
_DATA = ("name", "config", "unhealthy_taint", "metadata", "subsystems")
_EITHER = {"devices": "pools", "pools": "devices"}  # who writes the one may use the other's name for what he likes
_OF_CONFIG = ("KIND", "API_VERSION", "OLDER", "LAYERED", "check", "convert_from")
_NEAR = 0.8


def check_names(cls: type[Driver], called: Mapping[str, tuple[str, ...]]) -> None:
    """Raises :class:`DriverError` for a name that is nearly one of ``called`` (with their arguments) or of what a class sets, and
    for names that are not the author's to set."""
    given = dict(_written(cls, Driver))
    for name in _SET:
        if name in given:
            raise DriverError(f"{cls.__name__}.{name} is set by the framework: take it out of the class")
    for name in _CALLED_BY_AUTHOR:
        if name in given:
            raise DriverError(f"{cls.__name__}.{name} is the framework's, for the driver to call: name yours otherwise")
    open_names = [n for n in (*called, *_DATA) if n not in given and _EITHER.get(n) not in given]
    for name, value in given.items():
        if hasattr(Driver, name):
            continue
        near = _near(name, open_names)
        if near in called and _callable_with(value, called[near]):
            raise DriverError(
                f"{cls.__name__}.{name}() is never called, did you mean `{near}`? Begin the name of a method of your own with _"
            )
        if near in _DATA and not callable(getattr(value, "__get__", None)):
            raise DriverError(
                f"{cls.__name__}.{name} is read by nobody, did you mean `{near}`? Begin a name of your own with _"
            )


def near_config_name(kind: type[Config], name: str) -> str:
    """What of :class:`Config` an author may have meant by an attribute ``name``; empty where nothing is near."""
    return _near(name, [n for n in _OF_CONFIG if n not in vars(kind)])


def check_config_names(kind: type[Config]) -> None:
    """Raises :class:`DriverError` for a method of ``kind`` whose name is nearly one that is called."""
    for name, value in _written(kind, Config):
        if not hasattr(Config, name) and (inspect.isroutine(value) or isinstance(value, classmethod)):
            near = near_config_name(kind, name)
            if near in {"check", "convert_from"}:
                raise DriverError(f"{kind.__name__}.{name}() is never called, did you mean `{near}`?")


def _written(cls: type, base: type) -> Iterator[tuple[str, object]]:
    """Public attributes of a class and of those between it and ``base``."""
    for one in cls.__mro__:
        if one is base:
            return
        for name, value in vars(one).items():
            if not name.startswith("_"):
                yield printable(name), value


def _near(name: str, known: list[str]) -> str:
    """The known name that is meant, also in another style of writing."""
    plain = {_plain(n): n for n in known if n[0].lower() == name[0].lower()}
    if not plain:
        return ""
    import difflib  # for the few names of an author's own that begin alike

    found = difflib.get_close_matches(_plain(name), list(plain), 1, _NEAR)
    return plain[found[0]] if found else ""


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _callable_with(value: object, arguments: tuple[str, ...]) -> bool:
    """Whether a method could be called as the framework would: another one is the author's own."""
    function: Callable[..., object] | None = getattr(value, "__func__", value) if callable(value) else None
    if function is None or isinstance(value, type):
        return False
    given = arguments if isinstance(value, staticmethod) else ("self", *arguments)
    try:
        inspect.signature(function).bind(*given)
    except (TypeError, ValueError):
        return False
    return True
