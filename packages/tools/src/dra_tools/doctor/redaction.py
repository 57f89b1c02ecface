"""Removes secrets from text and objects that leave the cluster in a file: values of environment variables, tokens, keys, passwords.

It finds secrets by the name of a field, flag, assignment or header, and by their form (JWT, PEM block, credentials in a URL).
If in doubt, it removes the value, because a leaked password must be changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.resourceapi.encoded import TOO_DEEP

REMOVED = "<removed>"
_MAX_DEPTH = 100  # levels; a claim's parameters may have thousands, but Python allows only a thousand frames
_WORDS = (
    r"pass(?:word|wd|phrase|code)?|pwd|secret|token|credential|dockerc(?:onfigjson|fg)"
    r"|(?:api|access|account|private|licen[cs]e|signing|encryption|shared|ssh|storage|master|subscription)[-_]?key"
    r"|(?:key|cert(?:ificate)?)[-_]?data|cookie|authorization"
)
_NAMES = re.compile(rf"(?i)({_WORDS}|(^|[^a-z])(auth|sig|signature)$)|(?-i:(Auth|Signature)$)")
# A field whose name has such an ending only names a Secret or a file, so its value is kept.
_REFERENCE_ENDINGS = ("Name", "name", "Ref", "Path", "path")
_ANNOTATIONS = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
# In JSON within JSON, the quotes are preceded by backslashes.
_QUOTED = r"(?P<q>\\*[\"'])(?:.|\n){0,2048}?(?<!\\)(?P=q)"
_BLOCK = r"[|>][-+0-9]*[ \t]*\n(?:[ \t]+[^ \t\n].*(?:\n|\Z))+"  # a block scalar of YAML
_FORMS = (
    re.compile(r"(?P<name>)(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # JWT, RFC 7519
    re.compile(
        r"(?P<name>)-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----.*?(-----END [A-Z ]{0,32}PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    re.compile(r"(?P<name>)LS0tLS1CRUdJTi[\w+/=]*"),  # a PEM block in base64, as in a kubeconfig
    re.compile(r"(?P<name>(?i:\bbearer) )[\w.~+/=-]{8,}"),
    # Credentials, but not a word of a sentence
    re.compile(r"(?P<name>(?i:\bbasic) )(?=[a-z]{0,64}[A-Z0-9+/=])[\w+/=]{6,}"),
    re.compile(r"(?P<name>://)[^\s/\"'<>]{1,512}(?=@)"),  # credentials in a URL
    # Credentials in a URL, with a slash in the password that should have been %2F
    re.compile(r"(?P<name>://)[^\s/:@\"'<>]{0,128}:(?!\d+/)[^\s\"'<>@]{1,512}(?=@)"),
    re.compile(
        r"(?P<name>)\b(gh[oprsu]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{8,}|nvapi-[\w-]{16,})"
    ),
    re.compile(r"(?P<name>)\b(?:AKIA|ASIA)[0-9A-Z]{12,}"),
)
_NAMED = (
    # A header; its value may have several words.
    re.compile(rf"(?i)(?P<name>(?:authorization|cookie)\\*[\"']?\s*[=:]\s*)(?:{_QUOTED}|[^\s\"'][^\n\"']*)"),
    re.compile(
        rf"(?i)(?P<name>(?:(?:{_WORDS})[\w.-]{{0,64}}|(?<![a-z-])(?:auth|sig)|signature)\\*[\"']?(?:\s+is)?\s*[=:]\s*)"
        rf"(?:{_QUOTED}|{_BLOCK}|\S+)"
    ),
    re.compile(rf"(?i)(?P<name>(?<!\S)--?[\w.-]{{0,64}}?(?:{_WORDS})[\w.-]{{0,64}}[ \t]+)(?:{_QUOTED}|(?!-)\S+)"),
    re.compile(r"(?P<name>(?<!\S)(?:-u|--user)[ =]+[^\s:]+:)\S+"),  # the user option of curl
)
_LONE_FLAG = re.compile(rf"(?i)--?[\w.-]{{0,64}}?(?:{_WORDS})[\w.-]{{0,64}}")
_HINT = re.compile(
    rf"(?i){_WORDS}|auth|sig|bearer|basic|://|eyJ|-----|LS0|gh[oprsu]_|github_|glpat|xox|nvapi|AKIA|ASIA|-u|--user"
)
"""Text that does not match contains no secret. Nearly every line is of this kind, so the check saves time."""


def redact_text(value: str) -> str:
    """Returns a log or another text without the parts that look like a secret. Handles a line of JSON as an object."""
    if not _HINT.search(value):
        return value
    out: list[str] = []
    plain: list[str] = []
    for line in value.split("\n"):
        if (found := _json(line)) is None:
            plain.append(line)
            continue
        if plain:
            out.append(_plain("\n".join(plain)))
            plain = []
        out.append(found)
    return "\n".join([*out, _plain("\n".join(plain))] if plain else out)


def _json(line: str) -> str | None:
    """Returns a line of JSON without secrets; None if the line is not a JSON object or list."""
    if not line.lstrip().startswith(("{", "[")):
        return None
    if not _HINT.search(line):
        return line
    try:
        return json.dumps(redact_object(json.loads(line)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _plain(value: str) -> str:
    if _HINT.search(value):
        for pattern in (*_FORMS, *_NAMED):
            value = pattern.sub(_without_value, value)
    return value


def _without_value(match: re.Match[str]) -> str:
    name = match["name"]
    if name.rstrip(" \t\n=:\"'\\").endswith(_REFERENCE_ENDINGS):
        return match[0]
    quote = match.groupdict().get("q") or ""
    return f"{name}{quote}{REMOVED}{quote}"


def redact_object(obj: Any, name: str = "", depth: int = 0) -> Any:
    """Returns a copy of a JSON value without managed fields, values of environment variables, and secrets.

    Also replaces values that are nested more than 100 levels deep, because Python cannot process any depth.
    """
    if depth > _MAX_DEPTH and isinstance(obj, Mapping | list | tuple):
        return TOO_DEEP
    if isinstance(obj, Mapping):
        if name == "env":  # the environment of a container, in the form of a mapping
            return dict.fromkeys(map(str, obj), REMOVED)
        called = obj.get("name", obj.get("key"))  # an object with name and value is treated as a field of that name
        secret = isinstance(called, str) and _is_secret(called)
        out = {}
        for key, value in obj.items():
            if key in _ANNOTATIONS or key == "managedFields":
                continue
            hidden = _is_secret(str(key)) or (secret and key == "value")
            out[str(key)] = _hidden(value, depth + 1) if hidden else redact_object(value, str(key), depth + 1)
        return out
    if isinstance(obj, list | tuple):
        if name == "env":
            return [_variable(v, depth + 1) for v in obj]
        return [REMOVED if _follows_flag(obj, i) else redact_object(v, name, depth + 1) for i, v in enumerate(obj)]
    return redact_text(obj) if isinstance(obj, str) else obj


def _is_secret(key: str) -> bool:
    return bool(_NAMES.search(key)) and not key.endswith(_REFERENCE_ENDINGS)


def _hidden(value: Any, depth: int) -> Any:
    """Returns the value of a secret field with all nested values removed. Keeps booleans, and fields that only name a Secret."""
    if depth > _MAX_DEPTH and isinstance(value, Mapping | list | tuple):
        return TOO_DEEP
    deeper = depth + 1
    if isinstance(value, Mapping):
        return {
            str(k): redact_object(v, str(k), deeper) if str(k).endswith(_REFERENCE_ENDINGS) else _hidden(v, deeper)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_hidden(v, deeper) for v in value]
    return value if value is None or isinstance(value, bool) else REMOVED


def _follows_flag(arguments: list[Any] | tuple[Any, ...], i: int) -> bool:
    """Returns whether an argument is the value of a secret flag before it, as in ``--password VALUE``."""
    flag, value = arguments[i - 1] if i else None, arguments[i]
    is_value = isinstance(value, str | int | float) and not str(value).startswith("-")
    return (
        isinstance(flag, str)
        and is_value
        and bool(_LONE_FLAG.fullmatch(flag))
        and not flag.endswith(_REFERENCE_ENDINGS)
    )


def _variable(entry: Any, depth: int) -> Any:
    """Hides the value of an environment variable, in the form of Kubernetes (name and value) or CDI (NAME=VALUE)."""
    if isinstance(entry, Mapping):
        return {k: REMOVED if k == "value" else redact_object(v, k, depth + 1) for k, v in entry.items()}
    return f"{str(entry).partition('=')[0]}={REMOVED}"
