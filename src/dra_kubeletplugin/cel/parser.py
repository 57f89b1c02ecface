"""Text to syntax tree: lexer, Pratt parser and the macros, to the grammar of the CEL specification."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

from .ast import Call, Fold, Ident, ListExpr, Literal, MapExpr, Node, Select
from .values import INT_MAX, UINT_MAX, CompileError, UInt

_TOKEN = re.compile(
    r"""
    (?P<space>(?:[ \t\r\n\f]+|//[^\n]*)+)
  | (?P<float>(?:\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?))
  | (?P<uint>(?:0[xX][0-9a-fA-F]+|\d+)[uU])
  | (?P<int>0[xX][0-9a-fA-F]+|\d+)
  | (?P<string>(?:[rR][bB]?|[bB][rR]?)?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''))
  | (?P<rawline>(?:[rR][bB]?|[bB][rR])(?:"[^"\n\r]*"|'[^'\n\r]*'))
  | (?P<line>[bB]?(?:"(?:\\.|[^\\"\n\r])*"|'(?:\\.|[^\\'\n\r])*'))
  | (?P<ident>[_a-zA-Z][_a-zA-Z0-9]*)
  | (?P<quoted>`[a-zA-Z0-9_.\-/ ]+`)
  | (?P<op>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE | re.DOTALL,
)
_RAW_TRIPLE = re.compile(r"[rR][bB]?(?P<q>\"\"\"|''')(.*?)(?P=q)", re.DOTALL)
_EXPECTED = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)
_RESERVED = frozenset(
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
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "in": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
}  # fmt: skip
_MAX_DEPTH = 250
ACCU = "@result"
_SORTED = "@__sortBy_input__"


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    pos: int


def _integer(text: str) -> int:
    """Decimal, with leading zeros if there are any, or hexadecimal."""
    return int(text, 16 if "x" in text.lower() else 10)


class Source:
    """The text of an expression, and how a fault in it is shown."""

    def __init__(self, text: str) -> None:
        self.text = text

    def fault(self, pos: int, message: str) -> str:
        before = self.text[:pos]
        line = before.count("\n")
        column = pos - (before.rfind("\n") + 1)
        lines = self.text.split("\n")
        head = f"ERROR: <input>:{line + 1}:{column + 1}: {message}"
        return f"{head}\n | {lines[line]}\n | {'.' * column}^"

    def error(self, pos: int, message: str) -> CompileError:
        return CompileError("compilation failed: " + self.fault(pos, message))


def tokenize(source: Source) -> list[Token]:
    out: list[Token] = []
    text, pos = source.text, 0
    while pos < len(text):
        match = _RAW_TRIPLE.match(text, pos) or _TOKEN.match(text, pos)
        if not match:
            end = min(pos + 2, len(text))
            raise source.error(pos, f"Syntax error: token recognition error at: '{text[pos:end]}'")
        kind = match.lastgroup if match.re is _TOKEN else "string"
        if kind != "space":
            out.append(Token("string" if kind in {"line", "rawline"} else str(kind), match[0], pos))
        pos = match.end()
    out.append(Token("end", "<EOF>", len(text)))
    return out


_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|X([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|([abfnrtv\\?\"'`])|(.?))", re.DOTALL)  # fmt: skip


def _unquote(token: Token, source: Source) -> str | bytes:
    prefix = re.match(r"[rRbB]*", token.text)
    assert prefix
    flags, body = prefix[0].lower(), token.text[prefix.end() :]
    quote = body[:3] if body[:3] in {'"""', "'''"} else body[:1]
    body = body[len(quote) : -len(quote)].replace("\r\n", "\n")
    if "b" in flags:
        return body.encode() if "r" in flags else _unescape_bytes(body, token, source)
    if "r" in flags:
        return body

    def replace(m: re.Match[str]) -> str:
        hexa = m[1] or m[2] or m[3] or m[4]
        if hexa:
            return chr(int(hexa, 16))
        if m[5]:
            return chr(int(m[5], 8))
        if m[6]:
            return _ESCAPES.get(m[6], m[6])
        raise source.error(token.pos, "Syntax error: token recognition error: bad escape in string")

    return _ESCAPE.sub(replace, body)


def _unescape_bytes(body: str, token: Token, source: Source) -> bytes:
    out = bytearray()
    last = 0
    for m in _ESCAPE.finditer(body):
        out += body[last : m.start()].encode()
        last = m.end()
        if m[1] or m[2]:
            out.append(int(m[1] or m[2], 16))
        elif m[5]:
            out.append(int(m[5], 8))
        elif m[6]:
            out += _ESCAPES.get(m[6], m[6]).encode()
        else:
            raise source.error(token.pos, "Syntax error: token recognition error: bad escape in bytes")
    return bytes(out + body[last:].encode())


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

    def parse(self) -> Node:
        node = self.expression()
        if self.token.kind != "end":
            raise self.source.error(
                self.token.pos, f"Syntax error: extraneous input '{self.token.text}' expecting <EOF>"
            )
        return node

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.source.error(self.token.pos, f"expression recursion limit exceeded: {_MAX_DEPTH}")
        node = self.binary(1)
        if self.token.text == "?" and self.token.kind == "op":
            pos = self.take().pos
            yes = self.binary(1)
            self.expect(":")
            no = self.expression()
            node = Call("_?_:_", None, [node, yes, no], pos=pos)
        self.depth -= 1
        return node

    def binary(self, least: int) -> Node:
        left = self.unary()
        while True:
            token = self.token
            rank = _PRECEDENCE.get(token.text, 0) if token.kind in {"op", "ident"} else 0
            if rank < least:
                return left
            self.take()
            right = self.binary(rank + 1)
            name = "@in" if token.text == "in" else f"_{token.text}_"
            left = Call(name, None, [left, right], pos=token.pos)

    def unary(self) -> Node:
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
                return Call(name, None, [operand], pos=token.pos)
            return operand
        return self.member()

    def member(self, *, negative: bool = False) -> Node:
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
                node = Call("_[?_]" if optional else "_[_]", None, [node, index], pos=token.pos)
            elif token.text == "{" and token.kind == "op" and isinstance(node, (Ident, Select)):
                raise self.source.error(token.pos, "undeclared reference to a message type")
            else:
                return node

    def primary(self, *, negative: bool = False) -> Node:
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
                return Literal(float(sign + token.text), pos=token.pos)
            case "string":
                return Literal(_unquote(token, self.source), pos=token.pos)
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

    def ident(self, token: Token) -> Node:
        constants = {"true": True, "false": False, "null": None}
        if token.text in constants:
            return Literal(constants[token.text], pos=token.pos)
        if token.text in _RESERVED:
            raise self.source.error(token.pos, f"reserved identifier: {token.text}")
        if token.text == "in":
            raise self._mismatch(token)
        if self.token.kind == "op" and self.token.text == "(":
            return self.call(token.text, None, token.pos)
        return Ident(token.text, pos=token.pos)

    def list_literal(self, start: Token) -> Node:
        elements: list[Node] = []
        optional: list[bool] = []
        while not self.accept("]"):
            optional.append(self.accept("?"))
            elements.append(self.expression())
            if not self.accept(","):
                self.expect("]")
                break
        return ListExpr(elements, optional, pos=start.pos)

    def map_literal(self, start: Token) -> Node:
        entries: list[tuple[Node, Node]] = []
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

    def call(self, name: str, target: Node | None, pos: int) -> Node:
        open_paren = self.token.pos
        self.expect("(")
        args: list[Node] = []
        while not self.accept(")"):
            args.append(self.expression())
            if not self.accept(","):
                self.expect(")")
                break
        # A call's position is its opening parenthesis, as the reference implementation has it.
        return expand(self.source, name, target, args, open_paren) or Call(name, target, args, pos=open_paren)


def _name(source: Source, node: Node) -> str:
    if not isinstance(node, Ident):
        raise source.error(node.pos, "argument must be a simple name")
    if node.name in {ACCU, "__result__"}:
        raise source.error(node.pos, f"iteration variable overwrites accumulator variable: {node.name}")
    return node.name


def expand(source: Source, name: str, target: Node | None, args: list[Node], pos: int) -> Node | None:
    """The comprehension that a macro call stands for; None where it is no macro."""
    if target is None:
        if name == "has" and len(args) == 1:
            arg = args[0]
            if not isinstance(arg, Select) or arg.optional:
                raise source.error(pos, "invalid argument to has() macro")
            return Select(arg.operand, arg.field, test=True, pos=pos)
        return None
    if name == "bind" and isinstance(target, Ident) and target.name == "cel" and len(args) == 3:
        variable = _name(source, args[0])
        return Fold(
            ListExpr([], [], pos=pos), "#unused", None, variable, args[1],
            Literal(False, pos=pos), Ident(variable, pos=pos), args[2], pos=pos,
        )  # fmt: skip
    if name in {"optMap", "optFlatMap"} and len(args) == 2:
        variable = _name(source, args[0])
        value = Call("value", copy.deepcopy(target), [], pos=pos)
        bound = Fold(
            ListExpr([], [], pos=pos), "#unused", None, variable, value,
            Literal(False, pos=pos), Ident(variable, pos=pos), args[1], pos=pos,
        )  # fmt: skip
        inner: Node = Call("optional.of", None, [bound], pos=pos) if name == "optMap" else bound
        empty = Call("optional.none", None, [], pos=pos)
        return Call("_?_:_", None, [Call("hasValue", target, [], pos=pos), inner, empty], pos=pos)
    if name in {"all", "exists", "exists_one", "existsOne"} and len(args) in {2, 3}:
        if (name == "existsOne") and len(args) == 2:
            name = "exists_one"
        return _quantifier(source, name.replace("existsOne", "exists_one"), target, args, pos)
    if name in {"map", "filter"} and len(args) in {2, 3} and not (name == "filter" and len(args) == 3):
        return _collect(source, name, target, args, pos)
    if name in {"transformList", "transformMap", "transformMapEntry"} and len(args) in {3, 4}:
        return _transform(source, name, target, args, pos)
    if name == "sortBy" and len(args) == 2 and not isinstance(target, (Literal, MapExpr)):
        keys = _collect(source, "map", Ident(_SORTED, pos=pos), args, pos)
        ordered = Call("@sortByAssociatedKeys", Ident(_SORTED, pos=pos), [keys], pos=pos)
        return Fold(
            ListExpr([], [], pos=pos), "#unused", None, _SORTED, target,
            Literal(False, pos=pos), Ident(_SORTED, pos=pos), ordered, pos=pos,
        )  # fmt: skip
    return None


def _quantifier(source: Source, name: str, target: Node, args: list[Node], pos: int) -> Node:
    variables = [_name(source, a) for a in args[:-1]]
    test = args[-1]

    def accu() -> Node:
        return Ident(ACCU, pos=pos)

    init: Node = Literal(name == "all", pos=pos)
    condition: Node = Literal(True, pos=pos)
    result: Node = accu()
    if name == "all":
        condition = Call("@not_strictly_false", None, [accu()], pos=pos)
        step: Node = Call("_&&_", None, [accu(), test], pos=pos)
    elif name == "exists":
        condition = Call("@not_strictly_false", None, [Call("!_", None, [accu()], pos=pos)], pos=pos)
        step = Call("_||_", None, [accu(), test], pos=pos)
    else:
        init = Literal(0, pos=pos)
        plus = Call("_+_", None, [accu(), Literal(1, pos=pos)], pos=pos)
        step = Call("_?_:_", None, [test, plus, accu()], pos=pos)
        result = Call("_==_", None, [accu(), Literal(1, pos=pos)], pos=pos)
    second = variables[1] if len(variables) > 1 else None
    return Fold(target, variables[0], second, ACCU, init, condition, step, result, pos=pos)


def _collect(source: Source, name: str, target: Node, args: list[Node], pos: int) -> Node:
    variable = _name(source, args[0])
    element = Ident(variable, pos=args[0].pos) if name == "filter" else args[-1]
    test = args[1] if name == "filter" or len(args) == 3 else None
    step: Node = Call("_+_", None, [Ident(ACCU, pos=pos), ListExpr([element], [False], pos=pos)], pos=pos)
    if test is not None:
        step = Call("_?_:_", None, [test, step, Ident(ACCU, pos=pos)], pos=pos)
    empty = ListExpr([], [], pos=pos)
    return Fold(target, variable, None, ACCU, empty, Literal(True, pos=pos), step, Ident(ACCU, pos=pos), pos=pos)


def _transform(source: Source, name: str, target: Node, args: list[Node], pos: int) -> Node:
    first, second = _name(source, args[0]), _name(source, args[1])
    test = args[2] if len(args) == 4 else None
    body = args[-1]
    init: Node = ListExpr([], [], pos=pos)
    if name == "transformList":
        step: Node = Call("_+_", None, [Ident(ACCU, pos=pos), ListExpr([body], [False], pos=pos)], pos=pos)
    else:
        init = MapExpr([], [], pos=pos)
        args = [Ident(first, pos=pos), body] if name == "transformMap" else [body]
        step = Call("cel.@mapInsert", None, [Ident(ACCU, pos=pos), *args], pos=pos)
    if test is not None:
        step = Call("_?_:_", None, [test, step, Ident(ACCU, pos=pos)], pos=pos)
    result = Ident(ACCU, pos=pos)
    return Fold(target, first, second, ACCU, init, Literal(True, pos=pos), step, result, pos=pos)
