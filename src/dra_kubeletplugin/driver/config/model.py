"""Opaque parameters: typed, strict, with class and claim precedence.

Source: KEP-4381, "Implementing optional resources"; ``status.allocation.devices.config`` of a ResourceClaim.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, dataclass_transform

import msgspec

from ...base.signals import Interrupted
from ...base.structs import NamedStructMeta
from ...errors import DraError, DriverError, DriverFailedError, is_a, printable, shown
from ...resourceapi.amounts import Capacity, RequestPolicy
from ...resourceapi.quantity import Quantity
from ...resourceapi.version import Version
from ..diagnostics.author_errors import defined, explained, located

Steps = tuple[str | int, ...]  # keys and positions from the top
MOST_FAULTS = 10
"""Faults that are reported of all parameters of a claim, class or review together. To find each costs one more judgement, or several."""
_PLAIN = frozenset({str, int, float, bool, type(None)})  # types of values that contain no object


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _ConfigMeta(NamedStructMeta):
    """Subclasses of :class:`Config` are frozen and made by keyword as it is, without saying so, for type checkers too."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        try:
            return super().__new__(mcls, name, bases, namespace, **{"kw_only": True} | options)
        except TypeError as e:  # msgspec's, which knows what is a field and what is the class's own
            for field in namespace.get("__annotations__", {}):
                value = namespace.get(field)
                if isinstance(value, (list, dict, set)) and value and repr(value) in str(e):
                    raise DriverError(
                        f"{name}.{field} = {shown(value)} would be one object for all claims: write "
                        f"msgspec.field(default_factory=lambda: {shown(value)})"
                    ) from None
            if "__init__" in namespace:
                raise DriverError(
                    f"{name}.__init__() is made from its fields: give them defaults, and write what must hold into check()"
                ) from None
            raise

    def __setattr__(cls, name: str, value: object) -> None:
        if name.startswith("__dataclass_"):
            raise DriverError(f"{cls.__name__} is made from its fields by Config already: take @dataclass off")
        super().__setattr__(name, value)


