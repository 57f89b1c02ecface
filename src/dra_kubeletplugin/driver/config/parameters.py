"""Finds the typed parameters of a request in the entries of its class and claim, in any version that the driver reads.

The work on a user's text is bounded: :class:`Parameters` checks each distinct entry once and reports at most ``MAX_FAULTS`` faults.

Source: KEP-4381, ``status.allocation.devices.config`` of a ResourceClaim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from ...base.signals import Interrupted
from ...base.text import join_names
from ...errors import ConfigError, DraError, DriverFailedError, clip
from ...resourceapi.encoded import from_json
from ..data import plain_json
from ..diagnostics.author_errors import explained, without_frames
from ..diagnostics.config_errors import MORE, Fault, all_faults, refusal
from .merge_patch import Layer, difference, merge, merge_into, provenance
from .model import MAX_FAULTS, Config, ConfigRefused, as_json, checked, converted
from .versions import name_of, unknown_kind, versions

JSON = Mapping[str, Any]
Resolved = tuple[Config | None, str]
T = TypeVar("T")
MAX_LAYERED_BYTES = 65_536
"""Bytes of JSON of all layers of one request together. The API server accepts 10 KiB in each of 64 entries."""


class ConfigEntry(NamedTuple):
    """One entry for a request. ``where`` is its place, for messages; ``source`` is ``FromClass`` or ``FromClaim``."""

    where: str
    source: str
    parameters: object


class GivenParameters(NamedTuple):
    """The fields of one entry, or of several merged entries, and their kind.

    Attributes:
        cls: the kind.
        fields: the (merged) fields.
        layers: the fields of each entry with its place, the lowest layer first.
        size: bytes of JSON of all layers.
        content: the JSON of a single entry; None for merged entries.
    """

    cls: type[Config]
    fields: JSON
    layers: tuple[Layer, ...]
    size: int = 0
    content: bytes | None = None

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
        self._results: dict[tuple[str, bytes], Any] = {}
        # By content, for kinds that are not layered: `_valid` has the valid entries; `_configs` has the decoded configurations of
        # entries that applied to a request, so that further requests use them again.
        self._valid: set[bytes] = set()
        self._configs: dict[bytes, Config] = {}
        self._resolved: dict[tuple[int, ...], Resolved] = {}

    def is_within(self, entries: Sequence[JSON], limit: int) -> bool:
        """Whether all parameters for the driver together have at most ``limit`` bytes of JSON."""
        for entry in entries:
            opaque = entry.get("opaque")
            if opaque and opaque.get("driver") == self.driver:
                limit -= len(content_of(opaque.get("parameters")) or b"")
                if limit < 0:
                    return False
        return True

    def resolve(self, entries: Sequence[JSON], request: str) -> Resolved:
        """Returns the configuration of one ``request`` (``req`` or ``req/sub``) and its source.

        ``entries`` are the entries of the allocation in their order, class before claim; pass the same list in each call. Returns and
        raises as :meth:`merge_entries`.
        """
        found = []
        for i, entry in enumerate(entries):
            opaque = entry.get("opaque")
            if opaque and opaque.get("driver") == self.driver and applies(entry.get("requests") or (), request):
                source = str(entry.get("source", ""))
                found.append((i, ConfigEntry(f"config[{i}] ({source})", source, opaque.get("parameters"))))
        key = tuple(i for i, _ in found)
        if key not in self._resolved:
            self._resolved[key] = self.merge_entries(entry for _, entry in found)
        return self._resolved[key]

    def merge_entries(self, entries: Iterable[ConfigEntry]) -> Resolved:
        """Returns the parameters that result from all entries for one request.

        The last entry applies; if its kind is ``LAYERED``, it is merged into the entries before it. If there is no entry, the result has
        the defaults of the first kind; it is None if a field has no default.

        Returns:
            The parameters, and their source: ``FromClass``, ``FromClaim`` or empty.

        Raises:
            ConfigError: an entry is invalid; the message has the path of each wrong field.
            DriverFailedError: the author's checks raised an exception other than ``ValueError``.
        """
        found: Config | None = None
        origin = ""
        below: GivenParameters | None = None
        whole: ConfigEntry | None = None  # the last entry, if its kind is not layered
        wrong: list[ConfigError] = []
        for entry in entries:
            if not self.remaining_faults:
                self._stopped = True
                break
            content = content_of(entry.parameters)
            if content is not None and content in self._valid:
                found, origin, below, whole = None, entry.source, None, entry
                continue
            try:
                read = self._given(entry.parameters, entry.where)
                if read is None:
                    continue
                found, origin = None, entry.source
                if not read.cls.LAYERED:
                    found, below, whole = self._newest(read), None, entry
                    self._valid.update({content} if content else ())
                    continue
                self._validate_partial(read)  # so that a fault is reported with its entry
                if whole:  # the entries before are of another version, which is not layered
                    below, whole = self._given(whole.parameters, whole.where), None
                below = self._layer(below, read) if below else read._replace(fields=merge({}, read.fields))
            except ConfigError as e:
                wrong.append(without_frames(e))  # the frames keep decoded entries, in a cycle with this list
                continue
            if below.size > MAX_LAYERED_BYTES:
                wrong.append(self._refusal([_too_large(below)], ""))
                break
        if wrong or self._stopped:
            raise self._combine_errors(wrong)
        return found or self._applied(below, whole), origin

    def _applied(self, below: GivenParameters | None, whole: ConfigEntry | None) -> Config | None:
        """Returns the configuration of entries that passed the checks; without entries, the default."""
        if whole:
            content = content_of(whole.parameters) or b""
            if content not in self._configs and (given := self._given(whole.parameters, whole.where)):
                self._configs[content] = self._newest(given)
            return self._configs[content]
        if below:
            return self._newest(below)
        with contextlib.suppress(msgspec.ValidationError):
            return converted({}, self.kinds[0]) if self.kinds else None
        return None

    def validate(self, parameters: object, where: str) -> None:
        """Checks one entry of a claim or a class before anything is allocated.

        For a layered kind, only the fields in ``parameters`` are checked, because the DeviceClass may contain the missing fields.

        Raises:
            ConfigError: the entry is invalid; the message has the path of each wrong field.
            DriverFailedError: as for :meth:`merge_entries`.
        """
        read = self._given(parameters, where)
        if read is None:
            return
        if read.cls.LAYERED:
            self._validate_partial(read)
        else:
            self._newest(read)

    # --- one entry ------------------------------------------------------------------------------

    def _given(self, parameters: object, where: str) -> GivenParameters | None:
        """Reads one entry; None for a kind of another driver."""
        content = content_of(parameters)

        def read() -> GivenParameters | None:
            nonlocal parameters
            if isinstance(parameters, msgspec.Raw):
                parameters = from_json(parameters)
            if not isinstance(parameters, Mapping):
                raise _Faults(["opaque.parameters must be an object"])
            try:
                given = plain_json(dict(parameters), "parameters")
            except ValueError as e:
                raise _Faults([clip(e)]) from None
            fields = dict(given)
            api_version, kind = str(fields.pop("apiVersion", "")), str(fields.pop("kind", ""))
            cls = self._choose(api_version, kind)
            if cls is None:
                return None
            if {"apiVersion", "kind"}.intersection(cls.__struct_encode_fields__):
                fields = dict(given)
            return GivenParameters(cls, fields, (Layer("", fields),), len(content or b""), content)

        found = self._once("given", content, where, read)
        if found:
            # Decoded fields take 20 times the memory of their JSON, and most entries are read once.
            del self._results["given", content or b""]
        return found and found._replace(layers=(Layer(where, found.fields),))

    def _newest(self, given: GivenParameters) -> Config:
        """Returns the typed parameters, converted to the version that the driver's code uses."""

        def newest() -> Config:
            config = self._decoded(given)
            for target in self._version_chain(given.cls)[1:]:
                config = _converted_to(target, config, given)
            return config

        if given.content in self._valid:
            return newest()
        found = self._once("newest", given.content, given.where, newest)
        if not given.cls.LAYERED:
            del self._results["newest", given.content or b""]  # most entries are only checked, and apply to no request
        return found

    def _validate_partial(self, given: GivenParameters) -> None:
        """Checks names and types of one entry's fields, also in nested objects. Another layer may contain the missing fields."""

        def check() -> None:
            fields = merge({}, given.fields)
            if found := all_faults(fields, given.cls, self.remaining_faults + 1, partial=True):
                raise _Faults(_sentences(given, found))

        self._once("partial", given.content, given.where, check)

    def _decoded(self, given: GivenParameters) -> Config:
        try:
            return converted(given.fields, given.cls, check=True)
        except msgspec.ValidationError:
            found = all_faults(given.fields, given.cls, self.remaining_faults + 1)
        except ConfigRefused as e:
            found = [Fault(place, text) for place, text in e.refusals]
        raise _Faults(_sentences(given, found))

    def _once(self, step: str, content: bytes | None, where: str, work: Callable[[], T]) -> T:
        """Runs ``work`` once for each content and returns its result. If ``work`` found faults, each call raises them, with ``where``."""
        key = (step, content or b"")
        if content is None or key not in self._results:
            try:
                self._results[key] = work()
            except _Faults as e:
                self._results[key] = _Wrong(e.sentences)  # not the exception, whose traceback keeps the document
        found = self._results[key]
        if isinstance(found, _Wrong):
            raise self._refusal(found.sentences, where)
        return found  # type: ignore[no-any-return]

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

    def _fields_set_in_newest(self, given: GivenParameters) -> JSON:
        """Returns the fields that an entry sets, in the newest version.

        A field counts as set if its value differs from that of an empty entry, or if the entry itself has a field of that name. If the
        older version has required fields, an empty entry would be invalid, so all fields count as set.
        """
        if self._version_chain(given.cls)[-1] is given.cls:
            return given.fields
        set_fields = self._as_newest(given)
        try:
            unset = self._as_newest(given._replace(fields={}, content=b"{}" + given.cls.API_VERSION.encode()))
        except ConfigError:
            return set_fields
        return difference(unset, set_fields, given.fields)

    def _as_newest(self, given: GivenParameters) -> JSON:
        """Returns all fields, converted to the newest version. That version's checks do not run yet, because layers are missing."""
        *_, newest = chain = self._version_chain(given.cls)
        if newest is given.cls:
            return given.fields

        def as_newest() -> JSON:
            config = self._decoded(given._replace(fields=merge({}, given.fields)))
            for target in chain[1:]:
                config = _converted_to(target, config, given, check=target is not newest)
            out: JSON = as_json(config)
            return out

        return self._once("as newest", given.content, given.where, as_newest)

    def _version_chain(self, cls: type[Config]) -> list[type[Config]]:
        """Returns the chain of conversions: ``cls``, each version that follows, and last the version that the driver's code uses."""
        out = [cls]
        while (target := self._versions[out[-1]]) is not None:
            out.append(target)
        return out

    def _choose(self, api_version: str, kind: str) -> type[Config] | None:
        """Returns the class for an API version and a kind; None for a kind of another driver."""
        if not self.kinds:
            raise _Faults([f"{self.driver} takes no parameters: remove this entry"])
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
        raise _Faults([unknown_kind(api_version, kind, self.driver, known)])

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
    """Faults of one entry, without its place, because several entries may have the same content."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = sentences
        super().__init__("; ".join(sentences))


class _Wrong(NamedTuple):
    """The stored result for an entry with faults."""

    sentences: Sequence[str]


def _sentences(given: GivenParameters, found: Sequence[Fault]) -> list[str]:
    """Returns the faults as sentences; if there are several layers, each names its layer."""
    several = len(given.layers) > 1
    return [f"{f}{provenance(given.layers, f.place.steps, f.missing) if several else ''}" for f in found]


def applies(requests: Sequence[str], request: str) -> bool:
    """Whether an entry for ``requests`` applies to ``request``. An empty list means all; a base name covers its alternatives."""
    return not requests or request in requests or request.partition("/")[0] in requests


def _converted_to(target: type[Config], older: Config, given: GivenParameters, *, check: bool = True) -> Config:
    """Converts parameters with the author's ``convert_from``."""
    step = f"{name_of(type(older))} as {name_of(target)}"
    try:
        config = target.convert_from(older)
        if type(config) is target:
            return checked(config) if check else config
    except ValueError as e:
        of = provenance(given.layers, (), "") if len(given.layers) > 1 else ""
        texts = [clip(e)]
        if isinstance(e, ConfigRefused):
            texts = [f"{place.path}: {text}" for place, text in e.refusals]
        raise _Faults([f"{step}: {text}{of}" for text in texts]) from None
    except (DraError, Interrupted):
        raise
    except BaseException as e:  # there is no await in this block, so the author's code raised it
        raise DriverFailedError(f"convert_from() of {target.__name__} raised {explained(e)}") from e
    raise DriverFailedError(
        f"convert_from() of {target.__name__} returned {type(config).__name__}: it must return {target.__name__}"
    )


def _too_large(given: GivenParameters) -> str:
    places = join_names([layer.where for layer in given.layers])
    return (
        f"parameters: {places} are merged for one request and have {given.size} bytes: at most "
        f"{MAX_LAYERED_BYTES} are accepted; remove entries that are not needed"
    )
