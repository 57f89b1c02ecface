"""Which parameters a request has: entries of class and claim, in any version that the driver reads.

Source: KEP-4381, ``status.allocation.devices.config`` of a ResourceClaim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..errors import ConfigError, DraError, DriverFailedError, printable
from ..interruption import Interrupted
from ..wording import near
from .config import Config, as_json, checked, converted, read_form
from .config_faults import apart, explained
from .data import plain_json
from .merging import difference, laid_over
from .mistakes import explained as explained_fault

JSON = Mapping[str, Any]
Resolved = tuple[Config | None, str]


class Given(NamedTuple):
    """Fields as one entry, or several laid over each other, give them, and the kind that they are of."""

    cls: type[Config]
    fields: JSON
    where: str


def resolve(entries: Sequence[JSON], kinds: Sequence[type[Config]], driver: str, request: str) -> Resolved:
    """The configuration of one ``request`` (``req`` or ``req/sub``) and where it came from.

    Entries are in the order of the allocation, class before claim; the last that applies wins, laid over those before where
    its kind says so (``LAYERED``). Without one, the default of the first kind where all its fields have defaults. Origin is
    ``FromClass``, ``FromClaim`` or empty.

    Raises :class:`ConfigError` with the path of the wrong field, and :class:`DriverFailedError` where the author's own checks
    raise something else than ``ValueError``.
    """
    found: Config | None = None
    origin = ""
    below: Given | None = None
    for i, entry in enumerate(entries):
        opaque = entry.get("opaque")
        if not opaque or opaque.get("driver") != driver or not applies(entry.get("requests") or (), request):
            continue
        source = str(entry.get("source", ""))
        where = f"config[{i}] ({source})"
        read = _given(opaque.get("parameters"), kinds, driver, where)
        if read is None:
            continue
        found, origin = None, source
        if read.cls.LAYERED:
            _check_partial(read)  # a field of this entry is told with this entry
            below = _layer(below, read, kinds) if below else read._replace(fields=laid_over({}, read.fields))
        else:
            below = read
            found = _newest(read, kinds)
    if below and found is None:
        found = _newest(below._replace(where=f"parameters ({origin})"), kinds)
    if found is None and kinds:
        with contextlib.suppress(msgspec.ValidationError):
            found = converted({}, kinds[0])
    return found, origin


def _layer(below: Given, above: Given, kinds: Sequence[type[Config]]) -> Given:
    """``above`` over ``below``: in their own version where it is one, else in the newest, which both are converted to."""
    if below.cls is above.cls:
        return above._replace(fields=laid_over(below.fields, above.fields))
    newest = _line(below.cls, kinds)[-1]
    if newest is not _line(above.cls, kinds)[-1]:
        return above  # of another kind
    return Given(newest, laid_over(_as_newest(below, kinds), _said_in_newest(above, kinds)), above.where)


def _said_in_newest(given: Given, kinds: Sequence[type[Config]]) -> JSON:
    """What an entry gives, in the words of the newest version: the fields that come out otherwise than if it gave nothing, and those
    that it gives by the same name. An older version with fields that must be given says everything."""
    if _line(given.cls, kinds)[-1] is given.cls:
        return given.fields
    said = _as_newest(given, kinds)
    try:
        unsaid = _as_newest(given._replace(fields={}), kinds)
    except ConfigError:
        return said
    return difference(unsaid, said, given.fields)


def _as_newest(given: Given, kinds: Sequence[type[Config]]) -> JSON:
    """All fields in the newest version, of which the rest of the layers is not known yet: its own rules are for later."""
    *_, newest = line = _line(given.cls, kinds)
    if newest is given.cls:
        return given.fields
    config = _decoded(given._replace(fields=laid_over({}, given.fields)))
    for target in line[1:]:
        config = _converted_to(target, config, given.where, check=target is not newest)
    out: JSON = as_json(config)
    return out


def _line(cls: type[Config], kinds: Sequence[type[Config]]) -> list[type[Config]]:
    """A kind and those that it is converted to, up to the one that the driver's code knows."""
    newer = versions(kinds)
    out = [cls]
    while (target := newer[out[-1]]) is not None:
        out.append(target)
    return out


