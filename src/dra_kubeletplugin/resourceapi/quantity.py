"""Kubernetes quantities: grammar, exact value, canonical form.

The rules are the rules of the API server's parser (apimachinery, ``resource.Quantity``), not of its documentation: ``1K`` is not a
quantity, but ``1e3``, ``.5`` and ``5.`` are. A number of up to 18 digits is read as an integer with a decimal scale, a longer number
as a decimal of any length. Values are exact to 1e-9; smaller fractions are rounded away from zero. A value with a binary suffix is
capped at 2^63-1.

The API server limits exponents only to 32 bits, so ``1e999999999`` is a quantity. :func:`parse` accepts it, and no operation writes
all its digits. ``Quantity("1e999999999")`` raises an error, because drivers compute with integers and with ``value``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_UP, Context, Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache, total_ordering

from .immutable import Immutable

_NUMBER = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?")
_SUFFIX = re.compile(r"[eEinumkKMGTP]*[-+]?[0-9]*")
_EXPONENT = re.compile(r"[eE]([-+]?[0-9]+)")
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LOOSE = {s.lower(): s for s in ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "M", "G", "T", "P", "E")}
_BINARY_NAMES = ("", *_BINARY)
_DECIMAL_NAMES = {v: k for k, v in _DECIMAL.items()}
_NANO = -9
_INTEGER_DIGITS = 18
_BINARY_DIGITS = 14
# The digits of a whole number. Computing with larger numbers, up to 1e2147483647, takes minutes of CPU time and gigabytes of memory.
_MAX_DIGITS = 1000
_MAX = 2**63 - 1
_CAP = Decimal(_MAX)
# Sums of amounts of usual size are exact. Sums at the ends of the range, which `1e99999999999` reaches, are not.
_CONTEXT = Context(prec=120, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation])

_SHOWN = 100  # characters of a text in an error
_SHORT = 64  # the maximum length of a text in the cache, because users can write texts of 10 KiB

# The characters that the API server strips around a quantity in JSON. It does not strip control characters: it reads the raw text,
# in which they are escaped.
SPACES = " \u0085\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"

GRAMMAR_WRONG = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
NUMBER_WRONG = "unable to parse numeric part of quantity"
SUFFIX_WRONG = "unable to parse quantity's suffix"


class QuantityError(ValueError):
    """The text is not a quantity. ``reason`` is the API server's message."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(
            f"{_shortened(text)!r} is not a quantity: write a number such as 16, 1.5 or 80Gi; suffixes are {' '.join(_BINARY)} and "
            f"{' '.join(filter(None, _DECIMAL))}{_hint(text)}"
        )
        self.reason = reason


