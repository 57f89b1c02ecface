"""Finds all faults of parameters, and writes each as a sentence with the field, the nearest known name and the allowed values.

msgspec is the only validator, but it reports the first fault only. So a value that msgspec rejects is split into its parts, and each
part is validated separately. If no part has a fault, the fault concerns the value as a whole.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice, repeat
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

from ...base.json_types import ReadOnlyJSON
from ...base.text import did_you_mean, join_first
from ...errors import ConfigError, DraError, clip, printable
from ..config.model import Config, author_checks, key_path, read_form

MORE = "there may be more faults: validation stopped here"
"""The last item of an error's ``faults``, if the search stopped before the end."""
_MAX_NAMES = 12  # fields that are listed when none is similar
_LONGEST = 80  # bytes of an unknown field
_LONGEST_TEXT = 512  # bytes of a message of msgspec or check(), which may quote the value
_FIELD = re.compile(r"Object (?:contains )?((?:unknown|missing required) field) `(.*)`", re.DOTALL)
_MESSAGE = re.compile(r"(?P<text>.*) - at (`key` in )?`\$(?P<path>.*)`", re.DOTALL)


def refusal(*wrong: str, at: str = "") -> ConfigError:
    """Creates an error with a sentence for each fault, all at one place. Its message contains as many sentences as fit into an event."""
    head = f"{at}: " if at else ""
    found = [w for w in wrong if w != MORE]
    more = [MORE] if len(found) < len(wrong) else []
    error = ConfigError("; ".join((*([head + join_first(found, "; ")] if found else ()), *more)))
    error.faults = (*(head + w for w in found), *more)
    return error


def all_faults(given: ReadOnlyJSON, cls: type[Config], most: int) -> list[str]:
    """Returns the first ``most`` faults of parameters in the order of the document, each as a sentence with its path.

    Args:
        given: the parameters.
        cls: their kind.
        most: the maximum number of faults.

    Raises:
        DriverFailedError: the author's code raised an exception other than ValueError, and no fault was found before.
    """
    found: list[str] = []
    try:
        with author_checks(cls):
            for fault in islice(_faults(given, cls, "parameters"), most):
                found.append(fault)
    except DraError:
        if not found:
            raise
    return found


def _faults(value: Any, hint: Any, path: str) -> Iterator[str]:
    """Yields the faults of a value; ``hint`` is its type annotation."""
    whole = _whole_fault(value, hint)
    if whole is None:
        return
    for fault in _faults_within(value, hint, path):
        yield fault
        whole = None
    if whole:
        yield f"{path}{whole[0]}: {whole[1]}"


def _whole_fault(value: Any, hint: Any) -> tuple[str, str] | None:
    """Returns the path within a value and the text of the fault that msgspec reports for it; None if the value is valid."""
    try:
        msgspec.convert(value, hint, dec_hook=read_form, str_keys=True)
    except msgspec.ValidationError as e:
        found = _MESSAGE.fullmatch(str(e))
        text, below = (clip(found["text"], _LONGEST_TEXT), found["path"]) if found else (clip(e, _LONGEST_TEXT), "")
    else:
        return None
    if named := _FIELD.fullmatch(text):
        text = f"{named[1]} {named[2]!r}"
    if text.startswith("Invalid enum value") and (known := _choices(hint)):
        text += f": use one of {', '.join(map(repr, known))}"
    if text.startswith("Expected ") and "got " not in text and not below:
        text += f", got {_shown(value)}"
    if isinstance(value, float) and text.endswith("got `float`"):
        # An integer above 64 bits becomes a float, such as 1e+40. The value shows the user which integer is meant.
        text += f" ({value:g})"
    return below, text


def _shown(value: Any) -> str:
    """Returns a value that is outside a range, as text; for an object or a list, only its length."""
    return f"{len(value)}" if isinstance(value, Mapping | list) else clip(repr(value), _LONGEST)


