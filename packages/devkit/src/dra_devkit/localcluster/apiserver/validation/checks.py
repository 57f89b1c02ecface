"""Checks of single fields that the validation of several kinds uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity, QuantityError
from dra_kubeletplugin.resourceapi.validation import names
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    invalids,
    required,
    unsupported,
)

IMMUTABLE = "field is immutable"
_PORT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_PERCENT = re.compile(r"[0-9]+%")
_PERCENT_RULE = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)
_ABOVE_100 = re.compile(r"0*(10[1-9]|1[1-9][0-9]|[2-9][0-9]{2}|[1-9][0-9]{3,})%")


def missing(obj: ReadOnlyJSON, path: str, *fields: str) -> list[FieldError]:
    """Returns an error for each field that is absent or empty."""
    return [required(f"{path}.{field}") for field in fields if not obj.get(field)]


def choice(value: Any, path: str, allowed: Sequence[str]) -> list[FieldError]:
    """Rejects a value that is absent or not in ``allowed``."""
    return optional_choice(value, path, allowed) if value else [required(path)]


def optional_choice(value: Any, path: str, allowed: Sequence[str]) -> list[FieldError]:
    return [] if value is None or value in allowed else [unsupported(path, value, allowed)]


def at_least(obj: ReadOnlyJSON, path: str, least: int, *fields: str) -> list[FieldError]:
    """Rejects numbers below ``least``."""
    rule = f"must be greater than or equal to {least}"
    return [invalid(f"{path}.{f}", n, rule) for f in fields if (n := obj.get(f)) is not None and n < least]


def positive(obj: ReadOnlyJSON, path: str, field: str, rule: str = "must be greater than 0") -> list[FieldError]:
    number = obj.get(field)
    return [invalid(f"{path}.{field}", number, rule)] if number is not None and number <= 0 else []


def between(number: int, path: str, low: int, high: int) -> list[FieldError]:
    return [] if low <= number <= high else [invalid(path, number, f"must be between {low} and {high}, inclusive")]


def number_or_percent(value: int | str, path: str) -> list[FieldError]:
    """Rejects a negative number, and text that is not a percentage."""
    if isinstance(value, int):
        return [] if value >= 0 else [invalid(path, value, "must be greater than or equal to 0")]
    return [] if _PERCENT.fullmatch(value) else [invalid(path, value, _PERCENT_RULE)]


def at_most_100_percent(value: int | str, path: str) -> list[FieldError]:
    return [invalid(path, value, "must not be greater than 100%")] if _ABOVE_100.fullmatch(str(value)) else []


def port(value: Any, path: str) -> list[FieldError]:
    """Rejects a port that is neither a valid number nor a valid name."""
    return port_name(value, path) if isinstance(value, str) else between(value or 0, path, 1, 65535)


def port_name(name: str, path: str) -> list[FieldError]:
    if len(name) <= 15 and _PORT_NAME.fullmatch(name) and any(c.isalpha() for c in name) and "--" not in name:
        return []
    return [invalid(path, name, "must be a valid port name of at most 15 characters (e.g. http or http-2)")]


def no_parents(target: str, path: str) -> list[FieldError]:
    """Rejects the path of a file with the part ``..``."""
    return [invalid(path, target, "must not contain '..'")] if ".." in target.split("/") else []


def quantity(text: Any) -> Quantity | None:
    """Returns a quantity; None if there is none, or if its text is not valid."""
    try:
        return None if text is None else Quantity(str(text))
    except QuantityError:
        return None


def unique_label(path: str, name: str, seen: set[str]) -> list[FieldError]:
    """Returns all errors of the name of a list's item: a DNS label that no previous item has. Adds it to ``seen``."""
    if not name:
        return [required(path)]
    out = invalids(path, name, names.label(name))
    if name in seen:
        out.append(duplicate(path, name))
    seen.add(name)
    return out


def labels(values: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns all errors of the labels that a selector requires."""
    out: list[FieldError] = []
    for key, value in values.items():
        out += invalids(path, key, names.qualified(key)) + invalids(path, value, names.label_value(value))
    return out


def label_selector(selector: ReadOnlyJSON | None, path: str) -> list[FieldError]:
    """Returns all errors of a LabelSelector."""
    selector = selector or {}
    out = labels(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for i, term in enumerate(selector.get("matchExpressions") or []):
        where = f"{path}.matchExpressions[{i}]"
        operator, values = term.get("operator", ""), term.get("values") or []
        if operator in {"In", "NotIn"} and not values:
            out.append(required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        elif operator in {"Exists", "DoesNotExist"} and values:
            rule = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            out.append(forbidden(f"{where}.values", rule))
        elif operator not in {"In", "NotIn", "Exists", "DoesNotExist"}:
            out.append(invalid(f"{where}.operator", operator, "not a valid selector operator"))
        out += invalids(f"{where}.key", term.get("key", ""), names.qualified(term.get("key", "")))
    return out
