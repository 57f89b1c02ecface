"""Opaque parameters: typed, strict, with class and claim precedence.

Source: KEP-4381, "Implementing optional resources"; ``status.allocation.devices.config`` of a ResourceClaim.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, dataclass_transform

import msgspec

from ..errors import ConfigError, DraError, DriverFailedError, describe, printable
from ..resources.quantity import Quantity
from ..resources.types import Capacity, RequestPolicy
from ..resources.version import Version
from .data import plain_json


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _ConfigMeta(msgspec.StructMeta):
    """Tells type checkers that subclasses of :class:`Config` are frozen as it is, without saying so."""


class Config(
    msgspec.Struct, metaclass=_ConfigMeta, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Base class of a driver's parameters.

    Fields are written in Python's style and read in JSON's (``time_slice`` is ``timeSlice``). An unknown field, a wrong type or
    a missing one is refused with its path. Fields may be of type :class:`Quantity` (``80Gi``), :class:`Version`, :class:`Capacity` and
    :class:`RequestPolicy`. Nested objects are Structs, best made with ``Config`` as their base too::

        class GpuConfig(Config):
            KIND = "GpuConfig"
            API_VERSION = "gpu.example.com/v1alpha1"
            interval: Literal["Short", "Long"] = "Short"

            def check(self) -> None:
                ...  # raise ValueError for what types cannot say
    """

    KIND: ClassVar[str] = ""
    API_VERSION: ClassVar[str] = ""

    def check(self) -> None:
        """Called after decoding, of objects within first. Raise ``ValueError`` with a sentence for a value that cannot work."""

    def json(self) -> dict[str, Any]:
        """The parameters as they are written in a claim, API version and kind included where this class names them."""
        head = {"apiVersion": self.API_VERSION, "kind": self.KIND}
        fields: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_written)
        return {k: v for k, v in head.items() if v} | fields


def _written(value: object) -> Any:
    if isinstance(value, (Quantity, Version)):
        return str(value)
    if isinstance(value, (Capacity, RequestPolicy)):
        return value.json()
    raise TypeError(f"parameters of type {printable(type(value).__name__)} cannot be written as JSON")


def _read(wanted: type, value: Any) -> Any:
    """What has a form of its own in JSON; ``ValueError`` where it cannot be read."""
    if wanted is Quantity:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ValueError(f"Expected a quantity such as `80Gi`, got {value!r}")
        return Quantity(value)
    if wanted is Version:
        if not isinstance(value, str):
            raise ValueError(f"Expected a version such as `1.2.3`, got {value!r}")
        return Version(value)
    if wanted is Capacity:
        return Capacity.from_json(value)
    if wanted is RequestPolicy:
        return RequestPolicy.from_json(value)
    raise NotImplementedError(f"parameters of type {printable(wanted.__name__)} cannot be read from JSON")


FORMS = (Quantity, Version, Capacity, RequestPolicy)  # what has a form of its own in JSON


def given_as_default(default: object, wanted: Any) -> None:
    """Raises ``ValueError`` or ``TypeError`` where a claim that gave this default could not be read."""
    msgspec.convert(msgspec.to_builtins(default, enc_hook=_written), wanted, dec_hook=_read)


Resolved = tuple[Config | None, str]


def resolve(entries: Sequence[Mapping[str, Any]], kinds: Sequence[type[Config]], driver: str, request: str) -> Resolved:
    """The configuration of one ``request`` (``req`` or ``req/sub``) and where it came from.

    Entries are in the order of the allocation, class before claim; the last that applies wins. Without one, the default of
    the first kind where all its fields have defaults. Origin is ``FromClass``, ``FromClaim`` or empty.

    Raises :class:`ConfigError` with the path of the wrong field, and :class:`DriverFailedError` where the author's own checks
    raise something else than ``ValueError``.
    """
    found: Config | None = None
    origin = ""
    for i, entry in enumerate(entries):
        opaque = entry.get("opaque")
        if not opaque or opaque.get("driver") != driver or not applies(entry.get("requests") or (), request):
            continue
        config = decode(opaque.get("parameters"), kinds, driver, f"config[{i}] ({entry.get('source', '')})")
        if config is not None:
            found, origin = config, entry.get("source", "")
    if found is None and kinds:
        with contextlib.suppress(msgspec.ValidationError):
            found = _converted({}, kinds[0])
    return found, origin


def applies(requests: Sequence[str], request: str) -> bool:
    """Whether an entry for ``requests`` is for ``request``: none named means all; a base name covers its alternatives."""
    return not requests or request in requests or request.partition("/")[0] in requests