def _faults_within(value: Any, hint: Any, path: str) -> Iterator[str]:
    """Yields the faults of the parts of an object, a mapping or a list; nothing for any other value."""
    if isinstance(value, Mapping):
        of = _type_of_object(hint, value)
        if (fields := _fields(of)) is not None:
            yield from _faults_of_fields(value, of, fields, path)
        elif len(args := get_args(of)) == 2:
            for key, item in value.items():
                if args[0] is not str and (wrong := _whole_fault({key: None}, dict[args[0], Any])):  # type: ignore[valid-type]
                    yield f"{key_path(path, key)}: the key: {wrong[1]}"
                else:
                    yield from _faults(item, args[1], key_path(path, key))
    elif isinstance(value, list):
        for of in _members(hint):
            args = get_args(of)
            if args and isinstance(get_origin(of), type) and issubclass(get_origin(of), Collection):
                fixed = get_origin(of) is tuple and args[-1] is not ...
                for i, (item, inner) in enumerate(zip(value, args if fixed else repeat(args[0]), strict=False)):
                    yield from _faults(item, inner, f"{path}[{i}]")


def _faults_of_fields(
    given: ReadOnlyJSON, of: Any, fields: Mapping[str, msgspec.structs.FieldInfo], path: str
) -> Iterator[str]:
    settings = getattr(of, "__struct_config__", None)
    tag = settings.tag_field if settings else None
    for key, value in given.items():
        if field := fields.get(key):
            yield from _faults(value, field.type, f"{path}.{key}")
        elif key != tag and settings and settings.forbid_unknown_fields:
            name, known = printable(key), sorted(fields)
            yield f"{path}: unknown field {clip(name, _LONGEST)!r}{did_you_mean(name, known) or _listed(known)}"
    for name, field in fields.items():
        if field.required and name not in given:
            yield f"{path}: missing required field {name!r}"


def _listed(known: Sequence[str]) -> str:
    if not known:
        return ": it has no fields"
    return f": there are {', '.join(known[:_MAX_NAMES])}{', ...' if len(known) > _MAX_NAMES else ''}"


# --- types ----------------------------------------------------------------------------------------


@functools.lru_cache(1024)
def _fields(of: Any) -> Mapping[str, msgspec.structs.FieldInfo] | None:
    """Returns the fields of a struct by JSON name; None for any other type."""
    cls = get_origin(of) or of
    if isinstance(cls, type) and issubclass(cls, msgspec.Struct) and not cls.__struct_config__.array_like:
        return {f.encode_name: f for f in msgspec.structs.fields(of)}
    return None


def _members(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union; for any other type, the type itself. Without ``Annotated``."""
    if get_origin(hint) is typing.Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in {typing.Union, UnionType}:
        return tuple(member for one in get_args(hint) for member in _members(one))
    return (hint,)


def _type_of_object(hint: Any, value: ReadOnlyJSON) -> Any:
    """Returns the type in ``hint`` that an object has: a struct or a mapping. None if no type fits."""
    structs = [m for m in _members(hint) if _fields(m) is not None]
    configs = [(get_origin(m) or m).__struct_config__ for m in structs]
    if structs and (field := configs[0].tag_field):  # a union has one tag field, and a struct alone may omit its tag
        tag = value.get(field, configs[0].tag if len(structs) == 1 else None)
        structs = [m for m, config in zip(structs, configs, strict=True) if config.tag == tag]
    maps = [m for m in _members(hint) if isinstance(o := get_origin(m), type) and issubclass(o, Mapping)]
    return next(iter((*structs, *maps)), None)


def _choices(hint: Any) -> list[Any]:
    """Returns the allowed values of a type, if it lists them."""
    out: list[Any] = []
    for of in _members(hint):
        if get_origin(of) is typing.Literal:
            out += get_args(of)
        elif isinstance(of, type) and issubclass(of, Enum):
            out += [member.value for member in of]
    return out
