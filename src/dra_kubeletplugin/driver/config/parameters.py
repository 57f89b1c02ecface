"""Finds the typed parameters of a request in the entries of its class and claim, in any version that the driver reads.

The work on a user's text is bounded: :class:`Parameters` checks each distinct entry once and reports at most ``MAX_FAULTS`` faults.

Source: KEP-4381, ``status.allocation.devices.config`` of a ResourceClaim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from ...base.json_types import ReadOnlyJSON
from ...base.text import join_names
from ...errors import ConfigError, DriverFailedError, clip
from ...resourceapi.encoded import from_json
from ..data import plain_json
from ..diagnostics.author_errors import author_code, without_frames
from ..diagnostics.config_errors import MORE, Fault, all_faults, refusal
from .device_types import Kinds, described
from .merge_patch import Layer, difference, merge, merge_into, provenance
from .model import MAX_FAULTS, Config, ConfigRefused, as_json, author_checks, decode_config, run_checks
from .versions import name_of, unknown_kind, versions

Resolved = tuple[Config | None, str]
_FROM_CLAIM = "FromClaim"
MAX_LAYERED_BYTES = 65_536
"""Bytes of JSON of all layers of one request together. The API server accepts 10 KiB in each of 64 entries."""


class ConfigEntry(NamedTuple):
    """One entry for a request.

    Attributes:
        where: its place, for messages.
        source: ``FromClass`` or ``FromClaim``.
        requested: the request, if the claim's author named it in this entry; else empty.
    """

    where: str
    source: str
    parameters: object
    requested: str = ""


class GivenParameters(NamedTuple):
    """The fields of one entry, or of several merged entries, and their kind.

    Attributes:
        cls: the kind.
        fields: the (merged) fields.
        layers: the fields of each entry with its place, the lowest layer first.
        size: bytes of JSON of all layers.
    """

    cls: type[Config]
    fields: ReadOnlyJSON
    layers: tuple[Layer, ...]
    size: int

    @property
    def where(self) -> str:
        """Prefix of an error message; empty for several layers, because the sentence names them."""
        return self.layers[0].where if len(self.layers) == 1 else ""


class Parameters:
    """Reads the parameters of one claim, class or review for one driver.

    Each distinct entry is checked once, for any number of requests. At most :data:`MAX_FAULTS` faults are reported over all entries;
    the search stops there. Create one instance for each object: an instance keeps the entries that it has read.
    """

    def __init__(self, kinds: Sequence[type[Config]], driver: str) -> None:
        self.kinds = kinds
        self.driver = driver
        self.remaining_faults = MAX_FAULTS  # faults that may still be reported
        self._stopped = False  # the search ended before the last entry
        self._versions = versions(kinds)
        # By content: the kind of each entry that was checked (None for a kind of another driver), and the sentences of its faults.
        self._checked: dict[bytes, tuple[type[Config] | None, Sequence[str]]] = {}
        # By the contents of the entries that are merged for a request.
        self._configs: dict[tuple[bytes | None, ...], Config] = {}
        self._default_configs: dict[type[Config] | None, Config | None] = {}

    def is_within(self, entries: Sequence[ReadOnlyJSON], limit: int) -> bool:
        """Whether all parameters for the driver together have at most ``limit`` bytes of JSON."""
        for entry in entries:
            opaque = entry.get("opaque")
            if opaque and opaque.get("driver") == self.driver:
                limit -= len(content_of(opaque.get("parameters")) or b"")
                if limit < 0:
                    return False
        return True

    def resolve(self, entries: Sequence[ReadOnlyJSON], request: str, fitting: Kinds | None = None) -> Resolved:
        """Returns the configuration of one ``request`` (``req`` or ``req/sub``) for one type of device, and its source.

        ``entries`` are the entries of the allocation in their order, class before claim; pass the same list in each call. For
        ``fitting``, the result and the exceptions, see :meth:`merge_entries`.
        """
        found = []
        for requests, entry in self._own(entries):
            if applies(requests, request):
                named = request if entry.source == _FROM_CLAIM and request in requests else ""
                found.append(entry._replace(requested=named))
        return self.merge_entries(found, fitting)

    def entries_for_all_requests(self, entries: Sequence[ReadOnlyJSON]) -> list[ConfigEntry]:
        """Returns the claim's entries that name no requests."""
        return [entry for requests, entry in self._own(entries) if entry.source == _FROM_CLAIM and not requests]

    def _own(self, entries: Sequence[ReadOnlyJSON]) -> Iterator[tuple[Sequence[str], ConfigEntry]]:
        """Yields the entries of this driver, each with the requests that it names."""
        for i, entry in enumerate(entries):
            opaque = entry.get("opaque")
            if opaque and opaque.get("driver") == self.driver:
                source = str(entry.get("source", ""))
                yield (
                    entry.get("requests") or (),
                    ConfigEntry(f"config[{i}] ({source})", source, opaque.get("parameters")),
                )

    def merge_entries(self, entries: Iterable[ConfigEntry], fitting: Kinds | None = None) -> Resolved:
        """Returns the parameters that result from all entries for one request and one type of device.

        The last entry applies; if its kind is ``LAYERED``, it is merged into the entries before it. An entry whose kind is for other
        devices is ignored. If no entry remains, the result has the defaults of the first kind for the device; it is None if there is no
        such kind or a field has no default.

        Args:
            fitting: the kinds that are for the device; None for all.

        Returns:
            The parameters, and their source: ``FromClass``, ``FromClaim`` or empty.

        Raises:
            ConfigError: an entry is invalid; the message has the path of each wrong field. Or the claim's author named the request only
                in entries for other devices.
            DriverFailedError: the author's checks raised an exception other than ``ValueError``.
        """
        applied: list[ConfigEntry] = []
        wrong: list[ConfigError] = []
        named: list[bool] = []  # for each entry that names the request: whether it is for the device
        unfit: ConfigError | None = None
        for entry in entries:
            if not self.remaining_faults:
                self._stopped = True
                break
            try:
                cls = self._check(entry)
            except ConfigError as e:
                wrong.append(without_frames(e))  # the frames keep decoded entries, in a cycle with this list
                continue
            if cls is None:
                continue
            newest = self._version_chain(cls)[-1]
            fits = fitting is None or newest in fitting
            if entry.requested:
                named.append(fits)
            if fits:
                applied = [*applied, entry] if cls.LAYERED else [entry]
            elif entry.requested:
                unfit = refusal(_unfit(cls, newest, entry.requested), at=entry.where)
        if wrong or self._stopped:
            raise self._combine_errors(wrong)
        if unfit and not any(named):
            raise unfit
        if applied:
            return self._merged(applied), applied[-1].source
        return self._defaults(fitting), ""

    def _defaults(self, fitting: Kinds | None) -> Config | None:
        kind = next((kind for kind in self.kinds if fitting is None or kind in fitting), None)
        if kind not in self._default_configs:
            self._default_configs[kind] = None
            with contextlib.suppress(msgspec.ValidationError):
                self._default_configs[kind] = decode_config({}, kind) if kind else None
        return self._default_configs[kind]

    def _merged(self, entries: Sequence[ConfigEntry]) -> Config:
        """Returns the configuration of entries that passed the checks: of one entry, or of several layers."""
        key = tuple(content_of(entry.parameters) for entry in entries)
        if key not in self._configs:
            try:
                self._configs[key] = self._newest(self._layers(entries))
            except _Faults as e:
                raise self._refusal(e.sentences, e.where) from None
        return self._configs[key]

    def _layers(self, entries: Sequence[ConfigEntry]) -> GivenParameters:
        first, *rest = (given for entry in entries if (given := self._given(entry)))
        if not rest and not first.cls.LAYERED:
            return first
        below = first._replace(fields=merge({}, first.fields))
        for above in rest:
            below = self._layer(below, above)
            if below.size > MAX_LAYERED_BYTES:
                raise _Faults([_too_large(below)], "")
        return below

    def validate(self, parameters: object, where: str) -> None:
        """Checks one entry of a claim or a class before anything is allocated.

        For a layered kind, only the fields in ``parameters`` are checked, because the DeviceClass may contain the missing fields.

        Raises:
            ConfigError: the entry is invalid; the message has the path of each wrong field.
            DriverFailedError: as for :meth:`merge_entries`.
        """
        self._check(ConfigEntry(where, "", parameters))

    def is_for(self, entry: ConfigEntry, fitting: Kinds) -> bool:
        """Whether an entry is for devices with the kinds ``fitting``. True for an invalid entry, whose kind may be unknown."""
        _, sentences = self._checked_kind(entry)
        return bool(sentences) or self.kind_of(entry) in fitting

    def kind_of(self, entry: ConfigEntry) -> type[Config] | None:
        """Returns the kind of an entry, in the newest version. None for an invalid entry, or for a kind of another driver."""
        cls, _ = self._checked_kind(entry)
        return self._version_chain(cls)[-1] if cls else None

    # --- one entry ------------------------------------------------------------------------------

    def _check(self, entry: ConfigEntry) -> type[Config] | None:
        """Checks one entry alone. Returns its kind; None for a kind of another driver.

        Raises:
            ConfigError: the entry is invalid.
        """
        cls, sentences = self._checked_kind(entry)
        if sentences:
            raise self._refusal(sentences, entry.where)
        return cls

    def _checked_kind(self, entry: ConfigEntry) -> tuple[type[Config] | None, Sequence[str]]:
        """Checks one entry alone, once for each content. Returns its kind, and the sentences of its faults."""
        content = content_of(entry.parameters)
        found = self._checked.get(content) if content is not None else None
        if found is None:
            try:
                given = self._given(entry)
                if given and given.cls.LAYERED:
                    self._validate_partial(given)
                elif given:
                    self._newest(given)
                found = given.cls if given else None, ()
            except _Faults as e:
                found = None, e.sentences
            if content is not None:
                self._checked[content] = found
        return found

    def _given(self, entry: ConfigEntry) -> GivenParameters | None:
        """Reads one entry; None for a kind of another driver."""
        content = content_of(entry.parameters)
        if content in self._checked:
            given = from_json(content)
        else:
            parameters = entry.parameters
            if isinstance(parameters, msgspec.Raw):
                parameters = from_json(parameters)
            if not isinstance(parameters, Mapping):
                raise _Faults(["opaque.parameters must be an object"], entry.where)
            try:
                given = plain_json(dict(parameters), "parameters")
            except ValueError as e:
                raise _Faults([clip(e)], entry.where) from None
        fields = dict(given)
        api_version, kind = str(fields.pop("apiVersion", "")), str(fields.pop("kind", ""))
        cls = self._choose(api_version, kind)
        if cls is None:
            return None
        if {"apiVersion", "kind"}.intersection(cls.__struct_encode_fields__):
            fields = dict(given)
        return GivenParameters(cls, fields, (Layer(entry.where, fields),), len(content or b""))

    def _newest(self, given: GivenParameters) -> Config:
        """Returns the typed parameters, converted to the version that the driver's code uses."""
        config = self._decoded(given)
        for target in self._version_chain(given.cls)[1:]:
            config = _converted_to(target, config, given)
        return config

    def _validate_partial(self, given: GivenParameters) -> None:
        """Checks names and types of one entry's fields, also in nested objects. Another layer may contain the missing fields."""
        fields = merge({}, given.fields)
        if found := all_faults(fields, given.cls, self.remaining_faults + 1, partial=True):
            raise _Faults(_sentences(given, found), given.where)

    def _decoded(self, given: GivenParameters) -> Config:
        try:
            return decode_config(given.fields, given.cls, check=True)
        except msgspec.ValidationError:
            found = all_faults(given.fields, given.cls, self.remaining_faults + 1)
        except ConfigRefused as e:
            found = [Fault(place, text) for place, text in e.refusals]
        raise _Faults(_sentences(given, found), given.where)

    # --- versions and layers --------------------------------------------------------------------

    def _layer(self, below: GivenParameters, above: GivenParameters) -> GivenParameters:
        """Merges ``above`` into ``below``. If their versions differ, both are first converted to the newest version.

        Changes the fields of ``below`` in place; :meth:`merge_entries` made them as a copy.
        """
        size = below.size + above.size
        if below.cls is above.cls:
            merge_into(cast("dict[str, Any]", below.fields), above.fields)
            return GivenParameters(above.cls, below.fields, below.layers + above.layers, size)
        newest = self._version_chain(below.cls)[-1]
        if newest is not self._version_chain(above.cls)[-1]:
            return above._replace(fields=merge({}, above.fields))  # another kind
        set_fields = self._fields_set_in_newest(above)
        under = Layer(" and ".join(layer.where for layer in below.layers), self._fields_set_in_newest(below))
        layers = (*(below.layers if below.cls is newest else (under,)), Layer(above.where, set_fields))
        return GivenParameters(newest, merge(self._as_newest(below), set_fields), layers, size)

    def _fields_set_in_newest(self, given: GivenParameters) -> ReadOnlyJSON:
        """Returns the fields that an entry sets, in the newest version.

        A field counts as set if its value differs from that of an empty entry, or if the entry itself has a field of that name. If the
        older version has required fields, an empty entry would be invalid, so all fields count as set.
        """
        if self._version_chain(given.cls)[-1] is given.cls:
            return given.fields
        set_fields = self._as_newest(given)
        try:
            unset = self._as_newest(given._replace(fields={}))
        except _Faults:
            return set_fields
        return difference(unset, set_fields, given.fields)

    def _as_newest(self, given: GivenParameters) -> ReadOnlyJSON:
        """Returns all fields, converted to the newest version. That version's checks do not run yet, because layers are missing."""
        *_, newest = chain = self._version_chain(given.cls)
        if newest is given.cls:
            return given.fields
        config = self._decoded(given._replace(fields=merge({}, given.fields)))
        for target in chain[1:]:
            config = _converted_to(target, config, given, check=target is not newest)
        out: ReadOnlyJSON = as_json(config)
        return out

    def _version_chain(self, cls: type[Config]) -> list[type[Config]]:
        """Returns the chain of conversions: ``cls``, each version that follows, and last the version that the driver's code uses."""
        out = [cls]
        while (target := self._versions[out[-1]]) is not None:
            out.append(target)
        return out

    def _choose(self, api_version: str, kind: str) -> type[Config] | None:
        """Returns the class for an API version and a kind; None for a kind of another driver."""
        if not self.kinds:
            raise _Faults([f"{self.driver} takes no parameters: remove this entry"], "")
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
        raise _Faults([unknown_kind(api_version, kind, self.driver, known)], "")

    # --- faults ---------------------------------------------------------------------------------

    def _refusal(self, sentences: Sequence[str], where: str) -> ConfigError:
        """Returns the error for one entry, with as many faults as may still be reported."""
        kept = [*sentences[: self.remaining_faults], *([MORE] if len(sentences) > self.remaining_faults else [])]
        self.remaining_faults -= min(len(sentences), self.remaining_faults)
        return refusal(*kept, at=where)

    def _combine_errors(self, wrong: Sequence[ConfigError]) -> ConfigError:
        """Returns one error for several entries."""
        if len(wrong) == 1 and not self._stopped:
            return wrong[0]
        return refusal(*(fault for e in wrong for fault in e.faults), *([MORE] if self._stopped else ()))


