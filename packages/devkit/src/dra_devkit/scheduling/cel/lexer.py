"""Splits text into tokens, and formats errors with their position in the text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .values import CompileError

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


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    pos: int


class Source:
    """The source text of an expression; formats errors in it."""

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


@contextlib.contextmanager
def bounded_depth() -> Iterator[None]:
    """Raises :class:`CompileError` for an expression that is nested deeper than Python's recursion limit."""
    try:
        yield
    except RecursionError:
        raise CompileError("compilation failed: expression recursion limit exceeded") from None


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
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|X([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|([abfnrtv\\?\"'`])|(.?))",
    re.DOTALL,
)


def unquote(token: Token, source: Source) -> str | bytes:
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