class QuantityRangeError(QuantityError, OverflowError):
    """The number has too many digits to compute with. The API server accepts it."""

    def __init__(self, text: str) -> None:
        ValueError.__init__(self, f"{_shortened(text)!r} has more than {_MAX_DIGITS} digits: use a smaller quantity")
        self.reason = str(self)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _hint(text: str) -> str:
    """Returns a hint for texts such as ``80GB``, ``80gib`` or ``80 gi``."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]+)", text.strip())
    suffix = _LOOSE.get(found[2].lower().removesuffix("b")) if found else None
    return f", did you mean {found[1] + suffix!r}?" if found and suffix else ""


class Format(Enum):
    """The format of a quantity: ``80Gi``, ``80G`` or ``80e9``."""

    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"
    EXPONENT = "DecimalExponent"


@total_ordering
class Quantity(Immutable):
    """An amount, such as ``Quantity("80Gi")``: compared by value, printed in canonical form.

    ``Quantity("1024Mi") == Quantity("1Gi")``, and both print as ``1Gi``. A whole number is compared by value too: ``Quantity("8") == 8``.
    Text is never equal, because a quantity has many texts, which differ from each other: compare with ``Quantity("1Gi")``, or compare
    ``str(quantity)``. A sum or difference has the format of the left side, or of the right side if the left one is zero. A product with
    an integer keeps the format. Spaces around the text are ignored, as in the API server.

    Args:
        value: text, an integer, a ``Decimal``, or another quantity. Not a float, because most decimal fractions are not exact as float.
        format: the format of an integer or ``Decimal``. For text, the suffix determines the format.

    Raises:
        QuantityError: the API server would reject the text, or the text has no digit.
        QuantityRangeError: the number has more than 1,000 digits.
        TypeError: the value has another type.
    """

    __slots__ = ("value", "format", "scale", "text")  # noqa: RUF023 the order of values that _set takes

    value: Decimal
    format: Format
    # The decimal scale of the integer as which the API server stores the value; None if it stores a decimal of any length.
    scale: int | None
    text: str

    def __new__(cls, value: str | int | Decimal | Quantity, format: Format = Format.DECIMAL) -> Quantity:
        match value:
            case str():
                value = value.strip(SPACES)
                parsed = parse(value)
                # The server reads a suffix without a number as zero. In a driver, the number was probably forgotten.
                if not parsed.value and not _has_digits(_split(value)):
                    raise QuantityError(value, NUMBER_WRONG)
                if parsed.value.adjusted() >= _MAX_DIGITS:
                    raise QuantityRangeError(value)
                return parsed
            case Quantity():
                return value
            case bool() | float():
                raise TypeError(f"{value!r} is not a quantity: use text such as '1.5Gi', an integer or a Decimal")
            case int() if format is Format.DECIMAL and abs(value) < 10**_INTEGER_DIGITS:
                return parse(str(value))  # cached, because the same amounts occur often
            case int():
                return _quantity(Decimal(value), format, 0 if -_MAX - 1 <= value <= _MAX else None)
            case Decimal() if value.is_finite():
                if value.adjusted() >= _MAX_DIGITS:
                    raise QuantityRangeError(str(value))
                whole = value == value.to_integral_value() and value.copy_abs() <= _MAX
                return _quantity(value, format, 0 if whole else None)
            case _:
                raise TypeError(f"{value!r} is not a quantity: use text such as '1.5Gi', an integer or a Decimal")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Quantity):
            return self.value == other.value
        return self.value == other if isinstance(other, int) else NotImplemented  # an equal int has an equal hash

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value if isinstance(other, Quantity) else NotImplemented

    def __bool__(self) -> bool:
        return bool(self.value)

    def __add__(self, other: Quantity) -> Quantity:
        return self._sum(other, 1) if isinstance(other, Quantity) else NotImplemented

    def __sub__(self, other: Quantity) -> Quantity:
        return self._sum(other, -1) if isinstance(other, Quantity) else NotImplemented

    def __mul__(self, times: int) -> Quantity:
        if isinstance(times, bool) or not isinstance(times, int):
            return NotImplemented
        return _made(_CONTEXT.multiply(self.value, Decimal(times)), self.format, self.scale)

    __rmul__ = __mul__

    def _sum(self, other: Quantity, sign: int) -> Quantity:
        right = other.value if sign > 0 else other.value.copy_negate()
        scales = [q.scale for q in (self, other) if q.value] or [0]
        known = [s for s in scales if s is not None]
        scale = min(known) if len(known) == len(scales) else None
        return _made(_CONTEXT.add(self.value, right), self.format if self.value else other.format, scale)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Quantity({self.text!r})"

    def __int__(self) -> int:
        """The whole number, without its fraction. Raises :class:`QuantityRangeError` for more than 1,000 digits."""
        if self.value.adjusted() >= _MAX_DIGITS:
            raise QuantityRangeError(self.text)
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    @property
    def rounded_up(self) -> int:
        """Returns the value rounded away from zero, within 64 bits. The API server uses it to compare options and steps."""
        if self.value.copy_abs() > _CAP:
            return _MAX if self.value > 0 else -_MAX - 1
        return int(self.value.to_integral_value(ROUND_UP))

    @property
    def is_integer(self) -> bool:
        """Returns the result of ``isInteger()`` in CEL: whether the value is a 64-bit integer without a decimal scale, unlike ``1000m``."""
        return self.scale is not None and self.scale >= 0 and -_MAX - 1 <= self.value <= _MAX


def _quantity(value: Decimal, format: Format, scale: int | None) -> Quantity:
    made = object.__new__(Quantity)
    number, suffix, _ = _canonical(value, format)
    made._set(value, format, scale, number + suffix)
    return made


def _made(value: Decimal, format: Format, scale: int | None) -> Quantity:
    """Returns a quantity. It keeps ``scale`` only if the integer with this scale fits into 64 bits."""
    fits = scale is not None and value.scaleb(-scale, _CONTEXT).copy_abs() <= _MAX
    return _quantity(value, format, scale if fits else None)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a quantity's text."""

    positive: bool
    number: str  # the number as it was written
    whole: str  # the digits before the point, without leading zeros; "0" if there are none
    fraction: str  # the digits after the point
    format: Format
    exponent: int


def _has_digits(parts: _Parts) -> bool:
    return any(c.isdigit() for c in parts.number)


def _split(text: str) -> _Parts:
    if not text:
        raise QuantityError(text, GRAMMAR_WRONG)
    match = _NUMBER.match(text)
    assert match is not None  # every part is optional
    suffix = text[match.end() :]
    if not _SUFFIX.fullmatch(suffix):
        raise QuantityError(text, GRAMMAR_WRONG)
    if suffix in _DECIMAL:
        form, exponent = Format.DECIMAL, _DECIMAL[suffix]
    elif suffix in _BINARY:
        form, exponent = Format.BINARY, _BINARY[suffix]
    elif (found := _EXPONENT.fullmatch(suffix)) and len(found[1]) < 21 and -(2**63) <= int(found[1]) < 2**63:
        form, exponent = Format.EXPONENT, _in_32_bits(int(found[1]))
    else:
        raise QuantityError(text, SUFFIX_WRONG)
    return _Parts(match[1] != "-", match[0], match[2] or "0", match[3] or "", form, exponent)