def applies(requests: Sequence[str], request: str) -> bool:
    """Whether an entry for ``requests`` is for ``request``: none named means all; a base name covers its alternatives."""
    return not requests or request in requests or request.partition("/")[0] in requests


def judge(parameters: object, kinds: Sequence[type[Config]], driver: str, where: str) -> None:
    """Whether one entry of a claim or a class can be right, before anything is allocated.

    Of layered parameters only what is given is looked at, because the rest may stand in the class.

    Raises :class:`ConfigError` with the path of the wrong field, and :class:`DriverFailedError` as :func:`resolve` does.
    """
    read = _given(parameters, kinds, driver, where)
    if read is None:
        return
    if read.cls.LAYERED:
        _check_partial(read)
    else:
        _newest(read, kinds)


def decode(parameters: object, kinds: Sequence[type[Config]], driver: str, where: str) -> Config | None:
    """The typed parameters of one entry alone; None for an object of somebody else's kind. Raises as :func:`resolve` does."""
    read = _given(parameters, kinds, driver, where)
    return None if read is None else _newest(read, kinds)


def _given(parameters: object, kinds: Sequence[type[Config]], driver: str, where: str) -> Given | None:
    """None for an object of somebody else's kind."""
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"{where}: opaque.parameters must be an object")
    try:
        given = plain_json(dict(parameters), "parameters")
    except ValueError as e:
        raise ConfigError(f"{where}: {e}") from None
    fields = dict(given)
    api_version, kind = str(fields.pop("apiVersion", "")), str(fields.pop("kind", ""))
    cls = _choose(kinds, api_version, kind, driver, where)
    if cls is None:
        return None
    if any(f.encode_name in {"apiVersion", "kind"} for f in msgspec.structs.fields(cls)):
        fields = given
    return Given(cls, fields, where)


def _newest(given: Given, kinds: Sequence[type[Config]]) -> Config:
    """The typed parameters, converted to the version that the driver's code knows."""
    config = _decoded(given)
    for target in _line(given.cls, kinds)[1:]:
        config = _converted_to(target, config, given.where)
    return config


def _decoded(given: Given) -> Config:
    try:
        return converted(given.fields, given.cls, check=True)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{given.where}: {explained(printable(e), given.cls)}") from None
    except ValueError as e:
        raise ConfigError(f"{given.where}: {printable(e)}") from None


def _converted_to(target: type[Config], older: Config, where: str, *, check: bool = True) -> Config:
    """Where the author's ``convert_from`` runs."""
    step = f"{_name(type(older))} as {_name(target)}"
    try:
        config = target.convert_from(older)
        if type(config) is target:
            return checked(config) if check else config
    except ValueError as e:
        raise ConfigError(f"{where}: {step}: {printable(e)}") from None
    except (DraError, Interrupted):
        raise
    except BaseException as e:  # no await in between: what is raised here is the author's
        raise DriverFailedError(f"convert_from() of {target.__name__} raised {explained_fault(e)}") from e
    raise DriverFailedError(
        f"convert_from() of {target.__name__} answered {type(config).__name__}: it must answer {target.__name__}"
    )


def versions(kinds: Sequence[type[Config]]) -> dict[type[Config], type[Config] | None]:
    """Every kind that claims may give, with the one that it is converted to; None for what the driver's code knows."""
    out: dict[type[Config], type[Config] | None] = dict.fromkeys(kinds)
    waiting = list(kinds)
    while waiting:
        cls = waiting.pop(0)
        for older in cls.OLDER:
            if older not in out:
                out[older] = cls
                waiting.append(older)
    return out


def _choose(kinds: Sequence[type[Config]], api_version: str, kind: str, driver: str, where: str) -> type[Config] | None:
    if not kinds:
        raise ConfigError(f"{where}: {driver} takes no parameters: remove this entry")
    if not kind and not api_version and len(kinds) == 1:
        return kinds[0]
    known = versions(kinds)
    for cls in known:
        if (cls.KIND or kind) == kind and (cls.API_VERSION or api_version) == api_version:
            return cls
    group = api_version.partition("/")[0]
    ours = {cls.API_VERSION.partition("/")[0] for cls in known} - {""}
    if "/" in api_version and group not in ours and group != driver and not group.endswith("." + driver):
        return None  # somebody else's kind, in their domain
    raise ConfigError(f"{where}: {_unknown(api_version, kind, driver, known)}")


