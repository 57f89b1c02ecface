"""Which parameters a request has: entries of class and claim, in any version that the driver reads.

Source: KEP-4381, ``status.allocation.devices.config`` of a ResourceClaim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..errors import ConfigError, DraError, DriverFailedError, printable
from ..interruption import Interrupted
from ..wording import near
from .config import Config, Refused, as_json, checked, converted
from .config_faults import path_of, refusal, told
from .data import plain_json
from .every_fault import MOST, Fault, every
from .merging import Layer, came_from, difference, laid_over
from .mistakes import explained
from .partial import judge_partial

JSON = Mapping[str, Any]
Resolved = tuple[Config | None, str]


class Entry(NamedTuple):
    """One entry for a request; ``where`` it stands, for people, and ``source``: ``FromClass`` or ``FromClaim``."""

    where: str
    source: str
    parameters: object


class Given(NamedTuple):
    """Fields as one entry, or several laid over each other, give them, and the kind that they are of.

    ``layers`` are the fields of each, with the place where it stands, the lowest first."""

    cls: type[Config]
    fields: JSON
    layers: tuple[Layer, ...]

    @property
    def where(self) -> str:
        """Of a sentence as a whole; where there are several, the sentence names them."""
        return self.layers[0].where if len(self.layers) == 1 else ""


def resolve(entries: Sequence[JSON], kinds: Sequence[type[Config]], driver: str, request: str) -> Resolved:
    """The configuration of one ``request`` (``req`` or ``req/sub``) and where it came from.

    Entries are in the order of the allocation, class before claim. Answers and raises as :func:`together` does.
    """
    found = []
    for i, entry in enumerate(entries):
        opaque = entry.get("opaque")
        if opaque and opaque.get("driver") == driver and applies(entry.get("requests") or (), request):
            source = str(entry.get("source", ""))
            found.append(Entry(f"config[{i}] ({source})", source, opaque.get("parameters")))
    return together(found, kinds, driver)


def together(entries: Iterable[Entry], kinds: Sequence[type[Config]], driver: str) -> Resolved:
    """What entries for one request come to: the last applies, laid over those before where its kind says so (``LAYERED``). Without
    one, the default of the first kind where all its fields have defaults. The second is ``FromClass``, ``FromClaim`` or empty.

    Raises :class:`ConfigError` with the path of each wrong field, and :class:`DriverFailedError` where the author's own checks
    raise something else than ``ValueError``.
    """
    found: Config | None = None
    origin = ""
    below: Given | None = None
    wrong: list[ConfigError] = []
    for entry in entries:
        try:
            read = _given(entry.parameters, kinds, driver, entry.where)
            if read is None:
                continue
            found, origin = None, entry.source
            if read.cls.LAYERED:
                _judge_partial(read)  # a field of this entry is told with this entry
                below = _layer(below, read, kinds) if below else read._replace(fields=laid_over({}, read.fields))
            else:
                below = read
                found = _newest(read, kinds)
        except ConfigError as e:
            wrong.append(e)
    if wrong:
        raise wrong[0] if len(wrong) == 1 else refusal(*(fault for e in wrong for fault in e.faults))
    if below and found is None:
        found = _newest(below, kinds)
    if found is None and kinds:
        with contextlib.suppress(msgspec.ValidationError):
            found = converted({}, kinds[0])
    return found, origin


def _layer(below: Given, above: Given, kinds: Sequence[type[Config]]) -> Given:
    """``above`` over ``below``: in their own version where it is one, else in the newest, which both are converted to."""
    if below.cls is above.cls:
        return Given(above.cls, laid_over(below.fields, above.fields), below.layers + above.layers)
    newest = _line(below.cls, kinds)[-1]
    if newest is not _line(above.cls, kinds)[-1]:
        return above._replace(fields=laid_over({}, above.fields))  # of another kind
    said = _said_in_newest(above, kinds)
    under = Layer(" and ".join(layer.where for layer in below.layers), _said_in_newest(below, kinds))
    layers = (*(below.layers if below.cls is newest else (under,)), Layer(above.where, said))
    return Given(newest, laid_over(_as_newest(below, kinds), said), layers)


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
        config = _converted_to(target, config, given, check=target is not newest)
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

    Raises :class:`ConfigError` with the path of each wrong field, and :class:`DriverFailedError` as :func:`resolve` does.
    """
    read = _given(parameters, kinds, driver, where)
    if read is None:
        return
    if read.cls.LAYERED:
        _judge_partial(read)
    else:
        _newest(read, kinds)


