"""Unifies types: checks assignability and binds the free type variables of an expression.

It follows cel-go's checker: ``dyn`` and ``any`` unify with every type, and null unifies with objects. Of two unified types, the more
general type is kept.
"""

from __future__ import annotations

from .values import Type

DYN = Type("dyn")
ANY = Type("google.protobuf.Any")
BOOL = Type("bool")
ERROR = Type("!error!")
_WITH_PARAMETERS = ("list", "map", "optional_type")


def is_dyn(t: Type) -> bool:
    return t.name in {"dyn", "google.protobuf.Any"}


def is_variable(t: Type) -> bool:
    """Returns whether ``t`` is a type variable: ``A`` in a declaration, or ``@3`` as created by :class:`Unifier`."""
    return t.name[0] == "@" or (len(t.name) == 1 and t.name.isupper())


def is_object(t: Type) -> bool:
    return t.name.startswith("kubernetes.")


def _nullable(t: Type) -> bool:
    return t.name.startswith(("kubernetes.", "net.", "google.protobuf.")) or t.name in {"optional_type", "null_type"}


def replace(t: Type, names: dict[str, Type]) -> Type:
    """Returns ``t`` with the variables in ``names`` replaced."""
    if found := names.get(t.name):
        return found
    return Type(t.name, tuple(replace(p, names) for p in t.params)) if t.params else t


class Unifier:
    """The type variables of one expression and their bindings."""

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}
        self._count = 0

    def fresh(self) -> Type:
        self._count += 1
        return Type(f"@{self._count}")

    def assignable(self, actual: list[Type], wanted: list[Type]) -> bool:
        """Returns whether each type of ``actual`` can be assigned to its type in ``wanted``. Binds variables only if all can."""
        saved = dict(self._bound)
        if len(actual) == len(wanted) and all(self._assign(a, w) for a, w in zip(actual, wanted, strict=True)):
            return True
        self._bound = saved
        return False

    def substitute(self, t: Type, *, final: bool = False) -> Type:
        """Returns ``t`` with bound variables replaced by their types. If ``final``, unbound variables become ``dyn``."""
        if found := self._bound.get(t.name):
            return self.substitute(found, final=final)
        if final and is_variable(t):
            return DYN
        return Type(t.name, tuple(self.substitute(p, final=final) for p in t.params)) if t.params else t

    def _assign(self, a: Type, b: Type) -> bool:
        if is_variable(b):
            valid, bound = self._bind(a, b)
            if valid or bound:
                return valid
        if is_variable(a):
            return self._bind(b, a)[0]
        if is_dyn(a) or is_dyn(b) or ERROR in (a, b):
            return True
        if a.name == "null_type":
            return _nullable(b)
        if b.name == "null_type":
            return _nullable(a)
        if a.name == "type" or b.name == "type" or a.name not in _WITH_PARAMETERS:
            return a.name == b.name
        return (
            a.name == b.name
            and len(a.params) == len(b.params)
            and all(self._assign(x, y) for x, y in zip(a.params, b.params, strict=True))
        )

    def _bind(self, t: Type, variable: Type) -> tuple[bool, bool]:
        """Binds ``variable`` to ``t`` if possible. Returns whether that is valid, and whether the variable was already bound."""
        if t == variable:
            return True, True
        if known := self._bound.get(variable.name):
            if t == known:
                return True, True
            if not self._assign(t, known):
                return False, True
            general = most_general(t, known)
            if not self._occurs(variable, general):
                self._bound[variable.name] = general
            return True, True
        if self._occurs(variable, t):
            return False, False
        self._bound[variable.name] = t
        return True, False

    def _occurs(self, variable: Type, within: Type) -> bool:
        if within == variable:
            return True
        if is_variable(within):
            known = self._bound.get(within.name)
            return known is not None and self._occurs(variable, known)
        return within.name != "type" and any(self._occurs(variable, p) for p in within.params)


def most_general(a: Type, b: Type) -> Type:
    return a if _less_specific(a, b) else b


def _less_specific(a: Type, b: Type) -> bool:
    if is_dyn(a) or is_variable(a):
        return True
    if is_dyn(b) or is_variable(b) or a.name != b.name:
        return False
    if a.name in _WITH_PARAMETERS:
        return len(a.params) == len(b.params) and all(map(_less_specific, a.params, b.params))
    return True
