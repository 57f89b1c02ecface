"""Extensions of griffe, which reads the docstrings for the site.

Markdown does not know the notation :class:`Name`, so it becomes code. A method whose docstring contains "For the framework." is left
out, because authors do not call it. A method of a fixture such as ``run_pod = both(DriverNode.run_pod)`` gets the parameters and the
docstring of the original method.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

INTERNAL = "For the framework."
_ROLE = re.compile(r":(?:class|meth|func|mod|data|attr):`~?([^`]+)`")
_BOTH = re.compile(r"both\((\w+)\.(\w+)\)")
_DOUBLE = re.compile(r"``([^`]+)``")


class Roles(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        self._convert(obj)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self._convert(pkg)  # `on_object` is not called for the docstring of the package itself

    def _convert(self, obj: griffe.Object) -> None:
        if obj.docstring:
            obj.docstring.value = _DOUBLE.sub(r"`\1`", _ROLE.sub(r"`\1`", obj.docstring.value))


class Internals(griffe.Extension):
    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        for name, member in list(cls.members.items()):
            if not member.is_alias and member.docstring and INTERNAL in member.docstring.value:
                cls.del_member(name)


class Fixtures(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.name != "dra_devkit":
            return
        facade = pkg["testing.facade"]
        for cls in facade.classes.values():
            for name, attribute in list(cls.attributes.items()):
                if match := _BOTH.fullmatch(str(attribute.value)):
                    cls.set_member(name, _blocking(name, _method(facade, *match.groups())))


def _method(module: griffe.Module, owner: str, name: str) -> griffe.Function:
    """Returns a method of ``owner``, which is a class, or an alias of a class as in ``_Node = DriverNode[Any]``."""
    if owner in module.attributes:
        owner = str(module.attributes[owner].value).partition("[")[0]
    found: griffe.Function = module[owner].all_members[name]
    return found


def _blocking(name: str, method: griffe.Function) -> griffe.Function:
    out = griffe.Function(name, parameters=method.parameters, returns=method.returns)
    if method.docstring:
        out.docstring = griffe.Docstring(method.docstring.value, parent=out)
    return out