def _unknown(api_version: str, kind: str, driver: str, known: Iterable[type[Config]]) -> str:
    """Which of the two is none of the driver's, or missing, and what it may be."""
    kinds = sorted({cls.KIND for cls in known if api_version in {"", cls.API_VERSION} or not cls.API_VERSION} - {""})
    names = ", ".join(map(_name, known))
    if meant := near(kind, kinds) if kind not in kinds else "":
        return f"parameters.kind: {kind!r} is not known to {driver}{meant}"
    field, value = ("apiVersion", api_version) if kind in kinds or not kinds else ("kind", kind)
    if not value:
        return f"parameters.{field}: missing: known to {driver} are {names}"
    to_do = "to read one of before, keep its class and name it in OLDER"
    return f"parameters.{field}: {value!r} is not known to {driver}: known are {names}; {to_do}"


def _name(cls: type[Config]) -> str:
    return f"{cls.API_VERSION or '-'} {cls.KIND or cls.__name__}"


def _check_partial(given: Given) -> None:
    """The fields that are given, by name and type, in objects within too; what is missing may come from elsewhere."""
    try:
        _check_given(laid_over({}, given.fields), msgspec.inspect.type_info(given.cls), "$")
    except msgspec.ValidationError as e:
        raise ConfigError(f"{given.where}: {explained(printable(e), given.cls)}") from None


def _check_given(given: JSON, info: Any, path: str) -> None:
    """Raises ``msgspec.ValidationError`` with the path from the top. ``info`` is of a struct."""
    types = {f.encode_name: f.type for f in info.fields}
    rest = _besides_objects(given, types.get, lambda key: f"{path}.{key}")
    try:
        msgspec.convert(rest, _partial(info), dec_hook=read_form)
    except msgspec.ValidationError as e:
        text, _, below = str(e).partition(" - at `$")
        at = path + below.rstrip("`")
        raise msgspec.ValidationError(text if at == "$" else f"{text} - at `{at}`") from None


def _besides_objects(given: JSON, type_of: Callable[[str], Any], path_of: Callable[[str], str]) -> dict[str, Any]:
    """What is left of ``given`` when the objects within that are laid over others have been checked."""
    rest: dict[str, Any] = {}
    for key, value in given.items():
        found = _laid_over_as(type_of(key), value) if isinstance(value, Mapping) else None
        if found is None:
            rest[key] = value
        elif isinstance(found, msgspec.inspect.StructType):
            _check_given(value, found, path_of(key))
        elif isinstance(found, msgspec.inspect.DictType):
            at, inner = f"{path_of(key)}[...]", found.value_type
            if left := _besides_objects(value, lambda _, inner=inner: inner, lambda _, at=at: at):  # type: ignore[misc]
                rest[key] = left
    return rest


_LATER = object()


def _laid_over_as(info: Any, value: JSON) -> Any:
    """The struct, or mapping of objects, that an object is a part of at this place; ``_LATER`` where its tag comes from elsewhere;
    None for what is no such place."""
    infos = apart([info])
    structs = [i for i in infos if isinstance(i, msgspec.inspect.StructType)]
    if tagged := [i for i in structs if i.tag_field is not None]:
        given = value.get(tagged[0].tag_field or "", _LATER)  # one union has one tag field
        return _LATER if given is _LATER else next((i for i in tagged if i.tag == given), None)
    maps = [i for i in infos if isinstance(i, msgspec.inspect.DictType) and _laid_over_as(i.value_type, {}) is not None]
    return next(iter((*structs, *maps)), None)


def _partial(info: Any) -> type:
    """A struct like the one that ``info`` tells of, of which no field is required."""
    fields = [(f.name, f.type | msgspec.UnsetType, msgspec.UNSET) for f in msgspec.structs.fields(info.cls)]
    names = {f.name: f.encode_name for f in info.fields}
    return msgspec.defstruct(
        info.cls.__name__,
        fields,
        rename=names,
        forbid_unknown_fields=info.forbid_unknown_fields,
        kw_only=True,
        tag=info.tag,
        tag_field=info.tag_field,
    )
