"""Gives every node a type, or says why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .ast import Call, Fold, Ident, ListExpr, Literal, MapExpr, Node, Select
from .declarations import FUNCTIONS, Overload
from .library import parse_duration, parse_timestamp, regex
from .parser import Source
from .values import CompileError, Type, UInt

DYN = Type("dyn")
ANY = Type("google.protobuf.Any")
BOOL = Type("bool")
_TYPE_NAMES = ("int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type", "dyn")


EMPTY = Type("empty")  # what an empty literal holds: anything, until something says what


def _is_dyn(t: Type) -> bool:
    return t.name in {"dyn", "google.protobuf.Any", "empty"}


def _is_parameter(t: Type) -> bool:
    return len(t.name) == 1 and t.name.isupper()


def _nullable(t: Type) -> bool:
    return t.name.startswith(("kubernetes.", "net.", "google.protobuf.")) or t.name == "optional_type"


class Checker:
    def __init__(
        self,
        source: Source,
        variables: Mapping[str, Type],
        objects: Mapping[str, Mapping[str, Type]],
        functions: Mapping[str, list[Overload]] = FUNCTIONS,
    ) -> None:
        self.source = source
        self.scopes: list[dict[str, Type]] = [dict(variables)]
        self.objects = objects
        self.functions = functions
        self.faults: list[tuple[int, str]] = []
        self.mixed = False  # within the arguments of format, whose list may have values of any type

    def check(self, node: Node) -> Type:
        """The type of ``node``.

        Raises :class:`CompileError` with every fault, in the order of their places.
        """
        result = self._visit(node)
        if self.faults:
            shown = [self.source.fault(pos, message) for pos, message in sorted(self.faults, key=lambda f: f[0])]
            raise CompileError("compilation failed: " + "\n".join(shown))
        return result

    def _fault(self, pos: int, message: str) -> Type:
        self.faults.append((pos, message))
        return Type("!error!")

    def _visit(self, node: Node) -> Type:
        node.type = found = self._type(node)
        return found

    def _type(self, node: Node) -> Type:
        match node:
            case Literal():
                return self._literal(node)
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListExpr():
                types = []
                for element, optional in zip(node.elements, node.optional, strict=True):
                    t = self._visit(element)
                    types.append(t.params[0] if optional and t.name == "optional_type" else t)
                return Type("list", (self._join(types, [e.pos for e in node.elements]),))
            case MapExpr():
                keys = [self._visit(k) for k, _ in node.entries]
                values = []
                for (_, value), optional in zip(node.entries, node.optional, strict=True):
                    t = self._visit(value)
                    values.append(t.params[0] if optional and t.name == "optional_type" else t)
                return Type(
                    "map",
                    (
                        self._join(keys, [k.pos for k, _ in node.entries]),
                        self._join(values, [v.pos for _, v in node.entries]),
                    ),
                )
            case Fold():
                return self._fold(node)
        raise AssertionError(node)

    def _literal(self, node: Literal) -> Type:
        v = node.value
        if v is None:
            return Type("null_type")
        for kind, name in ((bool, "bool"), (UInt, "uint"), (int, "int"), (float, "double"), (str, "string")):
            if isinstance(v, kind):
                return Type(name)
        return Type("bytes")

    def _join(self, types: list[Type], places: list[int]) -> Type:
        known: Type | None = None
        for t, pos in zip(types, places, strict=True):
            if t.name == "!error!":
                return DYN
            if known is None:
                known = t
            elif not self._assignable(t, known, {}) and not _is_dyn(t):
                if self.mixed:
                    known = DYN
                    continue
                # Kubernetes demands aggregate literals of one type.
                return self._fault(pos, f"expected type '{known}' but found '{t}'")
            elif _is_dyn(t):
                known = DYN
        return known or EMPTY

    def _ident(self, node: Ident) -> Type:
        for scope in reversed(self.scopes):
            if node.name in scope:
                return scope[node.name]
        if node.name in _TYPE_NAMES:
            return Type("type", (Type(node.name),))
        return self._fault(node.pos, f"undeclared reference to '{node.name}' (in container '')")

    def _select(self, node: Select) -> Type:
        operand = self._visit(node.operand)
        if operand.name == "!error!":
            return operand
        wrap = node.optional
        if operand.name == "optional_type":
            operand, wrap = operand.params[0], True
        found = self._field(operand, node)
        if node.test:
            return found if found.name == "!error!" else BOOL
        return Type("optional_type", (found,)) if wrap and found.name != "!error!" else found

    def _field(self, operand: Type, node: Select) -> Type:
        if _is_dyn(operand):
            return DYN
        if operand.name == "map":
            return operand.params[1]
        if operand.name in self.objects:
            fields = self.objects[operand.name]
            if node.field in fields:
                return fields[node.field]
            return self._fault(node.pos, f"undefined field '{node.field}'")
        return self._fault(node.pos, f"type '{operand}' does not support field selection")

    def _qualified(self, node: Node) -> str | None:
        if isinstance(node, Ident):
            return None if any(node.name in s for s in self.scopes) else node.name
        if isinstance(node, Select) and not node.test and not node.optional:
            head = self._qualified(node.operand)
            return f"{head}.{node.field}" if head else None
        return None

    def _call(self, node: Call) -> Type:
        if node.target is not None:
            prefix = self._qualified(node.target)
            if prefix and f"{prefix}.{node.function}" in self.functions:
                node.function, node.target = f"{prefix}.{node.function}", None
        operands = ([node.target] if node.target is not None else []) + node.args
        mixed, self.mixed = self.mixed, self.mixed or node.function == "format"
        types = [self._visit(o) for o in operands]
        self.mixed = mixed
        candidates = self.functions.get(node.function)
        if candidates is None:
            return self._fault(node.pos, f"undeclared reference to '{node.function}' (in container '')")
        if any(t.name == "!error!" for t in types):
            return Type("!error!")
        member = node.target is not None
        result: Type | None = None
        for overload in candidates:
            if overload.member != member or len(overload.params) != len(types):
                continue
            bound: dict[str, Type] = {}
            if all(self._assignable(t, p, bound) for t, p in zip(types, overload.params, strict=True)):
                node.overloads.append(overload)
                found = self._substitute(overload.result, bound)
                result = found if result is None or result == found else DYN
        if result is None:
            shown = self._signature(types, member=member)
            return self._fault(node.pos, f"found no matching overload for '{node.function}' applied to '{shown}'")
        if node.function == "_?_:_" and _is_dyn(types[1]) != _is_dyn(types[2]):
            return DYN
        self._literal_arguments(node)
        return result

    @staticmethod
    def _signature(types: list[Type], *, member: bool) -> str:
        shown = [_shown(t) for t in types]
        if member:
            return f"{shown[0]}.({', '.join(shown[1:])})"
        return f"({', '.join(shown)})"

    def _literal_arguments(self, node: Call) -> None:
        """Constant arguments that cannot work are faults at compile time."""
        if node.function == "format":
            self._format_arguments(node)
        last = node.args[-1] if node.args else None
        if not isinstance(last, Literal) or not isinstance(last.value, str):
            return
        parsers: dict[str, Callable[[str], object]] = {
            "matches": regex,
            "duration": parse_duration,
            "timestamp": parse_timestamp,
        }
        if parse := parsers.get(node.function):
            try:
                parse(last.value)
            except Exception:
                self._fault(last.pos, f"invalid {node.function} argument")

    def _format_arguments(self, node: Call) -> None:
        """A literal format string and its literal list of arguments are checked together."""
        template, args = node.target, node.args[0]
        if not (isinstance(template, Literal) and isinstance(template.value, str) and isinstance(args, ListExpr)):
            return
        clauses = [m[1] for m in re.finditer(r"%(?:\.\d+)?([sdfeboxX%])", template.value) if m[1] != "%"]
        for i, clause in enumerate(clauses):
            if i >= len(args.elements):
                self._fault(args.pos, f"error during formatting: index {i} out of range")
                return
            element = args.elements[i]
            word, allowed, listed = _CLAUSES[clause]
            name = element.type.name
            if name != "dyn" and name not in allowed:
                message = (
                    f"error during formatting: {word} clause can only be used on {listed}, was given {element.type}"
                )
                self._fault(element.pos, message)
        if len(args.elements) > len(clauses):
            message = "too many arguments supplied to the formatting call"
            self._fault(args.elements[len(clauses)].pos, f"error during formatting: {message}")

    def _fold(self, node: Fold) -> Type:
        over = self._visit(node.range)
        init = self._visit(node.init)
        variables: dict[str, Type] = {}
        if over.name == "list":
            element = over.params[0]
            variables[node.var] = Type("int") if node.var2 else element
            if node.var2:
                variables[node.var2] = element
        elif over.name == "map":
            variables[node.var] = over.params[0]
            if node.var2:
                variables[node.var2] = over.params[1]
        elif _is_dyn(over):
            variables[node.var] = DYN
            if node.var2:
                variables[node.var2] = DYN
        elif over.name == "!error!":
            return over
        else:
            message = f"expression of type '{over}' cannot be range of a comprehension (must be list, map, or dynamic)"
            return self._fault(node.range.pos, message)
        self.scopes.append({node.accu: init})
        self.scopes.append(variables)
        self._visit(node.condition)
        step = self._visit(node.step)
        if init.name in {"list", "map"} and step.name == init.name and node.var != "#unused":
            # [] and {} take their parameters from what the steps add.
            self.scopes[-2][node.accu] = step
            self._visit(node.step)
        self.scopes.pop()
        result = self._visit(node.result)
        self.scopes.pop()
        if step.name == "!error!":
            return step
        return result

    def _assignable(self, actual: Type, wanted: Type, bound: dict[str, Type]) -> bool:
        if _is_parameter(wanted):
            if bound.get(wanted.name, EMPTY) == EMPTY:
                bound[wanted.name] = actual
                return True
            if _is_dyn(bound[wanted.name]):
                return True
            known = bound[wanted.name]
            if known.name == "null_type" and _nullable(actual):
                bound[wanted.name] = actual
                return True
            if (
                known.name in {"list", "map", "optional_type"}
                and known.name == actual.name
                and {DYN, EMPTY} & {*known.params}
            ):
                bound[wanted.name] = actual
                return True
            return self._assignable(actual, known, bound)
        if _is_dyn(actual) or _is_dyn(wanted):
            return True
        if actual.name == "null_type" and _nullable(wanted):
            return True
        if actual.name != wanted.name or (actual.name == "type"):
            return actual.name == wanted.name
        if len(actual.params) != len(wanted.params):
            return True
        return all(self._assignable(a, w, bound) for a, w in zip(actual.params, wanted.params, strict=True))

    def _substitute(self, t: Type, bound: Mapping[str, Type]) -> Type:
        if _is_parameter(t):
            return bound.get(t.name, DYN)
        return Type(t.name, tuple(self._substitute(p, bound) for p in t.params)) if t.params else t


_INTEGERS = ("int", "uint")
_FLOATS = ("double", "int", "uint")
_TEXTUAL = (*_TYPE_NAMES, "google.protobuf.Duration", "google.protobuf.Timestamp")
_TEXTUAL_LISTED = "strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
_HEX = ("int", "uint", "string", "bytes")
_CLAUSES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "s": ("string", _TEXTUAL, _TEXTUAL_LISTED),
    "d": ("decimal", _INTEGERS, "integers"),
    "f": ("fixed-point", _FLOATS, "doubles"),
    "e": ("scientific", _FLOATS, "doubles"),
    "b": ("binary", ("int", "uint", "bool"), "integers and bools"),
    "o": ("octal", _INTEGERS, "integers"),
    "x": ("hex", _HEX, "integers, byte buffers, and strings"),
    "X": ("hex", _HEX, "integers, byte buffers, and strings"),
}
_SHORT = {
    "google.protobuf.Any": "any",
    "google.protobuf.Duration": "duration",
    "google.protobuf.Timestamp": "timestamp",
    "null_type": "null",
    "empty": "dyn",
}


def _shown(t: Type) -> str:
    """A type as signatures print it."""
    if t.params:
        return f"{t.name}({', '.join(_shown(p) for p in t.params)})"
    return _SHORT.get(t.name, t.name)


def boolean_fault(t: Type) -> str:
    """Why a selector of type ``t`` is refused; empty when it is not."""
    if t in {BOOL, ANY}:
        return ""
    return f"must evaluate to bool or the unknown type, not {t}"
