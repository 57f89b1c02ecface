"""Docstrings name classes as :class:`Name`, which Markdown shows as it is written: here they become code. An extension of griffe."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|data|attr):`~?([^`]+)`")
_DOUBLE = re.compile(r"``([^`]+)``")


class Roles(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        self._written(obj)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self._written(pkg)  # a package's own docstring comes after it

    def _written(self, obj: griffe.Object) -> None:
        if obj.docstring:
            obj.docstring.value = _DOUBLE.sub(r"`\1`", _ROLE.sub(r"`\1`", obj.docstring.value))
