"""Reads the API's struct types from a Go binary: field names, and which fields are pointers.

A Go binary contains descriptions of its types for reflection: each struct field has a name, a tag and a type. The tag and the type
define whether a zero value is stored. A schema does not contain this information.
"""

from __future__ import annotations

import array
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TAGGED = re.compile(rb'json:"[^"]*" protobuf:"[^"]*"')
_POINTER, _STRUCT = 22, 25  # values of reflect.Kind
_RTYPE = 48  # bytes of the header of each type
_MAX_FIELDS = 200


@dataclass(frozen=True)
class GoField:
    """A field of a struct. ``json`` is empty if the fields of the type are inlined."""

    json: str
    omitted_when_empty: bool
    pointer: bool
    type: str


class Binary:
    """The read-only data of an ELF file."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        start, address, size = _section(data, b".rodata")
        self.base, self.data = address, data[start : start + size]
        self.words = array.array("Q")
        self.words.frombytes(self.data[: size // 8 * 8])

    def name(self, offset: int) -> tuple[str, str]:
        """Returns the name at an offset and its tag."""
        length, at = self._varint(offset + 1)
        name = self.data[at : at + length].decode("utf-8", "replace")
        if not self.data[offset] & 2:
            return name, ""
        tag_length, tag = self._varint(at + length)
        return name, self.data[tag : tag + tag_length].decode("utf-8", "replace")

    def _varint(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self.data[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if not byte & 128:
                return value, at

    def kind(self, address: int) -> int:
        return self.data[address - self.base + 23] & 31

    def type_name(self, address: int) -> str:
        """Returns ``path/of/package:pkg.Name`` of a struct, or of the type that a pointer or list refers to."""
        at = address - self.base
        while self.kind(address) in {_POINTER, 23}:
            address = struct.unpack_from("<Q", self.data, at + _RTYPE)[0]
            at = address - self.base
        name = self.name(struct.unpack_from("<i", self.data, at + 40)[0])[0].lstrip("*")
        if self.kind(address) != _STRUCT or not self.data[at + 20] & 1:
            return name
        return self.name(struct.unpack_from("<i", self.data, at + 80)[0])[0] + ":" + name

    def tagged_names(self) -> Iterator[int]:
        """Yields the addresses of field names with a JSON and a protobuf tag."""
        for match in _TAGGED.finditer(self.data):
            start = match.start()
            for back in (1, 2):
                length, at = self._varint(start - back)
                if at != start or length < len(match[0]):
                    continue
                for size in range(1, 60):
                    head = start - back - size - 2
                    if self.data[head + 1] == size and self.data[head] & 3 == 3 and self.name(head)[0].isalnum():
                        yield self.base + head

    def inside(self, address: int) -> bool:
        return self.base <= address < self.base + len(self.data)


def read(path: Path) -> Mapping[str, list[GoField]]:
    """Returns the fields of each struct by the name of its type."""
    binary = Binary(path)
    words = binary.words
    names = set(binary.tagged_names())
    places: dict[int, list[int]] = {}
    for i, word in enumerate(words):
        if binary.inside(word):
            places.setdefault(word, []).append(i)
    out: dict[str, list[GoField]] = {}
    for name in names:
        for hit in places.get(name, ()):
            found = _owner(binary, places, hit)
            if found is None:
                continue
            owner, first, count = found
            key = binary.type_name(owner)
            if key not in out:
                out[key] = [_field(binary, first + 3 * i) for i in range(count)]
    return out


def _owner(binary: Binary, places: Mapping[int, list[int]], hit: int) -> tuple[int, int, int] | None:
    """Finds the struct whose list of fields contains ``hit``. Returns its address, the start of the list and the number of fields."""
    words = binary.words
    for first in range(hit, hit - 3 * _MAX_FIELDS, -3):
        for at in places.get(binary.base + first * 8, ()):
            if at + 2 < len(words) and words[at + 1] == words[at + 2] and 0 < words[at + 1] < _MAX_FIELDS:
                owner = binary.base + (at - 7) * 8
                if binary.inside(owner) and binary.kind(owner) == _STRUCT:
                    return owner, first, words[at + 1]
    return None


def _field(binary: Binary, at: int) -> GoField:
    name, tag = binary.name(binary.words[at] - binary.base)
    kind_at = binary.words[at + 1]
    json = re.search(r'json:"([^",]*)([^"]*)"', tag)
    inlined = json is None or "inline" in json[2]
    return GoField(
        "" if inlined or json is None else json[1],
        bool(json and ("omitempty" in json[2] or "omitzero" in json[2])),
        binary.kind(kind_at) == _POINTER,
        binary.type_name(kind_at) or name,
    )


def _section(data: bytes, wanted: bytes) -> tuple[int, int, int]:
    """Returns offset, address and size of a section."""
    table = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, _, _, address, offset, length in headers:
        if data[strings + name : data.index(b"\0", strings + name)] == wanted:
            return offset, address, length
    raise ValueError(f"no section {wanted.decode()}")
