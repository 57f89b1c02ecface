"""Creates a driver from its class. Reports faults of the class at start, before a pod's event would show them."""

from __future__ import annotations

import builtins
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import msgspec

from ..base.settings import DNS_SUBDOMAIN, MAX_DRIVER_NAME
from ..base.text import did_you_mean
from ..errors import DriverError, shown
from ..resourceapi.types import Taint
from .config.model import FORMS, Config, check_default_form
from .contract import Driver, Role
from .diagnostics.author_errors import author_code, place
from .metrics import DriverMetrics
from .options import declared, read_options

_CLAIM = ("claim",)
# Methods that the framework calls, with their arguments.
_CALLED: dict[str, tuple[str, ...]] = {
    "start": (),
    "stop": (),
    "devices": (),
    "pools": (),
    "health": (),
    "checks": (),
    "recover": (),
    "prepare": _CLAIM,
    "unprepare": _CLAIM,
    "bind": _CLAIM,
    "unbind": _CLAIM,
}
_DATA = ("name", "config", "options", "unhealthy_taint", "metadata", "privileged", "processes", "subsystems")
_SET = ("host", "settings", "log", "role", "gates_off")  # attributes that the framework sets in every driver
_CALLED_OF_CONFIG = {"check": (), "convert_from": ("older",)}
_TYPES: tuple[tuple[str, Any, str], ...] = (
    ("name", str, "text such as 'fpga.example.com'"),
    ("subsystems", (list, tuple), "a list of kernel subsystems such as ('pci', 'net')"),
    ("unhealthy_taint", Taint | None, "Taint(key=..., effect=...) or None"),
    *((name, bool, "True or False") for name in ("metadata", "privileged", "processes")),
)
_TYPES_OF_CONFIG: tuple[tuple[str, Any, str], ...] = (
    ("KIND", str, "text"),
    ("API_VERSION", str, "text"),
    ("OLDER", (list, tuple), "a list of subclasses of Config"),
    ("DEVICES", Mapping, "attributes of devices, such as {'type': 'gpu'}"),
)
_DATA_OF_CONFIG = [name for name, _, _ in _TYPES_OF_CONFIG]
_NEAR = 0.85
_FORMS = ("ed", "ing", "y")  # endings of other words: prepared(), starting() and healthy() are not misspelt
_TAG = ": declare each as class Name(Config, tag=True); claims select one with the field `type`"
_CODE_ERRORS = (TypeError, NameError, AttributeError)  # errors that are bugs in the code itself, on any machine
# msgspec's messages for wrong types. Other messages are ignored: a default may have a value that a claim must not have.
_OF_TYPE = re.compile(r"Expected .*, got |Invalid enum value ")


def make(cls: type[Driver], role: Role = Role.NODE, options: object = None) -> Driver:
    """Creates a driver for one process.

    Args:
        cls: the driver's class.
        role: the role of the process.
        options: the argument ``given`` of :func:`read_options`.

    Raises:
        DriverError: :func:`check` finds a fault, or the class cannot be instantiated.
        SettingsError: an option is invalid.
    """
    check(cls, role)
    own = read_options(cls, options)
    with author_code(f"{cls.__name__}()", DriverError, hint=_hint):
        driver: Any = cls.__new__(cls)
        if own is not None:
            driver.options = own  # before __init__, which would otherwise read the class's defaults
        driver.__init__()
    taken = [name for name in _SET if name in vars(driver)]
    if own is not None and vars(driver).get("options") is not own:
        taken.append("options")
    if not isinstance(driver.metrics, DriverMetrics):
        taken.append("metrics")
    if taken:
        raise DriverError(
            f"{cls.__name__}.__init__() sets self.{taken[0]}, which the framework sets: rename your attribute"
        )
    made: Driver = driver
    return made


def _hint(e: BaseException) -> str:
    if isinstance(e, AttributeError) and e.name in _SET:
        return f": self.{e.name} is set after __init__, use it in start() or later"
    if isinstance(e, TypeError) and not place(e):
        return ": the framework creates the driver without arguments"
    return "" if isinstance(e, _CODE_ERRORS) else ": move code that may fail to start()"


