"""The base class of a driver's opaque parameters: typed and strict, with checks and conversion between versions.

Source: KEP-4381, "Implementing optional resources"; ``status.allocation.devices.config`` of a ResourceClaim.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self, dataclass_transform

import msgspec

from ...errors import DriverError, DriverFailedError, clip, kind_of, printable, shown
from ...resourceapi import version
from ...resourceapi.amounts import Capacity, RequestPolicy
from ...resourceapi.quantity import Quantity
from ...resourceapi.types import Attribute
from ...resourceapi.version import Version
from ..diagnostics.author_errors import author_code, definition_place

MAX_FAULTS = 10
"""At most this many faults are reported for all parameters of a claim, class or review. Finding one more costs at least one validation."""
_PLAIN = frozenset({str, int, float, bool, type(None)})  # types whose values contain no object
_LONGEST_KEY = 80  # bytes of a key in a path


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _ConfigMeta(msgspec.StructMeta):
    """Makes subclasses of :class:`Config` frozen and keyword-only, also for type checkers."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True} | options)


class Config(
    msgspec.Struct, metaclass=_ConfigMeta, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Base class of a driver's parameters.

    You write fields in Python's style; claims contain them in JSON's style (``time_slice`` is ``timeSlice``). An unknown field, a wrong
    type or a missing field is an error that names its path. Fields may also have the types :class:`Quantity` (``80Gi``),
    :class:`Version`, :class:`Capacity` and :class:`RequestPolicy`. Nested objects are msgspec Structs. Make them subclasses of
    ``Config`` too: then unknown fields are errors in them, and their ``check`` runs::

        class GpuConfig(Config):
            KIND = "GpuConfig"
            API_VERSION = "gpu.example.com/v1alpha1"
            interval: Literal["Short", "Long"] = "Short"
            clock_mhz: Annotated[int, msgspec.Meta(ge=100, le=800)] = 200

            def check(self) -> None:
                ...  # raise ValueError for a rule about several fields

    To introduce a new version of the parameters, keep the old class, list it in ``OLDER``, and write :meth:`convert_from`. Claims may
    then use both versions, and ``prepare`` gets the newest only.

    Attributes:
        KIND: the ``kind`` that claims write into their parameters.
        API_VERSION: the ``apiVersion`` that claims write into their parameters, ``group/version``.
        OLDER: classes of older versions that claims may still use. Each of these classes may have an ``OLDER`` too.
        DEVICES: the attributes of the devices that this kind is for, such as ``{"type": "gpu"}``; empty for all devices. An entry of this
            kind has no effect on other devices, so one claim can have an entry for each type of device. If all
            entries of a claim are for devices that the claim does not have, prepare fails with an error. The newest version's value applies
            to older versions too.
    """

    KIND: ClassVar[str] = ""
    API_VERSION: ClassVar[str] = ""
    OLDER: ClassVar[Sequence[type[Config]]] = ()
    DEVICES: ClassVar[Mapping[str, Attribute]] = {}

    @classmethod
    def convert_from(cls, older: Any, /) -> Self:
        """Converts parameters of an older version to this version.

        The framework calls it in a thread or on the event loop, so it must be a plain method and must not block.

        Args:
            older: an object of one of the classes in ``OLDER``; its :meth:`check` has passed.

        Raises:
            ValueError: a sentence that explains what this version cannot express.
        """
        raise NotImplementedError(f"{cls.__name__} lists older versions in OLDER: define convert_from(cls, older)")

    def check(self) -> None:
        """Checks rules about several fields. For a rule about one field use its type (``Literal``, ``msgspec.Meta``), which `dra schema`
        shows. Override it, and raise ``ValueError`` with a sentence to reject the parameters.

        The framework calls it after decoding, for inner objects first, wherever it reads parameters: before prepare, in the webhook and
        in tools. It must be a plain method, must return None and must not block.
        """

    def json(self) -> dict[str, Any]:
        """Returns the parameters as a claim contains them, with API version and kind if this class sets them."""
        head = {"apiVersion": self.API_VERSION, "kind": self.KIND}
        fields: dict[str, Any] = as_json(self)
        return {k: v for k, v in head.items() if v} | fields


def as_json(value: object) -> Any:
    """Returns a field's value in the JSON form that a claim contains."""
    return msgspec.to_builtins(value, enc_hook=_written)


def _written(value: object) -> Any:
    if isinstance(value, (Quantity, Version)):
        return str(value)
    if isinstance(value, (Capacity, RequestPolicy)):
        return value.json()
    raise TypeError(f"parameters of type {kind_of(value)} cannot be written as JSON")


def read_form(wanted: type, value: Any) -> Any:
    """Reads a value of one of :data:`FORMS` from JSON. Raises ``ValueError`` if it is malformed."""
    if wanted is Quantity:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ValueError(f"Expected a quantity such as `80Gi`, got {value!r}")
        return Quantity(value)
    if wanted is Version:
        if not isinstance(value, str):
            raise ValueError(f"Expected a version such as `1.2.3`, got {value!r}")
        return version.parse(value)
    if wanted is Capacity:
        return Capacity.from_json(value)
    if wanted is RequestPolicy:
        return RequestPolicy.from_json(value)
    raise NotImplementedError(f"parameters of type {printable(wanted.__name__)} cannot be read from JSON")


FORMS = (Quantity, Version, Capacity, RequestPolicy)  # types with their own JSON form


def check_default_form(default: object, wanted: Any) -> None:
    """Checks that a claim could contain this default. Raises ``ValueError`` or ``TypeError`` otherwise."""
    msgspec.convert(as_json(default), wanted, dec_hook=read_form, str_keys=True)


def decode_config(given: Mapping[str, Any], cls: type[Config]) -> Config:
    """Decodes parameters. The author's ``__post_init__`` runs here, but not :meth:`Config.check`.

    Raises:
        msgspec.ValidationError: the parameters are invalid.
        DriverFailedError: the author's code raised an exception other than ValueError.
    """
    with author_checks(cls):
        return msgspec.convert(given, cls, dec_hook=read_form, str_keys=True)


def check_config(config: Config) -> list[str]:
    """Calls :meth:`Config.check` of ``config`` and of all objects in it.

    Returns a sentence with the path for each object that its check rejected, at most :data:`MAX_FAULTS` + 1.

    Raises:
        DriverError: a check returned a value.
        DriverFailedError: a check raised an exception other than ValueError.
    """
    with author_checks(type(config)):
        return list(itertools.islice(_refusals(config, "parameters"), MAX_FAULTS + 1))


def author_checks(cls: type[Config]) -> AbstractContextManager[None]:
    """Converts exceptions of the author's checks, other than ValueError, to DriverFailedError. The block must not await."""
    return author_code(f"the checks of {cls.__name__}", DriverFailedError, ValueError, hint=_hint)


def _hint(e: BaseException) -> str:
    return ": raise ValueError(...) to reject parameters" if isinstance(e, AssertionError) else ""


def key_path(path: str, key: object) -> str:
    """Returns the path of a mapping's value."""
    return f"{path}[{clip(key, _LONGEST_KEY)}]"


def _refusals(value: object, path: str) -> Iterator[str]:
    """Calls ``check`` of all objects in ``value``, inner objects first. Skips an object that contains a rejected object."""
    within: Iterable[tuple[str, object]] = ()
    if isinstance(value, Config):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        within = ((f"{path}.{encoded}", getattr(value, name)) for encoded, name in names)
    elif isinstance(value, Mapping):
        within = ((key_path(path, key), item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        within = ((f"{path}[{i}]", item) for i, item in enumerate(value))
    wrong = False
    for at, item in within:
        if type(item) not in _PLAIN:
            for refused in _refusals(item, at):
                wrong = True
                yield refused
    if wrong or not isinstance(value, Config):
        return
    try:
        result: object = value.check()  # type: ignore[func-returns-value]  # check() must return None
    except ValueError as e:
        yield f"{path}: {printable(e)}"
        return
    if result is not None:
        raise DriverError(
            f"{type(value).__name__}.check() returned {shown(result)}, which is ignored: raise ValueError(...) "
            f"to reject parameters ({definition_place(value.check)})"
        )