def decode(parameters: object, kinds: Sequence[type[Config]], driver: str, where: str) -> Config | None:
    """The typed parameters of one entry alone; None for an object of somebody else's kind. Raises as :func:`resolve` does."""
    read = _given(parameters, kinds, driver, where)
    return None if read is None else _newest(read, kinds)


def _given(parameters: object, kinds: Sequence[type[Config]], driver: str, where: str) -> Given | None:
    """None for an object of somebody else's kind."""
    if not isinstance(parameters, Mapping):
        raise refusal("opaque.parameters must be an object", at=where)
    try:
        given = plain_json(dict(parameters), "parameters")
    except ValueError as e:
        raise refusal(str(e), at=where) from None
    fields = dict(given)
    api_version, kind = str(fields.pop("apiVersion", "")), str(fields.pop("kind", ""))
    cls = _choose(kinds, api_version, kind, driver, where)
    if cls is None:
        return None
    if any(f.encode_name in {"apiVersion", "kind"} for f in msgspec.structs.fields(cls)):
        fields = given
    return Given(cls, fields, (Layer(where, fields),))


def _newest(given: Given, kinds: Sequence[type[Config]]) -> Config:
    """The typed parameters, converted to the version that the driver's code knows."""
    config = _decoded(given)
    for target in _line(given.cls, kinds)[1:]:
        config = _converted_to(target, config, given)
    return config


def _decoded(given: Given) -> Config:
    try:
        return converted(given.fields, given.cls, check=True)
    except msgspec.ValidationError:
        found = every(given.fields, lambda fields: converted(fields, given.cls))
        raise _refused(given, found) from None
    except Refused as e:
        raise _refused(given, [Fault(at, text) for at, text in e.said]) from None


def _judge_partial(given: Given) -> None:
    """The fields that are given, by name and type, in objects within too; what is missing may come from elsewhere."""
    fields = laid_over({}, given.fields)
    if found := every(fields, lambda part: judge_partial(part, given.cls)):
        raise _refused(given._replace(fields=fields), found)


def _refused(given: Given, found: Sequence[Fault]) -> ConfigError:
    """What was found, and which of several layers it comes from."""
    return refusal(
        *(
            sentence + (came_from(given.layers, fault.at, fault.missing) if len(given.layers) > 1 else "")
            for fault in found
            for sentence in told(fault, given.fields, given.cls)
        ),
        *(["parameters: more was not looked for"] if len(found) == MOST else ()),
        at=given.where,
    )


def _converted_to(target: type[Config], older: Config, given: Given, *, check: bool = True) -> Config:
    """Where the author's ``convert_from`` runs."""
    step = f"{_name(type(older))} as {_name(target)}"
    try:
        config = target.convert_from(older)
        if type(config) is target:
            return checked(config) if check else config
    except ValueError as e:
        of = came_from(given.layers, (), "") if len(given.layers) > 1 else ""
        said = (
            [f"{path_of(target, at)[0]}: {text}" for at, text in e.said] if isinstance(e, Refused) else [printable(e)]
        )
        raise refusal(*(f"{step}: {text}{of}" for text in said), at=given.where) from None
    except (DraError, Interrupted):
        raise
    except BaseException as e:  # no await in between: what is raised here is the author's
        raise DriverFailedError(f"convert_from() of {target.__name__} raised {explained(e)}") from e
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
        raise refusal(f"{driver} takes no parameters: remove this entry", at=where)
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
    raise refusal(_unknown(api_version, kind, driver, known), at=where)


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
