"""Validates a LabelSelector."""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation import names
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden, invalid, invalids, required


def label_selector(selector: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns all errors of a LabelSelector."""
    out: list[FieldError] = []
    for key, value in (selector.get("matchLabels") or {}).items():
        out += invalids(f"{path}.matchLabels", key, names.qualified(key))
        out += invalids(f"{path}.matchLabels", value, names.label_value(value))
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
