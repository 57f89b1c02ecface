"""Finds the typed parameters of a request in the entries of its class and claim, in any version that the driver reads.

The work on a user's text is bounded: :class:`Parameters` checks each distinct entry once and reports at most ``MAX_FAULTS`` faults.

Source: KEP-4381, ``status.allocation.devices.config`` of a ResourceClaim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...base.json_types import ReadOnlyJSON
from ...errors import ConfigError, DriverFailedError, clip
from ...resourceapi.encoded import from_json
from ..data import plain_json
from ..diagnostics.author_errors import author_code, without_frames
from ..diagnostics.config_errors import MORE, all_faults, refusal
from .kinds import Kinds, described, name_of, unknown_kind, versions
from .model import MAX_FAULTS, Config, check_config, decode_config

Resolved = tuple[Config | None, str]
_FROM_CLAIM = "FromClaim"


class ConfigEntry(NamedTuple):
    """One entry for this driver.

    Attributes:
        where: its place, for messages.
        source: ``FromClass`` or ``FromClaim``.
        requests: the requests that it names; empty for all requests.
    """

    where: str
    source: str
    requests: Sequence[str]
    parameters: object


class _Checked(NamedTuple):
    """The result of checking one entry.

    Attributes:
        cls: the kind, in the version of the entry; None for an invalid entry and for a kind of another driver.
        config: the parameters in the newest version.
        faults: a sentence for each fault.
    """

    cls: type[Config] | None = None
    config: Config | None = None
    faults: Sequence[str] = ()


class Parameters:
    """Reads the parameters of one claim, class or review for one driver.

    Each distinct entry is checked once, for any number of requests. At most :data:`MAX_FAULTS` faults are reported over all entries;
    the search stops there. Create one instance for each object: an instance keeps the entries that it has read.
    """

    def __init__(self, kinds: Sequence[type[Config]], driver: str) -> None:
        self.kinds = kinds
        self.driver = driver
        self.remaining_faults = MAX_FAULTS  # faults that may still be reported
        self._versions = versions(kinds)
        self._checked: dict[bytes, _Checked] = {}  # by the content of the entry

    def is_within(self, entries: Sequence[ReadOnlyJSON], limit: int) -> bool:
        """Whether all parameters for the driver together have at most ``limit`` bytes of JSON."""
        for entry in self._own(entries):
            limit -= len(content_of(entry.parameters) or b"")
            if limit < 0:
                return False
        return True

    def resolve(self, entries: Sequence[ReadOnlyJSON], request: str, fitting: Kinds | None = None) -> Resolved:
        """Returns the parameters of one request for one type of device, and their source.

        The last entry for the request applies. An entry whose kind is for other devices is ignored. If no entry remains, the result has
        the defaults of the first kind for the device; it is None if there is no such kind or a field has no default.

        Args:
            entries: the entries of the allocation in their order, class before claim.
            request: ``req`` or ``req/sub``.
            fitting: the kinds that are for the device; None for all.

        Returns:
            The parameters, and their source: ``FromClass``, ``FromClaim`` or empty.

        Raises:
            ConfigError: an entry is invalid; the message has the path of each wrong field. Or the claim's author named the request only
                in entries for other devices.
            DriverFailedError: the author's checks raised an exception other than ``ValueError``.
        """
        found: Resolved | None = None
        wrong: list[ConfigError] = []
        named: list[bool] = []  # for each entry of the claim that names the request: whether it is for the device
        unfit: ConfigError | None = None
        stopped: tuple[str, ...] = ()
        for entry in self._own(entries):
            if not applies(entry.requests, request):
                continue
            if not self.remaining_faults:
                stopped = (MORE,)
                break
            try:
                checked = self._check(entry)
            except ConfigError as e:
                wrong.append(without_frames(e))  # the frames keep decoded entries, in a cycle with this list
                continue
            if checked.cls is None:
                continue
            newest = self._version_chain(checked.cls)[-1]
            fits = fitting is None or newest in fitting
            is_named = entry.source == _FROM_CLAIM and request in entry.requests
            if is_named:
                named.append(fits)
            if fits:
                found = checked.config, entry.source
            elif is_named:
                unfit = refusal(_unfit(checked.cls, newest, request), at=entry.where)
        if len(wrong) == 1 and not stopped:
            raise wrong[0]
        if wrong or stopped:
            raise refusal(*(fault for e in wrong for fault in e.faults), *stopped)
        if unfit and not any(named):
            raise unfit
        return found or (self._defaults(fitting), "")

    def _defaults(self, fitting: Kinds | None) -> Config | None:
        kind = next((kind for kind in self.kinds if fitting is None or kind in fitting), None)
        with contextlib.suppress(msgspec.ValidationError):
            return decode_config({}, kind) if kind else None
        return None

    def kinds_for_all_requests(self, entries: Sequence[ReadOnlyJSON]) -> Iterator[tuple[str, type[Config]]]:
        """Yields place and kind, in the newest version, of the claim's valid entries that name no requests."""
        for entry in self._own(entries):
            if entry.source == _FROM_CLAIM and not entry.requests and (cls := self._checked_entry(entry).cls):
                yield entry.where, self._version_chain(cls)[-1]

    def validate(self, parameters: object, where: str) -> None:
        """Checks one entry of a claim or a class before anything is allocated.

        Raises:
            ConfigError: the entry is invalid; the message has the path of each wrong field.
            DriverFailedError: as for :meth:`resolve`.
        """
        self._check(ConfigEntry(where, "", (), parameters))

    def _own(self, entries: Sequence[ReadOnlyJSON]) -> Iterator[ConfigEntry]:
        """Yields the entries of this driver."""
        for i, entry in enumerate(entries):
            opaque = entry.get("opaque")
            if opaque and opaque.get("driver") == self.driver:
                source = str(entry.get("source", ""))
                yield ConfigEntry(
                    f"config[{i}] ({source})", source, entry.get("requests") or (), opaque.get("parameters")
                )

    # --- one entry ------------------------------------------------------------------------------

    def _check(self, entry: ConfigEntry) -> _Checked:
        """Checks one entry alone. Raises :class:`ConfigError`, with as many faults as may still be reported, if it is invalid."""
        checked = self._checked_entry(entry)
        if not checked.faults:
            return checked
        kept = checked.faults[: self.remaining_faults]
        more = [MORE] if len(checked.faults) > len(kept) else []
        self.remaining_faults -= len(kept)
        raise refusal(*kept, *more, at=entry.where)

    def _checked_entry(self, entry: ConfigEntry) -> _Checked:
        """Checks one entry alone, once for each content."""
        content = content_of(entry.parameters)
        checked = self._checked.get(content) if content is not None else None
        if checked is None:
            try:
                checked = self._read(entry.parameters)
            except _Faults as e:
                checked = _Checked(faults=e.sentences)
            if content is not None:
                self._checked[content] = checked
        return checked

    def _read(self, parameters: object) -> _Checked:
        """Reads parameters and converts them to the version that the driver's code uses. Raises :class:`_Faults`."""
        if isinstance(parameters, msgspec.Raw):
            parameters = from_json(parameters)
        if not isinstance(parameters, Mapping):
            raise _Faults("opaque.parameters must be an object")
        try:
            given: Any = plain_json(dict(parameters), "parameters")
        except ValueError as e:
            raise _Faults(clip(e)) from None
        fields = dict(given)
        api_version, kind = str(fields.pop("apiVersion", "")), str(fields.pop("kind", ""))
        cls = self._choose(api_version, kind)
        if cls is None:
            return _Checked()
        if {"apiVersion", "kind"}.intersection(cls.__struct_encode_fields__):
            fields = given
        try:
            config = decode_config(fields, cls)
        except msgspec.ValidationError:
            raise _Faults(*all_faults(fields, cls, self.remaining_faults + 1)) from None
        if refused := check_config(config):
            raise _Faults(*refused)
        for target in self._version_chain(cls)[1:]:
            config = _converted_to(target, config)
        return _Checked(cls, config)

    def _version_chain(self, cls: type[Config]) -> list[type[Config]]:
        """Returns the chain of conversions: ``cls``, each version that follows, and last the version that the driver's code uses."""
        out = [cls]
        while (target := self._versions[out[-1]]) is not None:
            out.append(target)
        return out

    def _choose(self, api_version: str, kind: str) -> type[Config] | None:
        """Returns the class for an API version and a kind; None for a kind of another driver."""
        if not self.kinds:
            raise _Faults(f"{self.driver} takes no parameters: remove this entry")
        if not kind and not api_version and len(self.kinds) == 1:
            return self.kinds[0]
        known = self._versions
        for cls in known:
            if (cls.KIND or kind) == kind and (cls.API_VERSION or api_version) == api_version:
                return cls
        group = api_version.partition("/")[0]
        own = {cls.API_VERSION.partition("/")[0] for cls in known} - {""}
        if "/" in api_version and group not in own and group != self.driver and not group.endswith("." + self.driver):
            return None
        raise _Faults(unknown_kind(api_version, kind, self.driver, known))


