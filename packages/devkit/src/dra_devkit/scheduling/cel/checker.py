"""Assigns a type to every node and overloads to every call, or reports why no type or overload fits."""

from __future__ import annotations

from collections.abc import Mapping

from .ast import CallExpr, Expr, Fold, Ident, ListExpr, Literal, MapExpr, Select, children
from .declarations import FUNCTIONS, TYPE_NAMES, Overload
from .lexer import Source
from .literals import literal_faults
from .types import ANY, BOOL, DYN, ERROR, Unifier, is_dyn, is_object, is_variable, most_general, replace
from .values import CompileError, Type, UInt

INT = Type("int")
_SHORT = {
    "google.protobuf.Any": "any",
    "google.protobuf.Duration": "duration",
    "google.protobuf.Timestamp": "timestamp",
    "null_type": "null",
}


class Checker:
    """Checks one expression.

    ``any_is_iterable`` allows comprehensions over a value of type ``any``, as Kubernetes does where attributes can be lists.
    """

    def __init__(
        self,
        source: Source,
        variables: Mapping[str, Type],
        objects: Mapping[str, Mapping[str, Type]],
        functions: Mapping[str, list[Overload]] = FUNCTIONS,
        *,
        any_is_iterable: bool = False,
    ) -> None:
        self.source = source
        self.scopes: list[dict[str, Type]] = [dict(variables)]
        self.objects = objects
        self.functions = functions
        self.any_is_iterable = any_is_iterable
        self.faults: list[tuple[int, str]] = []
        self.types = Unifier()

    def check(self, node: Expr) -> Type:
        """Returns the type of ``node``.

        Raises :class:`CompileError` with every error, in source order.
        """
        self._visit(node)
        self._set_final_types(node)
        if not self.faults:
            self.faults = literal_faults(node)
        if self.faults:
            shown = [self.source.fault(pos, message) for pos, message in sorted(self.faults, key=lambda f: f[0])]
            raise CompileError("compilation failed: " + "\n".join(shown))
        return self._type_of(node)

    def _set_final_types(self, node: Expr) -> None:
        node.type = self.types.substitute(self._type_of(node), final=True)
        for child in children(node):
            if child.type is not None:
                self._set_final_types(child)

    def _type_of(self, node: Expr) -> Type:
        assert node.type is not None
        return node.type

    def _fault(self, pos: int, message: str) -> Type:
        self.faults.append((pos, message))
        return ERROR

    def _mismatch(self, node: Expr, wanted: Type, found: Type) -> Type:
        return self._fault(node.pos, f"expected type '{self._shown(wanted)}' but found '{self._shown(found)}'")

    def _shown(self, t: Type) -> str:
        return _signature(self.types.substitute(t, final=True))

    def _visit(self, node: Expr) -> Type:
        node.type = found = self._check(node)
        return found

    def _check(self, node: Expr) -> Type:
        match node:
            case Literal():
                return _literal(node)
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case CallExpr():
                return self._call(node)
            case ListExpr():
                joined = self._join(node.elements, node.optional)
                return Type("list", (joined or self.types.fresh(),))
            case MapExpr():
                keys = self._join([k for k, _ in node.entries], [False] * len(node.entries))
                values = self._join([v for _, v in node.entries], node.optional)
                return Type("map", (keys or self.types.fresh(), values or self.types.fresh()))
            case Fold():
                return self._fold(node)
        raise AssertionError(node)

    def _join(self, nodes: list[Expr], optional: list[bool]) -> Type | None:
        """Returns the common type of the nodes. Different types are not an error here; :mod:`.literals` may reject them later."""
        known: Type | None = None
        for node, maybe in zip(nodes, optional, strict=True):
            t = self._visit(node)
            if maybe and t.name == "optional_type":
                t = t.params[0]
            elif maybe and not is_dyn(t):
                self._mismatch(node, Type("optional_type", (t,)), t)
            if known is None:
                known = t
            else:
                known = most_general(known, t) if self.types.assignable([known], [t]) else DYN
        return known

    def _ident(self, node: Ident) -> Type:
        for scope in reversed(self.scopes):
            if node.name in scope:
                return scope[node.name]
        if node.name in TYPE_NAMES:
            return Type("type", (Type(node.name),))
        return self._fault(node.pos, f"undeclared reference to '{node.name}' (in container '')")

    def _select(self, node: Select) -> Type:
        qualified = self._qualified(node)
        if qualified in TYPE_NAMES:
            # The node is the name of a type, such as net.IP, so its operand is not a value.
            node.type_name = qualified
            return Type("type", (Type(qualified),))
        operand = self.types.substitute(self._visit(node.operand))
        target = operand.params[0] if operand.name == "optional_type" else operand
        found = self._field(target, node)
        if node.optional or target is not operand:
            found = Type("optional_type", (found,))
        return BOOL if node.test else self.types.substitute(found)

    def _field(self, operand: Type, node: Select) -> Type:
        if operand.name == "map":
            return operand.params[1]
        if is_object(operand):
            found = self.objects.get(operand.name, {}).get(node.field)
            return found or self._fault(node.pos, f"undefined field '{node.field}'")
        if is_variable(operand):
            self.types.assignable([DYN], [operand])
        elif not is_dyn(operand) and operand != ERROR:
            self._fault(node.pos, f"type '{self._shown(operand)}' does not support field selection")
        return DYN

    def _qualified(self, node: Expr) -> str | None:
        if isinstance(node, Ident):
            return node.name
        if isinstance(node, Select) and not node.test and not node.optional:
            head = self._qualified(node.operand)
            return f"{head}.{node.field}" if head else None
        return None

    def _call(self, node: CallExpr) -> Type:
        for a in node.args:
            self._visit(a)
        if node.target is not None:
            prefix = self._qualified(node.target)
            if prefix and f"{prefix}.{node.function}" in self.functions:
                node.function, node.target = f"{prefix}.{node.function}", None
            else:
                self._visit(node.target)
        candidates = self.functions.get(node.function)
        if candidates is None:
            return self._fault(node.pos, f"undeclared reference to '{node.function}' (in container '')")
        types = [self._type_of(o) for o in node.operands()]
        if node.function in {"_&&_", "_||_"}:
            return self._logical(node, candidates[0], types)
        result: Type | None = None
        for overload in candidates:
            if overload.member != (node.target is not None) or len(overload.params) != len(types):
                continue
            names = {v: self.types.fresh() for v in overload.variables}
            if self.types.assignable(types, [replace(p, names) for p in overload.params]):
                node.overloads.append(overload)
                found = self.types.substitute(replace(overload.result, names))
                if result is None:
                    result = found
                elif not is_dyn(result) and found != result:
                    result = DYN
        if result is None:
            member = node.target is not None
            shown = [self._shown(t) for t in types]
            signature = f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"
            return self._fault(node.pos, f"found no matching overload for '{node.function}' applied to '{signature}'")
        return result

    def _logical(self, node: CallExpr, overload: Overload, types: list[Type]) -> Type:
        bad = [(a, t) for a, t in zip(node.args, types, strict=True) if not self.types.assignable([t], [BOOL])]
        for a, t in bad:
            self._mismatch(a, BOOL, t)
        node.overloads.append(overload)
        return ERROR if bad else BOOL

    def _fold(self, node: Fold) -> Type:
        over = self.types.substitute(self._visit(node.range))
        accu = self._visit(node.init)
        first, second = DYN, DYN
        if over.name == "list":
            first, second = (INT if node.var2 else over.params[0]), over.params[0]
        elif over.name == "map":
            first, second = over.params
        elif over in {DYN, ERROR} or is_variable(over) or (over == ANY and self.any_is_iterable):
            self.types.assignable([DYN], [over])
        else:
            message = f"expression of type '{self._shown(over)}' cannot be range of a comprehension (must be list, map, or dynamic)"
            first = second = self._fault(node.range.pos, message)
        self.scopes.append({node.accu: accu})
        self.scopes.append({node.var: first, **({node.var2: second} if node.var2 else {})})
        self._expect(node.condition, BOOL)
        self._expect(node.step, accu)
        self.scopes.pop()
        result = self._visit(node.result)
        self.scopes.pop()
        return self.types.substitute(result)

    def _expect(self, node: Expr, wanted: Type) -> None:
        found = self._visit(node)
        if not self.types.assignable([wanted], [found]):
            self._mismatch(node, wanted, found)


def _literal(node: Literal) -> Type:
    v = node.value
    if v is None:
        return Type("null_type")
    for kind, name in ((bool, "bool"), (UInt, "uint"), (int, "int"), (float, "double"), (str, "string")):
        if isinstance(v, kind):
            return Type(name)
    return Type("bytes")


def _signature(t: Type) -> str:
    """Returns the text of a type in messages."""
    if t.params:
        return f"{t.name}({', '.join(_signature(p) for p in t.params)})"
    return _SHORT.get(t.name, t.name)


def boolean_fault(t: Type) -> str:
    """Returns why a selector whose result has type ``t`` is rejected; empty if it is accepted."""
    if t in {BOOL, ANY}:
        return ""
    return f"must evaluate to bool or the unknown type, not {t}"
