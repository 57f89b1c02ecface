"""Declares the functions and their types, one overload per line: ``receiver.name(args) -> result``.

A single upper-case letter is a type parameter. Sources: the CEL specification's standard definitions, cel-go's ``ext`` libraries
(strings, lists, sets, bindings, optionals, two-variable comprehensions) and Kubernetes' own CEL libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from .values import Type

_TEXT = """
!_(bool) -> bool
-_(int) -> int
-_(double) -> double
_&&_(bool, bool) -> bool
_||_(bool, bool) -> bool
_?_:_(bool, A, A) -> A
_==_(A, A) -> bool
_!=_(A, A) -> bool
@not_strictly_false(bool) -> bool
@in(A, list(A)) -> bool
@in(A, map(A, B)) -> bool
_[_](list(A), int) -> A
_[_](map(A, B), A) -> B
_[_](optional_type(list(A)), int) -> optional_type(A)
_[_](optional_type(map(A, B)), A) -> optional_type(B)
_[?_](list(A), int) -> optional_type(A)
_[?_](map(A, B), A) -> optional_type(B)
_[?_](optional_type(list(A)), int) -> optional_type(A)
_[?_](optional_type(map(A, B)), A) -> optional_type(B)
_+_(int, int) -> int
_+_(uint, uint) -> uint
_+_(double, double) -> double
_+_(string, string) -> string
_+_(bytes, bytes) -> bytes
_+_(list(A), list(A)) -> list(A)
_+_(google.protobuf.Duration, google.protobuf.Duration) -> google.protobuf.Duration
_+_(google.protobuf.Timestamp, google.protobuf.Duration) -> google.protobuf.Timestamp
_+_(google.protobuf.Duration, google.protobuf.Timestamp) -> google.protobuf.Timestamp
_-_(int, int) -> int
_-_(uint, uint) -> uint
_-_(double, double) -> double
_-_(google.protobuf.Duration, google.protobuf.Duration) -> google.protobuf.Duration
_-_(google.protobuf.Timestamp, google.protobuf.Duration) -> google.protobuf.Timestamp
_-_(google.protobuf.Timestamp, google.protobuf.Timestamp) -> google.protobuf.Duration
_*_(int, int) -> int
_*_(uint, uint) -> uint
_*_(double, double) -> double
_/_(int, int) -> int
_/_(uint, uint) -> uint
_/_(double, double) -> double
_%_(int, int) -> int
_%_(uint, uint) -> uint
size(string) -> int
size(bytes) -> int
size(list(A)) -> int
size(map(A, B)) -> int
string.size() -> int
bytes.size() -> int
list(A).size() -> int
map(A, B).size() -> int
type(A) -> type(A)
dyn(A) -> dyn
int(int) -> int
int(uint) -> int
int(double) -> int
int(string) -> int
int(google.protobuf.Timestamp) -> int
int(google.protobuf.Duration) -> int
uint(int) -> uint
uint(uint) -> uint
uint(double) -> uint
uint(string) -> uint
double(int) -> double
double(uint) -> double
double(double) -> double
double(string) -> double
bool(bool) -> bool
bool(string) -> bool
string(bool) -> string
string(int) -> string
string(uint) -> string
string(double) -> string
string(string) -> string
string(bytes) -> string
string(google.protobuf.Timestamp) -> string
string(google.protobuf.Duration) -> string
string(net.IP) -> string
string(net.CIDR) -> string
bytes(bytes) -> bytes
bytes(string) -> bytes
duration(google.protobuf.Duration) -> google.protobuf.Duration
duration(int) -> google.protobuf.Duration
duration(string) -> google.protobuf.Duration
timestamp(google.protobuf.Timestamp) -> google.protobuf.Timestamp
timestamp(string) -> google.protobuf.Timestamp
timestamp(int) -> google.protobuf.Timestamp
string.contains(string) -> bool
string.startsWith(string) -> bool
string.endsWith(string) -> bool
string.matches(string) -> bool
matches(string, string) -> bool
string.charAt(int) -> string
string.indexOf(string) -> int
string.indexOf(string, int) -> int
string.lastIndexOf(string) -> int
string.lastIndexOf(string, int) -> int
string.lowerAscii() -> string
string.upperAscii() -> string
string.replace(string, string) -> string
string.replace(string, string, int) -> string
string.split(string) -> list(string)
string.split(string, int) -> list(string)
string.substring(int) -> string
string.substring(int, int) -> string
string.trim() -> string
string.format(list(dyn)) -> string
strings.quote(string) -> string
list(string).join() -> string
list(string).join(string) -> string
list(A).indexOf(A) -> int
list(A).lastIndexOf(A) -> int
list(A).slice(int, int) -> list(A)
list(list(A)).flatten() -> list(A)
list(dyn).flatten(int) -> list(dyn)
list(A).distinct() -> list(A)
list(A).reverse() -> list(A)
list(A).first() -> optional_type(A)
list(A).last() -> optional_type(A)
lists.range(int) -> list(int)
sets.contains(list(A), list(A)) -> bool
sets.equivalent(list(A), list(A)) -> bool
sets.intersects(list(A), list(A)) -> bool
string.find(string) -> string
string.findAll(string) -> list(string)
string.findAll(string, int) -> list(string)
optional.of(A) -> optional_type(A)
optional.ofNonZeroValue(A) -> optional_type(A)
optional.none() -> optional_type(A)
optional.unwrap(list(optional_type(A))) -> list(A)
list(optional_type(A)).unwrapOpt() -> list(A)
optional_type(A).value() -> A
optional_type(A).hasValue() -> bool
optional_type(A).or(optional_type(A)) -> optional_type(A)
optional_type(A).orValue(A) -> A
cel.@mapInsert(map(A, B), A, B) -> map(A, B)
cel.@mapInsert(map(A, B), map(A, B)) -> map(A, B)
url(string) -> kubernetes.URL
isURL(string) -> bool
kubernetes.URL.getScheme() -> string
kubernetes.URL.getHost() -> string
kubernetes.URL.getHostname() -> string
kubernetes.URL.getPort() -> string
kubernetes.URL.getEscapedPath() -> string
kubernetes.URL.getQuery() -> map(string, list(string))
quantity(string) -> kubernetes.Quantity
isQuantity(string) -> bool
kubernetes.Quantity.isInteger() -> bool
kubernetes.Quantity.asInteger() -> int
kubernetes.Quantity.asApproximateFloat() -> double
kubernetes.Quantity.add(kubernetes.Quantity) -> kubernetes.Quantity
kubernetes.Quantity.add(int) -> kubernetes.Quantity
kubernetes.Quantity.sub(kubernetes.Quantity) -> kubernetes.Quantity
kubernetes.Quantity.sub(int) -> kubernetes.Quantity
kubernetes.Quantity.isGreaterThan(kubernetes.Quantity) -> bool
kubernetes.Quantity.isLessThan(kubernetes.Quantity) -> bool
kubernetes.Quantity.compareTo(kubernetes.Quantity) -> int
sign(kubernetes.Quantity) -> int
semver(string) -> kubernetes.Semver
semver(string, bool) -> kubernetes.Semver
isSemver(string) -> bool
isSemver(string, bool) -> bool
kubernetes.Semver.major() -> int
kubernetes.Semver.minor() -> int
kubernetes.Semver.patch() -> int
kubernetes.Semver.isGreaterThan(kubernetes.Semver) -> bool
kubernetes.Semver.isLessThan(kubernetes.Semver) -> bool
kubernetes.Semver.compareTo(kubernetes.Semver) -> int
ip(string) -> net.IP
isIP(string) -> bool
ip.isCanonical(string) -> bool
net.IP.family() -> int
net.IP.isUnspecified() -> bool
net.IP.isLoopback() -> bool
net.IP.isLinkLocalMulticast() -> bool
net.IP.isLinkLocalUnicast() -> bool
net.IP.isGlobalUnicast() -> bool
cidr(string) -> net.CIDR
isCIDR(string) -> bool
net.CIDR.containsIP(net.IP) -> bool
net.CIDR.containsIP(string) -> bool
net.CIDR.containsCIDR(net.CIDR) -> bool
net.CIDR.containsCIDR(string) -> bool
net.CIDR.ip() -> net.IP
net.CIDR.masked() -> net.CIDR
net.CIDR.prefixLength() -> int
format.named(string) -> optional_type(kubernetes.NamedFormat)
format.dns1123Label() -> kubernetes.NamedFormat
format.dns1123Subdomain() -> kubernetes.NamedFormat
format.dns1035Label() -> kubernetes.NamedFormat
format.dns1123LabelPrefix() -> kubernetes.NamedFormat
format.dns1123SubdomainPrefix() -> kubernetes.NamedFormat
format.dns1035LabelPrefix() -> kubernetes.NamedFormat
format.uri() -> kubernetes.NamedFormat
format.byte() -> kubernetes.NamedFormat
format.date() -> kubernetes.NamedFormat
format.datetime() -> kubernetes.NamedFormat
format.qualifiedName() -> kubernetes.NamedFormat
format.labelValue() -> kubernetes.NamedFormat
format.uuid() -> kubernetes.NamedFormat
kubernetes.NamedFormat.validate(string) -> optional_type(list(string))
"""
NUMBERS = ("int", "uint", "double")
ORDERED = (*NUMBERS, "bool", "string", "bytes", "google.protobuf.Timestamp", "google.protobuf.Duration")
"""The types whose values can be compared with each other, and sorted."""
_SUMMED = (*NUMBERS, "google.protobuf.Duration")
_OF_DAY = ("getHours", "getMinutes", "getSeconds", "getMilliseconds")
PARTS_OF_TIMES = ("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", *_OF_DAY)
# Types that expressions may use as values.
TYPE_NAMES = (
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "optional_type",
    "net.IP",
    "net.CIDR",
)


@dataclass(frozen=True)
class Overload:
    """One signature of a function. ``id`` is the declaration without the result; tables of cost rules use it as key."""

    id: str
    name: str
    member: bool
    params: tuple[Type, ...]
    result: Type

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of the overload's type parameters."""
        return frozenset(re.findall(r"\b[A-Z]\b", " ".join(map(str, (*self.params, self.result)))))


