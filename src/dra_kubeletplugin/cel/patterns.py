"""Regular expressions in RE2's syntax, turned into Python's where the two differ."""

from __future__ import annotations

import functools
import re

_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7F",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1F\\x7F",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\n\\v\\f\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_SIMPLE = set("afnrtvdDwW")
_SPACE = "\\t\\n\\f\\r "
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_MOST = 1000  # repetitions that RE2 allows


@functools.lru_cache(maxsize=256)
def regex(pattern: str) -> re.Pattern[str]:
    """A compiled RE2 pattern.

    Raises ``ValueError`` for what RE2 refuses: look-around, back references, possessive repetition, broken syntax.
    """
    translated = _Translator(pattern).translate()
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(str(e)) from None


class _Translator:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.out: list[str] = []
        self.open = [0]  # for each open group, how many flag groups were opened within
        self.multiline = [False]
        self.atom = False  # whether what was last written can be repeated
        self.repeated = False

    def translate(self) -> str:
        while self.at < len(self.text):
            self._next()
        self.out.append(")" * self.open[0])
        if len(self.open) != 1:
            raise ValueError("missing closing )")
        return "".join(self.out)

    def _write(self, text: str, *, atom: bool = True) -> None:
        self.out.append(text)
        self.atom, self.repeated = atom, False

    def _next(self) -> None:
        c = self.text[self.at]
        if c == "\\":
            self._escape()
        elif c == "[":
            self._bracket()
        elif c == "(":
            self._group()
        elif c == ")":
            if len(self.open) == 1:
                raise ValueError("unexpected )")
            self.multiline.pop()
            self.at += 1
            self._write(")" * (self.open.pop() + 1))
        elif c in "*+?":
            self.at += 1
            self._repeat(c)
        elif c == "{" and (found := _REPEAT.match(self.text, self.at)):
            self.at = found.end()
            low, high = int(found[1]), int(found[2] or 0)
            if low > _MOST or high > _MOST or (found[2] and high < low):
                raise ValueError("invalid repeat count")
            self._repeat(found[0])
        else:
            self.at += 1
            if c == "|":
                self._write("|", atom=False)
            elif c == "$":
                self._write("(?:$)" if self.multiline[-1] else "(?:\\Z)")
            elif c == "^":
                self._write("(?:^)")
            elif c == ".":
                self._write(c)
            else:
                self._write(re.escape(c))

    def _repeat(self, mark: str) -> None:
        if not self.atom:
            raise ValueError(f"missing argument to repetition operator: {mark}")
        if self.repeated:
            raise ValueError(f"invalid nested repetition operator: {mark}")
        if self.text[self.at : self.at + 1] == "?":
            mark += "?"
            self.at += 1
        self.out.append(mark)
        self.repeated = True

    def _escape(self) -> None:
        c = self.text[self.at + 1 : self.at + 2]
        if c == "Q":
            end = self.text.find("\\E", self.at + 2)
            end = len(self.text) if end < 0 else end
            for quoted in self.text[self.at + 2 : end]:
                self._write(re.escape(quoted))
            self.at = min(end + 2, len(self.text))
        elif c == "z":
            self.at += 2
            self._write("(?:\\Z)")
        elif c in {"b", "B", "A"}:
            self.at += 2
            self._write(f"(?:\\{c})")
        elif c in {"s", "S"}:
            self.at += 2
            self._write(f"[{'^' if c == 'S' else ''}{_SPACE}]")
        else:
            self._write(self._character())

    def _character(self) -> str:
        """An escape that stands for a character or class, within brackets or not."""
        c = self.text[self.at + 1 : self.at + 2]
        if c == "x":
            found = re.compile(r"\\x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))").match(self.text, self.at)
            if not found or int(found[1] or found[2], 16) > 0x10FFFF:
                raise ValueError("invalid escape sequence")
            self.at = found.end()
            return re.escape(chr(int(found[1] or found[2], 16)))
        octal = re.compile(r"\\(0[0-7]{0,2}|[1-7][0-7]{1,2})").match(self.text, self.at)
        if octal:
            self.at = octal.end()
            return re.escape(chr(int(octal[1], 8)))
        if c in _SIMPLE:
            self.at += 2
            return "\\" + c
        if c and c.isascii() and not c.isalnum():
            self.at += 2
            return re.escape(c)
        raise ValueError(f"invalid escape sequence: \\{c}")

    def _bracket(self) -> None:
        out = ["["]
        self.at += 1
        if self.text[self.at : self.at + 1] == "^":
            out.append("^")
            self.at += 1
        first = True
        while True:
            c = self.text[self.at : self.at + 1]
            if not c:
                raise ValueError("missing closing ]")
            if c == "]" and not first:
                break
            first = False
            if self.text.startswith("[:", self.at) and (end := self.text.find(":]", self.at)) > 0:
                name = self.text[self.at + 2 : end]
                if name.lstrip("^") not in _POSIX or name.startswith("^"):
                    raise ValueError(f"invalid character class range: [:{name}:]")
                out.append(_POSIX[name])
                self.at = end + 2
            elif c == "\\" and self.text[self.at + 1 : self.at + 2] == "s":
                out.append(_SPACE)
                self.at += 2
            elif c == "\\":
                out.append(self._character())
            else:
                out.append(c if c == "-" else re.escape(c))
                self.at += 1
        self.at += 1
        self._write("".join(out) + "]")

    def _group(self) -> None:
        if not self.text.startswith("(?", self.at):
            self.at += 1
            self._opened("(")
            return
        if found := re.compile(r"\(\?P?<([A-Za-z_]\w*)>").match(self.text, self.at):
            self.at = found.end()
            self._opened(f"(?P<{found[1]}>")
            return
        flags = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])").match(self.text, self.at)
        if not flags or "U" in flags[1] + (flags[2] or ""):
            raise ValueError("invalid or unsupported Perl syntax")
        self.at = flags.end()
        multiline = "m" in flags[1] or (self.multiline[-1] and "m" not in (flags[2] or ""))
        mark = flags[1] + (f"-{flags[2]}" if flags[2] else "")
        if flags[3] == ":":
            self._opened(f"(?{mark}:")
        else:
            # Flags hold until the end of the group they stand in.
            self.open[-1] += 1
            self._write(f"(?{mark}:", atom=False)
        self.multiline[-1] = multiline

    def _opened(self, text: str) -> None:
        self.open.append(0)
        self.multiline.append(self.multiline[-1])
        self._write(text, atom=False)