def content_of(parameters: object) -> bytes | None:
    """Returns the parameters as JSON; None for a value that JSON cannot contain."""
    try:
        return bytes(parameters) if isinstance(parameters, msgspec.Raw) else msgspec.json.encode(parameters)
    except (ValueError, TypeError, OverflowError, RecursionError, NotImplementedError):
        return None


class _Faults(Exception):
    """Faults of one entry, or of merged entries. ``where`` is the entry's place; empty if the sentences name the layers."""

    def __init__(self, sentences: Sequence[str], where: str) -> None:
        self.sentences = sentences
        self.where = where
        super().__init__("; ".join(sentences))


def _sentences(given: GivenParameters, found: Sequence[Fault]) -> list[str]:
    """Returns the faults as sentences; if there are several layers, each names its layer."""
    several = len(given.layers) > 1
    return [f"{f}{provenance(given.layers, f.place.steps, f.missing) if several else ''}" for f in found]


def applies(requests: Sequence[str], request: str) -> bool:
    """Whether an entry for ``requests`` applies to ``request``. An empty list means all; a base name covers its alternatives."""
    return not requests or request in requests or request.partition("/")[0] in requests


def _unfit(cls: type[Config], newest: type[Config], request: str) -> str:
    return (
        f"parameters.kind: {clip(cls.KIND or cls.__name__)} is for devices with {described(newest)}, but request {clip(request)!r} got "
        "another device: name other requests in this entry, or none"
    )


def _converted_to(target: type[Config], older: Config, given: GivenParameters, *, check: bool = True) -> Config:
    """Converts parameters with the author's ``convert_from``."""
    what = f"convert_from() of {target.__name__}"
    try:
        with author_code(what, DriverFailedError, ValueError):
            config = target.convert_from(older)
        if type(config) is not target:
            raise DriverFailedError(f"{what} returned {type(config).__name__}: it must return {target.__name__}")
        if check:
            with author_checks(target):
                run_checks(config)
    except ValueError as e:
        of = provenance(given.layers, (), "") if len(given.layers) > 1 else ""
        texts = [clip(e)]
        if isinstance(e, ConfigRefused):
            texts = [f"{place.path}: {text}" for place, text in e.refusals]
        step = f"{name_of(type(older))} as {name_of(target)}"
        raise _Faults([f"{step}: {text}{of}" for text in texts], given.where) from None
    return config


def _too_large(given: GivenParameters) -> str:
    places = join_names([layer.where for layer in given.layers])
    return (
        f"parameters: {places} are merged for one request and have {given.size} bytes: at most "
        f"{MAX_LAYERED_BYTES} are accepted; remove entries that are not needed"
    )
