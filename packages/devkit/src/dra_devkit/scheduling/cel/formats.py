"""The named formats of Kubernetes' CEL library. Each validates a text and returns its errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date

from dra_kubeletplugin.resourceapi.validation import names

from .registry import FUNCTIONS, define, need
from .urls import parse_url
from .values import NONE, CelError, Format, Optional

_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end "
    "with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def _label_1035(text: str) -> list[str]:
    out = [] if len(text) <= names.MAX_LABEL else [f"must be no more than {names.MAX_LABEL} characters"]
    return out if _LABEL_1035.fullmatch(text) else [*out, _LABEL_1035_RULE]


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Returns the check for the beginning of a name (``generateName``), which may end with a dash."""
    return lambda text: check(text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text)


def _date(text: str) -> bool:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return text.startswith("0000-") and _date("2000" + text[4:])
    return True


def _datetime(text: str) -> bool:
    parts = text.lower().split("t")
    match = _TIME.fullmatch(parts[1]) if len(parts) > 1 else None
    return bool(match and _date(parts[0]) and match[1] <= "23" and match[2] <= "59" and match[3] <= "59")


def _uri(text: str) -> list[str]:
    try:
        parse_url(text)
    except CelError as e:
        return [str(e)]
    return []


def _if_not(valid: Callable[[str], object], fault: str) -> Callable[[str], list[str]]:
    return lambda text: [] if valid(text) else [fault]


# Each format with its check and the length of its pattern in Kubernetes, which decides the cost of a validation.
_FORMATS: dict[str, tuple[Callable[[str], list[str]], int]] = {
    # As in Kubernetes, a dot is reported like any other invalid character. `names.label` has a special message for it.
    "dns1123Label": (lambda v: names.label(v.replace(".", "_")), 30),
    "dns1123Subdomain": (names.subdomain, 60),
    "dns1035Label": (_label_1035, 30),
    "qualifiedName": (names.qualified, 60),
    "labelValue": (names.label_value, 40),
    "uri": (_uri, 1103),
    "uuid": (_if_not(_UUID.fullmatch, "does not match the UUID format"), 70),
    "byte": (_if_not(_BASE64.fullmatch, "invalid base64"), 84),
    "date": (_if_not(_date, "invalid date"), 71),
    "datetime": (_if_not(_datetime, "invalid datetime"), 71),
}
for _name in ("dns1123Label", "dns1123Subdomain", "dns1035Label"):
    _check, _length = _FORMATS[_name]
    _FORMATS[f"{_name}Prefix"] = (_prefix(_check), _length)
_NAMED = {name: Format(name, check, length) for name, (check, length) in _FORMATS.items()}


def _constant(value: Format) -> Callable[[], Format]:
    return lambda: value


for _name, _format in _NAMED.items():
    FUNCTIONS[f"format.{_name}"] = _constant(_format)
FUNCTIONS["format.named"] = lambda name: Optional(True, _NAMED[name]) if need(name, str) in _NAMED else NONE


@define("validate")
def validate(a: Format, text: str) -> Optional:
    faults = need(a, Format).validate(need(text, str))
    return Optional(True, faults) if faults else NONE