def check(cls: type[Driver], role: Role = Role.NODE) -> None:
    """Checks the class for faults that do not depend on the hardware.

    Raises:
        DriverError: the class has a fault; the message names the class, the attribute and the rule.
    """
    if not (isinstance(cls, type) and issubclass(cls, Driver)):
        raise DriverError(f"{shown(cls)} is not a subclass of Driver: pass the class, not an instance or its name")
    _check_attributes(cls)
    _check_names(cls)
    if inspect.iscoroutinefunction(cls.__init__):
        raise DriverError(
            f"{cls.__name__}.__init__() is async and cannot be awaited: move code with `await` to start()"
        )
    if cls.devices is Driver.devices and cls.pools is Driver.pools:
        raise DriverError(f"{cls.__name__} has no `devices` method: it must return a list of Device")
    if role is Role.NODE and cls.prepare is Driver.prepare:
        raise DriverError(f"{cls.__name__} has no `prepare` method: it must return a list of PreparedDevice")
    declared(cls)
    named: dict[tuple[str, str], type[Config]] = {}
    for kind in _kinds(cls):
        _check_config(cls, kind)
        other = named.setdefault((kind.API_VERSION, kind.KIND), kind)
        if other is not kind:  # only the first would ever be read
            raise DriverError(
                f"{other.__name__} and {kind.__name__} have the same KIND and API_VERSION: change one of the two"
            )


def _check_types(cls: type, rules: Iterable[tuple[str, Any, str]]) -> None:
    """Checks the types of class attributes: for each, its name, its type, and what to set it to."""
    for name, wanted, example in rules:
        if not isinstance(value := getattr(cls, name), wanted):
            raise DriverError(f"{cls.__name__}.{name} is {shown(value)}: set it to {example}")


def _check_attributes(cls: type[Driver]) -> None:
    """Checks the class attributes that the framework reads."""
    _check_types(cls, _TYPES)
    if not all(isinstance(name, str) and name for name in cls.subsystems):
        raise DriverError(f"{cls.__name__}.subsystems is {shown(cls.subsystems)}: each must be the name of a subsystem")
    if cls.name and (len(cls.name.encode()) > MAX_DRIVER_NAME or not DNS_SUBDOMAIN.fullmatch(cls.name)):
        raise DriverError(
            f"{cls.__name__}.name {cls.name!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} bytes: "
            "lower case letters, digits, '-' and '.', e.g. fpga.example.com"
        )
    if cls.metadata and not cls.name[:1].isalpha():
        raise DriverError(
            f"{cls.__name__}.metadata needs a name that begins with a letter, not {cls.name!r}: it becomes a CDI vendor"
        )


def _check_names(cls: type[Driver]) -> None:
    """Checks the methods that the framework calls, and that other names of the class are neither the framework's nor misspelt."""
    own = list(_written(cls, Driver))
    for name in own:
        if name in _CALLED:
            _check_method(cls, name)
        elif name in _SET:
            raise DriverError(f"{cls.__name__}.{name} is set by the framework: remove it from the class")
        elif name in vars(Driver) and name not in _DATA:
            raise DriverError(f"{cls.__name__}.{name} is a method of the framework that the driver calls: rename yours")
    # A driver that implements `devices` or `pools` may use the other name for itself.
    unused = {"pools" if "devices" in own else "devices", *own}
    _check_spelling(cls, Driver, {n: a for n, a in _CALLED.items() if n not in unused}, _DATA)


def _check_method(cls: type[Driver], name: str) -> None:
    """Checks that ``name`` is a method that the framework can call, defined with ``def`` or ``async def``."""
    method = inspect.getattr_static(cls, name)
    own = f"{cls.__name__}.{name}"
    if not isinstance(method, FunctionType):
        wanted = f"def {name}({', '.join(('self', *_CALLED[name]))})"
        raise DriverError(f"{own} is {type(method).__name__}, not a method: write `{wanted}`")
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise DriverError(f"{own} is a generator: return a list in place of each `yield`")
    _check_arguments(method, ("self", *_CALLED[name]), own, name)


