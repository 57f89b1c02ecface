"""Creates a driver from its class. Reports faults of the class at start, before a pod's event would show them."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import msgspec

from ..base.text import did_you_mean
from ..errors import DriverError, DriverFailedError, shown
from ..resourceapi.types import Taint
from .config.model import FORMS, Config, check_default_form, decode_config
from .contract import Driver, Role
from .diagnostics.author_errors import author_code, place
from .diagnostics.names import SET, check_config_names, check_names, near_config_name
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
_STEPS = ("undo_", "setup_", "teardown_")  # beginnings of the names of further methods that the framework calls
_TAG = ": declare each as class Name(Config, tag=True); claims select one with the field `type`"
_SET_BY_ATTACH = ("host", "settings", "log")  # attributes that Driver.attach sets
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
    taken = [name for name in SET if name in vars(driver)]
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


def check(cls: type[Driver], role: Role = Role.NODE) -> None:
    """Checks the class for faults that do not depend on the hardware.

    Raises:
        DriverError: the class has a fault; the message names the class, the attribute and the rule.
    """
    if not (isinstance(cls, type) and issubclass(cls, Driver)):
        raise DriverError(f"{shown(cls)} is not a subclass of Driver: pass the class, not an instance or its name")
    for name, arguments in _CALLED.items():
        _check_method(cls, name, arguments)
    for name in dir(cls):
        if name in _CALLED or name.startswith(_STEPS):
            _check_no_generator(cls, name)
    if inspect.iscoroutinefunction(cls.__init__):
        raise DriverError(
            f"{cls.__name__}.__init__() is async and cannot be awaited: move code with `await` to start()"
        )
    check_names(cls, _CALLED)
    if cls.devices is Driver.devices and cls.pools is Driver.pools:
        raise DriverError(f"{cls.__name__} has no `devices` method: it must return a list of Device")
    if role is Role.NODE and cls.prepare is Driver.prepare:
        raise DriverError(f"{cls.__name__} has no `prepare` method: it must return a list of PreparedDevice")
    if not isinstance(cls.unhealthy_taint, Taint | None):
        raise DriverError(
            f"{cls.__name__}.unhealthy_taint is {shown(cls.unhealthy_taint)}: set it to Taint(key=..., effect=...) or None"
        )
    for name in ("metadata", "privileged", "processes"):
        if not isinstance(value := getattr(cls, name), bool):
            raise DriverError(f"{cls.__name__}.{name} is {shown(value)}: set it to True or False")
    if cls.metadata and not cls.name[:1].isalpha():
        raise DriverError(
            f"{cls.__name__}.metadata needs a name that begins with a letter, not {cls.name!r}: it becomes a CDI vendor"
        )
    declared(cls)
    kinds = _kinds(cls)
    for kind in kinds:
        _check_config(cls, kind)
    _check_distinct(kinds)


def _hint(e: BaseException) -> str:
    if isinstance(e, AttributeError) and e.name in _SET_BY_ATTACH:
        return f": self.{e.name} is set after __init__, use it in start() or later"
    if isinstance(e, TypeError) and not place(e):
        return ": the framework creates the driver without arguments"
    return "" if isinstance(e, _CODE_ERRORS) else ": move code that may fail to start()"


def _check_method(cls: type[Driver], name: str, arguments: tuple[str, ...]) -> None:
    """Checks that ``name`` is a method that the framework can call, defined with ``def`` or ``async def``."""
    method = inspect.getattr_static(cls, name)
    if method is getattr(Driver, name):
        return
    shown = f"{cls.__name__}.{name}"
    call = f"{name}({', '.join(arguments)})"
    if not isinstance(method, FunctionType):
        wanted = f"def {name}({', '.join(('self', *arguments))})"
        raise DriverError(f"{shown} is {type(method).__name__}, not a method: write `{wanted}`, it is called as {call}")
    _check_callable(method, ("self", *arguments), shown, call)


def _check_no_generator(cls: type[Driver], name: str) -> None:
    method = getattr(cls, name)
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise DriverError(f"{cls.__name__}.{name} is a generator: return a list in place of each `yield`")


def _check_callable(function: Callable[..., Any], given: Sequence[str], shown: str, call: str) -> None:
    """Checks that a function accepts the arguments ``given``. For a decorated function, it checks the wrapper."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # the signature is unknown, so the call may work
        return
    try:
        signature.bind(*given)
    except TypeError as e:
        raise DriverError(f"{shown}{signature} cannot be called as {call}: {_lacks(signature, given) or e}") from None