def _in_32_bits(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _integer_scale(parts: _Parts) -> int | None:
    """Returns the scale of the integer that the API server's parser reads; None if the parser reads a decimal instead."""
    if parts.format is Format.BINARY:
        digits = _BINARY_DIGITS - len(parts.whole) - parts.exponent * 3 // 10
        return 0 if not parts.fraction and digits >= 0 else None
    scale = _in_32_bits(parts.exponent - len(parts.fraction))
    return scale if len(parts.whole) + len(parts.fraction) <= _INTEGER_DIGITS and scale >= _NANO else None


def parse(text: str) -> Quantity:
    """Parses a quantity.

    Raises :class:`QuantityError` if the API server would respond with 400.
    """
    return _cached(text) if len(text) <= _SHORT else _parsed(text)


def _parsed(text: str) -> Quantity:
    parts = _split(text)
    scale = _integer_scale(parts)
    if scale is not None:
        number = int(parts.whole + parts.fraction)
        if parts.format is Format.BINARY:
            number <<= parts.exponent
        return _quantity(_decimal(str(number), scale, positive=parts.positive), parts.format, scale)
    if not _has_digits(parts):
        raise QuantityError(text, NUMBER_WRONG)
    return _quantity(*_long_value(parts), None)


_cached = lru_cache(maxsize=1024)(_parsed)


def _decimal(digits: str, scale: int, *, positive: bool) -> Decimal:
    """Returns the exact number, without trailing zeros."""
    bare = digits.lstrip("0").rstrip("0")
    dropped = len(digits) - len(digits.rstrip("0"))
    return Decimal((int(not positive), tuple(map(int, bare)), scale + dropped)) if bare else Decimal(0)


def _scale(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # values are finite
    return exponent


def _long_value(parts: _Parts) -> tuple[Decimal, Format]:
    """Returns value and format of a number without integer form: it is too long, has too fine a fraction, or is too large."""
    digits = parts.whole + parts.fraction
    exact = Context(prec=len(digits) + 40, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation])
    form, scale = parts.format, -len(parts.fraction)
    if form is not Format.BINARY:
        scale += parts.exponent
    value = _decimal(digits, scale, positive=True)
    if form is Format.BINARY:
        # A value above the cap need not be multiplied: the product is above the cap too.
        value = _CAP if value > _CAP else exact.multiply(value, Decimal(2**parts.exponent))
    if _scale(value) < _NANO:
        value = value.quantize(Decimal((0, (1,), _NANO)), ROUND_UP, exact).normalize(exact)
    if form is Format.BINARY:
        value = min(value, _CAP)
        if 0 < value < 1:
            form = Format.DECIMAL
    return value if parts.positive else value.copy_negate(), form


def stored(text: str) -> str:
    """Returns ``text`` as a Kubernetes 1.36 server stores it.

    The server keeps text that it considers canonical. A decimal of 1e21 or more loses its exponent (fixed in 1.37). The
    attribute ``text`` of a quantity avoids this.

    Raises :class:`QuantityError`.
    """
    parsed = parse(text)
    parts = _split(text)
    scale = _integer_scale(parts)
    if scale is not None:
        digits = parts.whole + parts.fraction
        if parts.format is Format.BINARY:
            kept = int(digits) % 8 != 0
        else:
            kept = scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
        if kept:
            return text
    number, suffix, known = _canonical(parsed.value, parsed.format)
    return number + suffix if known or parsed.format is Format.EXPONENT else number


def _canonical(value: Decimal, format: Format) -> tuple[str, str, bool]:
    """Returns the number, the suffix, and whether the suffix has a name (an exponent such as ``e21`` has none)."""
    if not value:
        return "0", "", True
    sign, digits, _ = value.as_tuple()
    text = "".join(map(str, digits))
    bare = text.rstrip("0")
    exponent = _scale(value) + len(text) - len(bare)
    if format is Format.BINARY and exponent >= 0 and value.copy_abs() >= 1024 and value.adjusted() < _MAX_DIGITS:
        whole, index = int(bare) * 10**exponent, 0
        while whole % 1024 == 0 and index < len(_BINARY_NAMES) - 1:
            whole //= 1024
            index += 1
        return f"{'-' * sign}{whole}", _BINARY_NAMES[index], True
    number = "-" * sign + bare + "0" * (exponent % 3)
    exponent -= exponent % 3
    if format is Format.EXPONENT or exponent not in _DECIMAL_NAMES:
        return number, f"e{exponent}" if exponent else "", False
    return number, _DECIMAL_NAMES[exponent], True