def _check_arguments(function: Callable[..., Any], given: Sequence[str], own: str, name: str) -> None:
    """Checks that a function accepts the arguments ``given``. For a decorated function, it checks the wrapper."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # None, a property, or the result of functools.cache
        raise DriverError(f"{own} is {type(function).__name__}, not a method: define it with `def`") from None
    try:
        signature.bind(*given)
    except TypeError as e:
        call = f"{name}({', '.join(a for a in given if a != 'self')})"
        missing = "self" if given[0] == "self" and "self" not in signature.parameters else ""
        raise DriverError(
            f"{own}{signature} cannot be called as {call}: {(missing and 'is `self` missing?') or e}"
        ) from None


def _written(cls: type, base: type, *, of_base: bool = False) -> Iterator[str]:
    """Yields the public attributes of a class and of its bases up to ``base``. With ``of_base``, only of subclasses of ``base``."""
    for one in cls.__mro__[: cls.__mro__.index(base)]:
        if not of_base or issubclass(one, base):
            yield from (name for name in vars(one) if not name.startswith("_"))


def _check_spelling(cls: type, base: type, called: Mapping[str, Sequence[str]], data: Iterable[str]) -> None:
    """Rejects an attribute with nearly the name of one that the framework reads: it would never be read, and no error would show it.

    A method with other arguments is the author's own.
    """
    import difflib  # only needed at start

    free = {n.lower(): n for n in (*called, *data) if n not in _written(cls, base)}
    for name in _written(cls, base, of_base=True):
        plain = name.replace("_", "").lower()
        if hasattr(base, name) or any(plain == own.removesuffix("e") + end for own in free for end in _FORMS):
            continue
        alike = [n for n in free if sorted(n) == sorted(plain)] or difflib.get_close_matches(plain, free, 1, _NEAR)
        if not alike:
            continue
        near, value = free[alike[0]], getattr(cls, name)
        if near in called and isinstance(value, (FunctionType, MethodType)):
            # A function of the class has `self` too, a class method has not.
            if len(inspect.signature(value).parameters) == len(called[near]) + isinstance(value, FunctionType):
                raise DriverError(
                    f"{cls.__name__}.{name}() is never called, did you mean `{near}`? Begin the name of a method of your own with _"
                )
        elif near in data and not hasattr(value, "__get__"):
            raise DriverError(
                f"{cls.__name__}.{name} is never used, did you mean `{near}`? Begin a name of your own with _"
            )


def _kinds(cls: type[Driver]) -> list[type[Config]]:
    """Returns the kinds of parameters with their older versions."""
    declared: Any = cls.config
    kinds = declared if isinstance(declared, (list, tuple)) else [] if declared is None else [declared]
    found: list[Any] = []
    waiting = [(f"{cls.__name__}.config", kind) for kind in kinds]
    while waiting:
        where, kind = waiting.pop(0)
        if kind in found:
            continue
        if not (isinstance(kind, type) and issubclass(kind, Config)):
            raise DriverError(f"{where} is {shown(kind)}: set it to a subclass of Config, or a list of them")
        for name in kind.__struct_fields__:
            if name in vars(Config):
                way = "without a type" if name.isupper() else f'under another name, with msgspec.field(name="{name}")'
                raise DriverError(
                    f"{kind.__name__}.{name} has a type, so it would become a parameter, but Config itself uses this name: write it {way}"
                )
        _check_types(kind, _TYPES_OF_CONFIG)
        found.append(kind)
        waiting += [(f"{kind.__name__}.OLDER", older) for older in kind.OLDER]
    return found


def _check_config(cls: type[Driver], kind: type[Config]) -> None:
    own = kind.__name__
    if kind.API_VERSION.count("/") > 1 or (kind.API_VERSION and not all(kind.API_VERSION.split("/"))):
        raise DriverError(
            f"{own}.API_VERSION {kind.API_VERSION!r} is not GROUP/VERSION, such as gpu.example.com/v1alpha1"
        )
    if kind.OLDER and "convert_from" not in _written(kind, Config):
        raise DriverError(f"{own} lists older versions in OLDER but has no convert_from(cls, older): define it")
    try:
        fields = msgspec.structs.fields(kind)
        msgspec.json.Decoder(kind)  # raises for types that JSON cannot distinguish
        types = list(_types_in(msgspec.inspect.type_info(kind), set()))
        for info, field in types:
            if isinstance(info, msgspec.inspect.CustomType) and info.cls not in FORMS:
                raise TypeError(f"{field} is of type {info.cls.__name__}")
    except (TypeError, NameError) as e:
        there = [*vars(sys.modules.get(kind.__module__, builtins)), *dir(builtins)]
        hint = did_you_mean(e.name, there) if isinstance(e, NameError) and e.name else ""
        raise DriverError(
            f"{own}, the config of {cls.__name__}, cannot be read from JSON: {e}{hint}{_TAG if 'must be tagged' in str(e) else ''}"
        ) from None
    for info, _ in types:
        if isinstance(info, msgspec.inspect.StructType) and issubclass(info.cls, Config):
            _check_methods_of_config(info.cls)
    _check_fields(kind, fields)


def _check_methods_of_config(kind: type[Config]) -> None:
    _check_spelling(kind, Config, _CALLED_OF_CONFIG, _DATA_OF_CONFIG)
    if not isinstance(inspect.getattr_static(kind, "convert_from"), classmethod):
        raise DriverError(
            f"{kind.__name__}.convert_from() creates an object of its class: decorate it with @classmethod"
        )
    for name, given in (("check", ("self",)), ("convert_from", ("older",))):
        method = getattr(kind, name)
        _check_arguments(method, given, f"{kind.__name__}.{name}", name)
        if inspect.iscoroutinefunction(method):  # no code would await it, and all parameters would pass
            raise DriverError(
                f"{kind.__name__}.{name}() is async: make it a plain method, it is called wherever parameters are read"
            )


def _types_in(info: Any, seen: set[int], field: str = "") -> Iterator[tuple[msgspec.inspect.Type, str]]:
    """Yields msgspec's description of a type and of all types in it, each with its field."""
    if isinstance(info, tuple):
        for one in info:
            yield from _types_in(one, seen, field)
    elif isinstance(info, msgspec.inspect.Field):
        yield from _types_in(info.type, seen, info.name)
    elif isinstance(info, msgspec.inspect.Type) and id(info) not in seen:
        seen.add(id(info))
        yield info, field
        for name in info.__struct_fields__:
            yield from _types_in(getattr(info, name), seen, field)


def _check_fields(kind: type[Config], fields: Sequence[msgspec.structs.FieldInfo]) -> None:
    """Checks each default as if a claim contained it, and that no attribute lacks the type that would make it a field."""
    for f in fields:
        try:
            if f.default is not msgspec.NODEFAULT:
                check_default_form(f.default, f.type)
        except (TypeError, ValueError) as e:
            if not isinstance(e, msgspec.ValidationError) or _OF_TYPE.search(str(e)):
                raise DriverError(
                    f"{kind.__name__}.{f.name} = {shown(f.default)} does not match the field's type: {e}"
                ) from None
    known = {f.name for f in fields} | vars(Config).keys()
    for name, value in vars(kind).items():
        is_data = isinstance(value, (str, int, float, list, dict, tuple)) and not name.startswith("_")
        if is_data and name.islower() and name not in known and "ClassVar" not in str(kind.__annotations__.get(name)):
            raise DriverError(
                f"{kind.__name__}.{name} has no type, so claims cannot set it: write `{name}: {type(value).__name__} = ...`"
            )