class Config(
    msgspec.Struct, metaclass=_ConfigMeta, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Base class of a driver's parameters.

    Fields are written in Python's style and read in JSON's (``time_slice`` is ``timeSlice``). An unknown field, a wrong type or
    a missing one is refused with its path. Fields may be of type :class:`Quantity` (``80Gi``), :class:`Version`, :class:`Capacity` and
    :class:`RequestPolicy`. Nested objects are Structs, best made with ``Config`` as their base too::

        class GpuConfig(Config):
            KIND = "GpuConfig"
            API_VERSION = "gpu.example.com/v1alpha1"
            interval: Literal["Short", "Long"] = "Short"

            def check(self) -> None:
                ...  # raise ValueError for what types cannot say

    A driver that moves on to another version of its parameters keeps the class of the one before, names it in ``OLDER``, and says in
    :meth:`convert_from` what it means now: claims that give either are read, and ``prepare`` sees the newest only.

    Attributes:
        KIND: of the parameters, as claims give it.
        API_VERSION: the same, ``group/version``.
        OLDER: versions of before that claims may still give; each may have older ones itself.
        LAYERED: fields that a claim leaves out are those of its DeviceClass, where both give this kind; null gives a field its default
            back (JSON Merge Patch, RFC 7386). Without it the claim's parameters take the place of the class's as a whole.
    """

    KIND: ClassVar[str] = ""
    API_VERSION: ClassVar[str] = ""
    OLDER: ClassVar[Sequence[type[Config]]] = ()
    LAYERED: ClassVar[bool] = False

    @classmethod
    def convert_from(cls, older: Any, /) -> Self:
        """These parameters for ``older``, which is of one of the classes in ``OLDER`` and was checked. Raise ``ValueError`` with a
        sentence for what cannot be said in this version."""
        raise NotImplementedError(f"{cls.__name__} names older versions in OLDER: write convert_from(cls, older)")

    def check(self) -> None:
        """Called after decoding, of objects within first. Raise ``ValueError`` with a sentence for a value that cannot work."""

    def json(self) -> dict[str, Any]:
        """The parameters as they are written in a claim, API version and kind included where this class names them."""
        head = {"apiVersion": self.API_VERSION, "kind": self.KIND}
        fields: dict[str, Any] = as_json(self)
        return {k: v for k, v in head.items() if v} | fields


def as_json(value: object) -> Any:
    """A value of a field, as a claim gives it."""
    return msgspec.to_builtins(value, enc_hook=_written)


def _written(value: object) -> Any:
    if isinstance(value, (Quantity, Version)):
        return str(value)
    if isinstance(value, (Capacity, RequestPolicy)):
        return value.json()
    raise TypeError(f"parameters of type {printable(type(value).__name__)} cannot be written as JSON")


def read_form(wanted: type, value: Any) -> Any:
    """What has a form of its own in JSON; ``ValueError`` where it cannot be read."""
    if wanted is Quantity:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ValueError(f"Expected a quantity such as `80Gi`, got {value!r}")
        return Quantity(value)
    if wanted is Version:
        if not isinstance(value, str):
            raise ValueError(f"Expected a version such as `1.2.3`, got {value!r}")
        return Version(value)
    if wanted is Capacity:
        return Capacity.from_json(value)
    if wanted is RequestPolicy:
        return RequestPolicy.from_json(value)
    raise NotImplementedError(f"parameters of type {printable(wanted.__name__)} cannot be read from JSON")


FORMS = (Quantity, Version, Capacity, RequestPolicy)  # what has a form of its own in JSON


def given_as_default(default: object, wanted: Any) -> None:
    """Raises ``ValueError`` or ``TypeError`` where a claim that gave this default could not be read."""
    msgspec.convert(as_json(default), wanted, dec_hook=read_form, str_keys=True)


def converted(given: Mapping[str, Any], cls: type[Config], *, check: bool = False) -> Config:
    """Where the author's own checks run: ``__post_init__`` and :meth:`Config.check`."""
    try:
        config = msgspec.convert(given, cls, dec_hook=read_form, str_keys=True)
        return checked(config) if check else config
    except (ValueError, Interrupted):
        raise
    except DraError as e:
        raise located(e) from None
    except BaseException as e:  # no await in between: what is raised here is the author's
        hint = ": raise ValueError(...) for what no claim may give" if is_a(e, AssertionError) else ""
        raise DriverFailedError(f"the checks of {cls.__name__} raised {explained(e)}{hint}") from e


class ConfigRefused(ValueError):
    """What checks say of objects whose types are right: a path and a sentence for each."""

    def __init__(self, said: Sequence[tuple[Steps, str]]) -> None:
        self.said = said
        super().__init__("; ".join(text for _, text in said))


def checked(config: Config) -> Config:
    """After :meth:`Config.check` of it and of all within.

    Raises :class:`ConfigRefused` where one refuses, with at most one more than :data:`MOST_FAULTS`.
    """
    if said := list(itertools.islice(_refusals(config, ()), MOST_FAULTS + 1)):
        raise ConfigRefused(said)
    return config


def _refusals(value: object, at: Steps) -> Iterator[tuple[Steps, str]]:
    """Calls ``check`` of every object within, innermost first, and of those in which nothing is wrong."""
    within: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, Config):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        within = ((encoded, getattr(value, name)) for encoded, name in names)
    elif isinstance(value, Mapping):
        within = value.items()
    elif isinstance(value, (list, tuple, set, frozenset)):
        within = enumerate(value)
    wrong = False
    for step, item in within:
        if type(item) not in _PLAIN:
            for refused in _refusals(item, (*at, step)):
                wrong = True
                yield refused
    if wrong or not isinstance(value, Config):
        return
    try:
        answer: object = value.check()  # type: ignore[func-returns-value]  # what it must not do
    except ValueError as e:
        yield at, printable(e)
        return
    if answer is not None:
        raise DriverError(
            f"{type(value).__name__}.check() answered {shown(answer)}, which nobody reads: raise ValueError(...) "
            f"for what cannot work ({defined(value.check)})"
        )
