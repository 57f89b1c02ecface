"""All that is wrong with parameters, where msgspec tells what it meets first: that is taken out of a copy, and the rest judged again.

So msgspec stays the one judge. What is only wrong because something was taken out of it is not told, and taken out in its turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ...errors import DraError
from ..config.model import Steps

JSON = Mapping[str, Any]
Judge = Callable[[JSON], object]
_SAID = re.compile(r"(?P<text>.*) - at (?P<key>`key` in )?`\$(?P<path>.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*?)(?P<whole>`?)", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


class Fault(NamedTuple):
    """What msgspec says of the value at ``at``, keys and positions from the top; of a field that is unknown or missing, ``at`` is the
    object that has it or has not."""

    at: Steps
    text: str
    unknown: str = ""
    missing: str = ""
    key: bool = False  # of the last step itself, not of its value


def all_faults(given: JSON, judge: Judge, most: int) -> list[Fault]:
    """What ``judge`` refuses with ``msgspec.ValidationError``, in the order of the document; at most ``most``.

    Each fault costs one more judgement, and about ten where it stands in a long mapping.
    Raises what else ``judge`` raises of the document as it was given.
    """
    copy = _Copy(given, judge)
    found: list[Fault] = []
    while len(found) < most:
        try:
            judge(copy.top)
            break
        except msgspec.ValidationError as e:
            said = str(e)
        except DraError:  # an author's own code, which may not bear what was made of the document
            if found:
                break
            raise
        fault = copy.located(said)
        if fault is None:
            found.append(Fault((), said))
            break
        whole, genuine = copy.genuine(fault)
        if genuine:
            found.append(whole)
        part = (*fault.at, fault.unknown) if fault.unknown else fault.at
        if not part:
            break
        copy.take_out(part)
    return sorted(found, key=lambda f: _position(given, f))


def _position(given: Any, fault: Fault) -> list[int]:
    """Where in the document something stands; what is missing comes last in its object."""
    out = []
    for step in (*fault.at, *([fault.unknown] if fault.unknown else ())):
        out.append(step if isinstance(step, int) else list(given).index(step))
        given = given[step]
    return [*out, len(given)] if fault.missing else out


class _Alien:
    """What no type takes."""


class _Copy:
    """A document from which parts are taken out."""

    def __init__(self, given: JSON, judge: Judge) -> None:
        self._judge = judge
        self._before: dict[int, list[int]] = {}  # positions that items of a list had, by the list's identity
        self._taken: set[Steps] = set()
        self.top = self._copied(given)

    def _copied(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: self._copied(v) for k, v in value.items()}
        if isinstance(value, list):
            copy = [self._copied(v) for v in value]
            self._before[id(copy)] = list(range(len(copy)))
            return copy
        return value

    def genuine(self, fault: Fault) -> tuple[Fault, bool]:
        """The fault as it is in the document, and whether it is in the document at all."""
        at = self._as_given(fault.at)
        told = fault._replace(at=at)
        if fault.unknown:
            return told, True
        if fault.missing:
            return told, (*at, fault.missing) not in self._taken
        return told, not any(t[: len(at)] == at for t in self._taken)

    def take_out(self, part: Steps) -> None:
        self._taken.add(self._as_given(part))
        *above, last = part
        node = self._at(above)
        if isinstance(node, list):
            del self._before[id(node)][int(last)]
        del node[last]

    def _at(self, steps: Any) -> Any:
        node = self.top
        for step in steps:
            node = node[step]
        return node

    def _as_given(self, steps: Steps) -> Steps:
        node, out = self.top, []
        for step in steps:
            out.append(self._before[id(node)][step] if isinstance(step, int) else step)
            node = node[step]
        return tuple(out)

    def located(self, said: str) -> Fault | None:
        """What msgspec said, at its place; None where nothing is there."""
        if found := _SAID.fullmatch(said):
            steps = self._steps(found["path"], said, bool(found["key"]))
            if steps is not None and (fault := self._told(steps, found["text"], bool(found["key"]))):
                return fault
        return self._told((), said)

    def _told(self, at: Steps, text: str, key: bool = False) -> Fault | None:
        unknown, missing = _UNKNOWN.fullmatch(text), _MISSING.fullmatch(text)
        if unknown:  # whose name may look like the end of such a sentence
            node, name = self._at(at), unknown["name"]
            there = unknown["whole"] and isinstance(node, dict) and name in node
            return Fault(at, text, unknown=name) if there else None
        return Fault(at, text, missing=missing[1] if missing else "", key=key)

    def _steps(self, path: str, said: str, key: bool) -> Steps | None:
        """What msgspec's path leads to; None where that is nothing."""
        node: Any = self.top
        out: list[str | int] = []
        rest = path + "[...]" if key else path
        while rest:
            step: str | int | None = None
            if isinstance(node, dict) and rest.startswith("."):
                named = (k for k in node if rest.startswith(f".{k}") and rest[len(k) + 1 :][:1] in {"", ".", "["})
                step = max(named, key=len, default=None)
                rest = rest[len(step or "") + 1 :]
            elif isinstance(node, dict) and rest.startswith('["'):
                step, end = json.JSONDecoder().raw_decode(rest, 1)
                rest = rest[end + 1 :]
            elif isinstance(node, dict) and rest.startswith("[...]"):
                rest = rest[5:]
                step = self._entry(node, said, key and not rest)
            elif isinstance(node, list) and (number := re.match(r"\[([0-9]+)\]", rest)):
                step = int(number[1])
                rest = rest[number.end() :]
            if step is None or not (step in node if isinstance(node, dict) else int(step) < len(node)):
                return None
            out.append(step)
            node = node[step]
        return tuple(out)

    def _entry(self, node: dict[str, Any], said: str, key: bool) -> str | None:
        """Which entry of a mapping it was said of, that msgspec does not name: entries are judged in their order, so what no type takes
        in the place of one shows whether it was said of one before."""
        keys = list(node)
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            value = node[keys[middle]]
            node[keys[middle]] = _Alien()
            try:
                self._judge(self.top)
                same = False
            except (msgspec.ValidationError, DraError) as e:
                same = str(e) == said
            finally:
                node[keys[middle]] = value
            low, high = (low, middle) if same else (middle + 1, high)
        at = low if key else low - 1  # a key is judged before its value
        return keys[at] if 0 <= at < len(keys) else None