def parse_type(text: str) -> Type:
    text = text.strip()
    match = re.fullmatch(r"([A-Za-z_.]+)\((.*)\)", text)
    if not match:
        return Type({"any": "google.protobuf.Any"}.get(text, text))
    return Type(match[1], tuple(parse_type(p) for p in split_args(match[2])))


def split_args(text: str) -> list[str]:
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            out.append(text[start:i])
            start = i + 1
    return [a for a in [*out, text[start:]] if a.strip()]


def _line(line: str) -> Overload:
    head, result = line.rsplit(" -> ", 1)
    # The last parenthesised group is the argument list.
    depth = 0
    for i in range(len(head) - 1, -1, -1):
        depth += (head[i] == ")") - (head[i] == "(")
        if depth == 0:
            break
    name, args = head[:i], split_args(head[i + 1 : -1])
    params = [parse_type(a) for a in args]
    member = False
    # The text before the last dot is the type of the receiver. A namespace, such as `sets`, is part of the name instead.
    match = re.fullmatch(r"(.+)\.([@A-Za-z]\w*)", name)
    namespaces = {"sets", "lists", "optional", "strings", "ip", "cel", "format"}
    identity = head
    if match and match[1] not in namespaces:
        member, name = True, match[2]
        params.insert(0, parse_type(match[1]))
    return Overload(identity, name, member, tuple(params), parse_type(result))