def _lacks(signature: inspect.Signature, given: Sequence[str]) -> str:
    """Returns a hint if ``self`` is missing; else empty."""
    if given[:1] != ("self",) or "self" in signature.parameters:
        return ""
    with contextlib.suppress(TypeError):
        signature.bind(*given[1:])
        return "is `self` missing?"
    return ""


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
            own = isinstance(kind, type) and kind.__module__ != "builtins"
            raise DriverError(
                f"{where} is {kind.__name__ if own else shown(kind)}: set it to a subclass of Config, "
                f"{f'class {kind.__name__}(Config), ' if own else ''}or a list of them"
            )
        if not isinstance(kind.OLDER, (list, tuple)):
            raise DriverError(f"{kind.__name__}.OLDER is {shown(kind.OLDER)}: set it to a list of subclasses of Config")
        if not isinstance(kind.DEVICES, Mapping) or not all(isinstance(name, str) for name in kind.DEVICES):
            raise DriverError(
                f"{kind.__name__}.DEVICES is {shown(kind.DEVICES)}: set it to attributes of devices, such as {{'type': 'gpu'}}"
            )
        found.append(kind)
        waiting += [(f"{kind.__name__}.OLDER", older) for older in kind.OLDER]
    return found


def _check_config(cls: type[Driver], kind: type[Config]) -> None:
    _check_shadowed(kind)
    _check_methods(kind)
    _check_class_attributes(kind)
    check_config_names(kind)
    if kind.OLDER and "convert_from" not in {n for c in kind.__mro__[: kind.__mro__.index(Config)] for n in vars(c)}:
        raise DriverError(
            f"{kind.__name__} lists older versions in OLDER but has no convert_from(cls, older): define it"
        )
    try:
        fields = msgspec.structs.fields(kind)
        msgspec.json.Decoder(kind)  # raises for types that JSON cannot distinguish
        objects: set[type] = set()
        for custom, where in list(_customs(msgspec.inspect.type_info(kind), objects)):
            if custom not in FORMS:
                raise TypeError(f"{where} is of type {custom.__name__}")
    except (TypeError, NameError) as e:
        module = vars(sys.modules.get(kind.__module__, builtins))
        there = [*module, *dir(builtins)] if isinstance(e, NameError) else []
        raise DriverError(
            f"{kind.__name__}, the config of {cls.__name__}, cannot be read from JSON: {e}"
            f"{did_you_mean(getattr(e, 'name', ''), there)}{_TAG if 'must be tagged' in str(e) else ''}"
        ) from None
    for within in objects:
        if issubclass(within, Config):
            _check_methods(within)
            check_config_names(within)
    for f in fields:
        _check_default(kind, f)
    _try_check(kind)
    known = {f.name for f in fields} | vars(Config).keys()
    for name, value in vars(kind).items():
        if name not in known and (near := near_config_name(kind, name)) and _is_plain(kind, name, value):
            raise DriverError(f"{kind.__name__}.{name} is never used, did you mean `{near}`?")
        if name not in known and name.islower() and not name.startswith("_") and _is_plain(kind, name, value):
            raise DriverError(
                f"{kind.__name__}.{name} has no type, so claims cannot set it: write `{name}: {type(value).__name__} = ...`"
            )


def _check_default(kind: type[Config], f: msgspec.structs.FieldInfo) -> None:
    """Checks the default of a field as if a claim contained it."""
    if f.default is msgspec.NODEFAULT:
        return
    try:
        check_default_form(f.default, f.type)
    except (TypeError, ValueError) as e:
        if not isinstance(e, msgspec.ValidationError) or _OF_TYPE.search(str(e)):
            raise DriverError(
                f"{kind.__name__}.{f.name} = {shown(f.default)} does not match the field's type: {e}"
            ) from None


