"""Parses tokens to a syntax tree: a Pratt parser for the grammar of the CEL specification."""

from __future__ import annotations

import math

from .ast import CallExpr, Expr, Ident, ListExpr, Literal, MapExpr, Select
from .lexer import Source, Token, tokenize, unquote
from .macros import expand
from .values import INT_MAX, UINT_MAX, CompileError, UInt

_EXPECTED = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)
RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
_PRECEDENCE = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "in": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
}
_MAX_DEPTH = 250


class Parser:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = tokenize(source)
        self.at = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.token
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.token.kind in {"op", "ident"} and self.token.text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            found = self.token
            word = "missing" if found.kind == "end" else "mismatched input"
            message = (
                f"missing '{text}' at '{found.text}'"
                if word == "missing"
                else f"mismatched input '{found.text}' expecting '{text}'"
            )
            raise self.source.error(found.pos, f"Syntax error: {message}")

    def parse(self) -> Expr:
        node = self.expression()
        if self.token.kind != "end":
            raise self.source.error(
                self.token.pos, f"Syntax error: extraneous input '{self.token.text}' expecting <EOF>"
            )
        return node

    def expression(self) -> Expr:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.source.error(self.token.pos, f"expression recursion limit exceeded: {_MAX_DEPTH}")
        node = self.binary(1)
        if self.token.text == "?" and self.token.kind == "op":
            pos = self.take().pos
            yes = self.binary(1)
            self.expect(":")
            no = self.expression()
            node = CallExpr("_?_:_", None, [node, yes, no], pos=pos)
        self.depth -= 1
        return node

    def binary(self, min_precedence: int) -> Expr:
        left = self.unary()
        while True:
            token = self.token
            rank = _PRECEDENCE.get(token.text, 0) if token.kind in {"op", "ident"} else 0
            if rank < min_precedence:
                return left
            self.take()
            right = self.binary(rank + 1)
            name = "@in" if token.text == "in" else f"_{token.text}_"
            left = CallExpr(name, None, [left, right], pos=token.pos)

    def unary(self) -> Expr:
        token = self.token
        if token.kind == "op" and token.text in {"!", "-"}:
            count = 0
            while self.token.kind == "op" and self.token.text == token.text:
                self.take()
                count += 1
            if token.text == "-" and self.token.kind in {"int", "float"}:
                count -= 1
                operand = self.member(negative=True)
            else:
                operand = self.member()
            if count % 2:
                name = "!_" if token.text == "!" else "-_"
                return CallExpr(name, None, [operand], pos=token.pos)
            return operand
        return self.member()

    def member(self, *, negative: bool = False) -> Expr:
        node = self.primary(negative=negative)
        while True:
            token = self.token
            if self.accept("."):
                optional = self.accept("?")
                name = self.take()
                if name.kind not in {"ident", "quoted"} or name.text == "in":
                    raise self._mismatch(name)
                field = name.text.strip("`")
                if not optional and name.kind == "ident" and self.token.text == "(" and self.token.kind == "op":
                    node = self.call(field, node, name.pos)
                else:
                    node = Select(node, field, optional=optional, pos=token.pos)
            elif self.accept("["):
                optional = self.accept("?")
                index = self.expression()
                self.expect("]")
                node = CallExpr("_[?_]" if optional else "_[_]", None, [node, index], pos=token.pos)
            elif token.text == "{" and token.kind == "op" and isinstance(node, (Ident, Select)):
                raise self.source.error(token.pos, "undeclared reference to a message type")
            else:
                return node

    def primary(self, *, negative: bool = False) -> Expr:
        token = self.take()
        sign = "-" if negative else ""
        match token.kind:
            case "int":
                value = _integer(sign + token.text)
                if not -INT_MAX - 1 <= value <= INT_MAX:
                    raise self.source.error(token.pos, "Syntax error: invalid int literal")
                return Literal(value, pos=token.pos)
            case "uint":
                number = _integer(token.text[:-1])
                if number > UINT_MAX:
                    raise self.source.error(token.pos, "Syntax error: invalid uint literal")
                return Literal(UInt(number), pos=token.pos)
            case "float":
                double = float(sign + token.text)
                if math.isinf(double):
                    raise self.source.error(token.pos, "Syntax error: invalid double literal")
                return Literal(double, pos=token.pos)
            case "string":
                return Literal(unquote(token, self.source), pos=token.pos)
            case "ident":
                return self.ident(token)
            case "op" if token.text == "(":
                node = self.expression()
                self.expect(")")
                return node
            case "op" if token.text == "[":
                return self.list_literal(token)
            case "op" if token.text == "{":
                return self.map_literal(token)
            case "op" if token.text == ".":
                name = self.take()
                if name.kind != "ident":
                    raise self._mismatch(name)
                return self.ident(name)
        raise self._mismatch(token)

    def _mismatch(self, token: Token) -> CompileError:
        pos, head = token.pos, f"Syntax error: mismatched input '{token.text}' expecting {_EXPECTED}"
        if token.kind != "end":
            return self.source.error(pos, head)
        if not self.source.text:
            return CompileError(f"compilation failed: ERROR: <input>:1:0: {head}")
        return self.source.error(pos, head)

    def ident(self, token: Token) -> Expr:
        constants = {"true": True, "false": False, "null": None}
        if token.text in constants:
            return Literal(constants[token.text], pos=token.pos)
        if token.text in RESERVED:
            raise self.source.error(token.pos, f"reserved identifier: {token.text}")
        if token.text == "in":
            raise self._mismatch(token)
        if self.token.kind == "op" and self.token.text == "(":
            return self.call(token.text, None, token.pos)
        return Ident(token.text, pos=token.pos)

    def list_literal(self, start: Token) -> Expr:
        elements: list[Expr] = []
        optional: list[bool] = []
        while not self.accept("]"):
            optional.append(self.accept("?"))
            elements.append(self.expression())
            if not self.accept(","):
                self.expect("]")
                break
        return ListExpr(elements, optional, pos=start.pos)

    def map_literal(self, start: Token) -> Expr:
        entries: list[tuple[Expr, Expr]] = []
        optional: list[bool] = []
        while not self.accept("}"):
            optional.append(self.accept("?"))
            key = self.expression()
            self.expect(":")
            entries.append((key, self.expression()))
            if not self.accept(","):
                self.expect("}")
                break
        return MapExpr(entries, optional, pos=start.pos)

    def call(self, name: str, target: Expr | None, pos: int) -> Expr:
        open_paren = self.token.pos
        self.expect("(")
        args: list[Expr] = []
        while not self.accept(")"):
            args.append(self.expression())
            if not self.accept(","):
                self.expect(")")
                break
        # A call's position is its opening parenthesis, as in the reference implementation.
        return expand(self.source, name, target, args, open_paren) or CallExpr(name, target, args, pos=open_paren)


def _integer(text: str) -> int:
    """Parses a decimal number, possibly with leading zeros, or a hexadecimal number."""
    return int(text, 16 if "x" in text.lower() else 10)
