"""What must not leave a cluster in a file that is sent around: values of the environment, tokens, keys, whatever is named like a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REMOVED = "<removed>"
_NAMES = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|credential|api[-_]?key|private[-_]?key|auth(orization)?$|cert(ificate)?-?data)"
)
_ANNOTATIONS = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
_TEXTS = (
    re.compile(r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # JWT, RFC 7519
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{8,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # credentials in a URL
)
_ASSIGNED = re.compile(r"(?i)((?:pass(?:word|wd)?|secret|token|api[-_]?key)[\w-]*\s*[=:]\s*)(\"[^\"]*\"|\S+)")


def text(value: str) -> str:
    """A log, or any other text, without what looks like a secret."""
    for pattern in _TEXTS:
        value = pattern.sub(REMOVED, value)
    return _ASSIGNED.sub(rf"\1{REMOVED}", value)


def tidy(obj: Any, name: str = "") -> Any:
    """A copy of an object without managed fields, values of the environment, and secrets."""
    if isinstance(obj, Mapping):
        if name == "env":  # of a container of CDI or OCI as a mapping
            return dict.fromkeys(obj, REMOVED)
        out = {}
        for key, value in obj.items():
            if key in _ANNOTATIONS or key == "managedFields":
                continue
            out[key] = REMOVED if _is_secret(str(key), value) else tidy(value, str(key))
        return out
    if isinstance(obj, list | tuple):
        return [_variable(v) if name == "env" else tidy(v, name) for v in obj]
    return text(obj) if isinstance(obj, str) else obj


def _is_secret(key: str, value: object) -> bool:
    """Names of Secrets and of fields that only refer to one are no secrets."""
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return plain and bool(_NAMES.search(key)) and not key.endswith(("Name", "name", "Ref", "Path"))


def _variable(entry: Any) -> Any:
    """One of a container's, as Kubernetes (name and value) or CDI (NAME=VALUE) has it: names tell enough."""
    if isinstance(entry, Mapping):
        return {k: REMOVED if k == "value" else tidy(v, k) for k, v in entry.items()}
    return f"{str(entry).partition('=')[0]}={REMOVED}"