def decode(parameters: Any, kinds: Sequence[type[Config]], driver: str, where: str) -> Config | None:
    """The typed parameters; None for an object of somebody else's kind."""
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"{where}: opaque.parameters must be an object")
    try:
        given = plain_json(dict(parameters), "parameters")
    except ValueError as e:
        raise ConfigError(f"{where}: {e}") from None
    whole = dict(given)
    api_version, kind = str(given.pop("apiVersion", "")), str(given.pop("kind", ""))
    cls = _choose(kinds, api_version, kind, driver, where)
    if cls is None:
        return None
    if any(f.encode_name in {"apiVersion", "kind"} for f in msgspec.structs.fields(cls)):
        given = whole
    try:
        return _converted(given, cls, check=True)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{where}: {_explain(printable(e), cls)}") from None
    except ValueError as e:
        raise ConfigError(f"{where}: {printable(e)}") from None


def _converted(given: Mapping[str, Any], cls: type[Config], *, check: bool = False) -> Config:
    """Where the author's own checks run: ``__post_init__`` and :meth:`Config.check`."""
    try:
        config = msgspec.convert(given, cls, dec_hook=_read)
        if check:
            _check(config, "parameters")
        return config
    except (ValueError, DraError):
        raise
    except BaseException as e:  # no await in between: what is raised here is the author's
        raise DriverFailedError(f"the checks of {cls.__name__} raised {describe(e)}") from e


def _check(value: object, path: str) -> None:
    """Calls ``check`` of every object within, innermost first. Raises ``ValueError`` with the path of the one that refuses."""
    if isinstance(value, Config):
        for f in msgspec.structs.fields(value):
            _check(getattr(value, f.name), f"{path}.{f.encode_name}")
        try:
            value.check()
        except ValueError as e:
            raise ValueError(f"{path}: {printable(e)}") from None
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check(item, f"{path}[{printable(key)}]")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for i, item in enumerate(value):
            _check(item, f"{path}[{i}]")


def _choose(kinds: Sequence[type[Config]], api_version: str, kind: str, driver: str, where: str) -> type[Config] | None:
    if not kinds:
        raise ConfigError(f"{where}: {driver} takes no parameters: remove this entry")
    for cls in kinds:
        if (cls.KIND or kind) == kind and (cls.API_VERSION or api_version) == api_version:
            return cls
    if not kind and not api_version and len(kinds) == 1:
        return kinds[0]
    group = api_version.partition("/")[0]
    ours = {cls.API_VERSION.partition("/")[0] for cls in kinds} - {""}
    if "/" in api_version and group not in ours and group != driver and not group.endswith("." + driver):
        return None  # somebody else's kind, in their domain
    known = ", ".join(f"{c.API_VERSION or '-'} {c.KIND or c.__name__}" for c in kinds)
    raise ConfigError(f"{where}: {api_version or '-'} {kind or '-'} is not known to {driver}: known are {known}")


def _explain(message: str, cls: type[Config]) -> str:
    """msgspec's sentence, with the path first and the nearest known name for an unknown field."""
    text, _, path = message.partition(" - at `")
    path = "parameters" + path.rstrip("`").removeprefix("$") if path else "parameters"
    unknown = re.search(r"unknown field `(.+)`", text)
    if unknown:
        import difflib  # for this sentence alone

        near = difflib.get_close_matches(unknown[1], sorted(_names(cls)), 1)
        return f"{path}: unknown field {unknown[1]!r}" + (f", did you mean {near[0]!r}?" if near else "")
    if text.startswith("Invalid enum value"):
        known = _choices(cls, path.replace("[...]", "[]").split(".")[1:])
        return f"{path}: {text}" + (f": give one of {', '.join(map(repr, known))}" if known else "")
    return f"{path}: {text}"


def _choices(cls: type[Config], path: Sequence[str]) -> list[Any]:
    """What the field at ``path`` may be, where its type names that."""
    infos: list[Any] = [msgspec.inspect.type_info(cls)]
    for part in path:
        name, *items = part.replace("]", "").split("[")
        infos = [f.type for i in _within(infos) for f in getattr(i, "fields", ()) if f.encode_name == name]
        for _ in items:
            infos = [t for i in _within(infos) for t in _items_of(i)]
    out: list[Any] = []
    for info in _within(infos):
        if isinstance(info, msgspec.inspect.LiteralType):
            out += info.values
        elif isinstance(info, msgspec.inspect.EnumType):
            out += [member.value for member in info.cls]
    return out


def _within(infos: Sequence[Any]) -> list[Any]:
    return [t for i in infos for t in (i.types if isinstance(i, msgspec.inspect.UnionType) else (i,))]


def _items_of(info: Any) -> list[Any]:
    """Types of what a list or a mapping has."""
    found = (getattr(info, name, None) for name in ("item_type", "value_type"))
    return [t for t in found if t is not None] + list(getattr(info, "item_types", ()))


def _names(cls: Any, depth: int = 0) -> set[str]:
    """JSON names of the fields of a struct and of those within it."""
    out: set[str] = set()
    for f in msgspec.structs.fields(cls):
        out.add(f.encode_name)
        inner = msgspec.inspect.type_info(f.type)
        for t in getattr(inner, "types", (inner,)):
            if isinstance(t, msgspec.inspect.StructType) and depth < 4:
                out |= _names(t.cls, depth + 1)
    return out