class _Faults(Exception):
    """Faults of one entry."""

    def __init__(self, *sentences: str) -> None:
        self.sentences = sentences
        super().__init__("; ".join(sentences))


def content_of(parameters: object) -> bytes | None:
    """Returns the parameters as JSON; None for a value that JSON cannot contain."""
    try:
        return bytes(parameters) if isinstance(parameters, msgspec.Raw) else msgspec.json.encode(parameters)
    except (ValueError, TypeError, OverflowError, RecursionError, NotImplementedError):
        return None


def applies(requests: Sequence[str], request: str) -> bool:
    """Whether an entry for ``requests`` applies to ``request``. An empty list means all; a base name covers its alternatives."""
    return not requests or request in requests or request.partition("/")[0] in requests


def _unfit(cls: type[Config], newest: type[Config], request: str) -> str:
    return (
        f"parameters.kind: {clip(cls.KIND or cls.__name__)} is for devices with {described(newest)}, but request {clip(request)!r} got "
        "another device: name other requests in this entry, or none"
    )


def _converted_to(target: type[Config], older: Config) -> Config:
    """Converts parameters with the author's ``convert_from``. Raises :class:`_Faults`."""
    what = f"convert_from() of {target.__name__}"
    step = f"{name_of(type(older))} as {name_of(target)}"
    try:
        with author_code(what, DriverFailedError, ValueError):
            config = target.convert_from(older)
    except ValueError as e:
        raise _Faults(f"{step}: {clip(e)}") from None
    if type(config) is not target:
        raise DriverFailedError(f"{what} returned {type(config).__name__}: it must return {target.__name__}")
    if refused := check_config(config):
        raise _Faults(*(f"{step}: {text}" for text in refused))
    return config