def _try_check(kind: type[Config]) -> None:
    """Runs ``check()`` with the defaults and reports misspelled names in it.

    It ignores ValueError, because a default may have a value that a claim must not have.
    """
    try:
        decode_config({}, kind, check=True)
    except ValueError:
        pass
    except DriverFailedError as e:
        cause = e.__cause__
        of_none = isinstance(cause, AttributeError) and cause.name is not None and cause.obj is None
        if isinstance(cause, (NameError, AttributeError)) and not of_none:
            raise DriverError(e.message) from cause


def _check_shadowed(kind: type[Config]) -> None:
    """Rejects an attribute of Config, such as ``KIND``, with a type annotation: the annotation would turn it into a parameter."""
    for name in kind.__struct_fields__:
        if name in vars(Config):
            way = (
                f"write `{name} = ...` without a type"
                if name.isupper()
                else f'rename it, with msgspec.field(name="{name}")'
            )
            raise DriverError(
                f"{kind.__name__}.{name} has a type, so it would become a parameter, but Config itself uses this name: {way}"
            )


def _check_distinct(kinds: Sequence[type[Config]]) -> None:
    """Rejects two kinds with the same KIND and API_VERSION: only the first would ever be read."""
    named: dict[tuple[str, str], type[Config]] = {}
    for kind in kinds:
        other = named.setdefault((kind.API_VERSION, kind.KIND), kind)
        if other is not kind:
            raise DriverError(
                f"{other.__name__} and {kind.__name__} have the same KIND and API_VERSION: change one of the two"
            )


def _check_class_attributes(kind: type[Config]) -> None:
    for name in ("KIND", "API_VERSION"):
        if not isinstance(value := getattr(kind, name), str):
            raise DriverError(f"{kind.__name__}.{name} is {shown(value)}: it must be text")
    if kind.API_VERSION.count("/") > 1 or (kind.API_VERSION and not all(kind.API_VERSION.split("/"))):
        raise DriverError(
            f"{kind.__name__}.API_VERSION {kind.API_VERSION!r} is not GROUP/VERSION, such as gpu.example.com/v1alpha1"
        )


def _check_methods(kind: type[Config]) -> None:
    if not isinstance(inspect.getattr_static(kind, "convert_from"), classmethod):
        raise DriverError(
            f"{kind.__name__}.convert_from() creates an object of its class: decorate it with @classmethod"
        )
    for name, given, call in (("check", ("self",), "check()"), ("convert_from", ("older",), "convert_from(older)")):
        method = getattr(kind, name)
        _check_callable(method, given, f"{kind.__name__}.{name}", call)
        if inspect.iscoroutinefunction(method):  # no code would await it, and all parameters would pass
            raise DriverError(
                f"{kind.__name__}.{name}() is async: make it a plain method, it is called wherever parameters are read"
            )


def _customs(info: msgspec.inspect.Type, seen: set[type], where: str = "") -> Iterator[tuple[type, str]]:
    """Yields each type in ``info`` that msgspec itself cannot read, with its field. Adds the object types that it visits to ``seen``."""
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls, where
        return
    cls = getattr(info, "cls", None)
    if cls in seen:
        return
    fields = getattr(info, "fields", ())
    if cls is not None and fields:
        seen.add(cls)
    for f in fields:
        yield from _customs(f.type, seen, f"{getattr(cls, '__name__', where)}.{f.name}")
    within = [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
    within += [
        t for name in ("item_type", "key_type", "value_type", "type") if (t := getattr(info, name, None)) is not None
    ]
    for t in within:
        yield from _customs(t, seen, where)


def _is_plain(kind: type[Config], name: str, value: object) -> bool:
    """Whether ``value`` is plain data, and neither a method nor declared as a ClassVar."""
    declared = kind.__annotations__.get(name)
    return isinstance(value, (str, int, float, list, dict, tuple)) and "ClassVar" not in str(declared)