def overloads(lines: Iterable[str]) -> dict[str, list[Overload]]:
    """Returns the declarations in ``lines`` by function name."""
    out: dict[str, list[Overload]] = {}
    for line in lines:
        overload = _line(line)
        out.setdefault(overload.name, []).append(overload)
    return out


def _table() -> dict[str, list[Overload]]:
    lines = _TEXT.strip().splitlines()
    for op in ("<", "<=", ">", ">="):
        lines += [f"_{op}_({a}, {b}) -> bool" for a in NUMBERS for b in NUMBERS]
        lines += [f"_{op}_({a}, {a}) -> bool" for a in ORDERED if a not in NUMBERS]
    for t in ORDERED:
        lines += [f"list({t}).isSorted() -> bool", f"list({t}).min() -> {t}", f"list({t}).max() -> {t}"]
        lines += [f"list({t}).sort() -> list({t})", f"list(A).@sortByAssociatedKeys(list({t})) -> list(A)"]
    lines += [f"list({t}).sum() -> {t}" for t in _SUMMED]
    for part in PARTS_OF_TIMES:
        lines += [f"google.protobuf.Timestamp.{part}({zone}) -> int" for zone in ("", "string")]
    lines += [f"google.protobuf.Duration.{part}() -> int" for part in _OF_DAY]
    return overloads(lines)


FUNCTIONS = _table()
LIST_ATTRIBUTE_FUNCTIONS = overloads(["A.includes(A) -> bool"])
