"""Writes YAML in which Kubernetes and PyYAML read each text as a text."""

from __future__ import annotations

import re

import yaml

# The scalars that are no text, as sigs.k8s.io/yaml reads them.
WORDS: dict[str, tuple[str, bool | None]] = dict.fromkeys(("", "~", "null", "Null", "NULL"), ("null", None))
for _boolean, _spellings in ((True, ("y", "yes", "true", "on")), (False, ("n", "no", "false", "off"))):
    WORDS |= {form: ("bool", _boolean) for word in _spellings for form in (word, word.capitalize(), word.upper())}
INT = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NOT_IN_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def is_text(text: str) -> bool:
    """Whether the text is a string also without quotes."""
    number = text.replace("_", "")
    numbers = INT.fullmatch(number), FLOAT.fullmatch(number), NOT_IN_JSON.fullmatch(text)
    return text not in WORDS and text != "<<" and not any(numbers)


class _Dumper(yaml.SafeDumper):
    """Quotes text that would be read as a value of another type. Writes a text of several lines as a block."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if is_text(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(value: object, width: int = 140, *, unicode: bool = False) -> str:
    """Returns the value as YAML that Kubernetes and PyYAML read as this value. Without ``unicode``, the text is ASCII."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=unicode, width=width)
    return text
