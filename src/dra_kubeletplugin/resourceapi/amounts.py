"""Amounts: capacities of devices, the policies for requesting them, and the node resources that a device uses.

The constructors accept any value, because drivers read amounts from hardware. The ``json`` methods raise ``ValueError`` or ``TypeError``
for an invalid amount, so that it is a fault of the one device that has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import shown
from .immutable import Immutable
from .quantity import Quantity

Amount = str | int | Quantity


def _quantity(value: Any) -> Any:
    """Returns an amount as a quantity, and an invalid amount unchanged."""
    try:
        return Quantity(value)
    except (TypeError, ValueError, ArithmeticError):
        return value


def _optional(value: Any) -> Any:
    return None if value is None else _quantity(value)


class RequestPolicy(Immutable):
    """The amounts that claims may request of a capacity of a shareable device (``requestPolicy``, KEP-5075).

    The scheduler rounds a request up to the next allowed amount. A claim without a request for the capacity gets
    ``default``.

    Args:
        default: the amount for a claim that does not request this capacity; must itself be allowed.
        min: lower bound of a range.
        max: upper bound of a range; without it the range ends at the capacity.
        step: allowed amounts are ``min`` plus a multiple of ``step``. Before 1.37, Kubernetes rounds both up to whole
            numbers.
        valid_values: the allowed amounts, at most 10, in ascending order; instead of a range.

    Arguments that contradict each other, and invalid amounts, are faults of the device.
    """

    __slots__ = ("default", "min", "max", "step", "valid_values")  # noqa: RUF023 - the order of the arguments of _set

    default: Quantity
    min: Quantity | None
    max: Quantity | None
    step: Quantity | None
    valid_values: tuple[Quantity, ...]

    def __init__(
        self,
        *,
        default: Amount,
        min: Amount | None = None,
        max: Amount | None = None,
        step: Amount | None = None,
        valid_values: Sequence[Amount] = (),
    ) -> None:
        listed = isinstance(valid_values, Sequence) and not isinstance(valid_values, str)
        values = tuple(map(_quantity, valid_values)) if listed else valid_values
        self._set(_quantity(default), *map(_optional, (min, max, step)), values)

    @classmethod
    def from_json(cls, value: object) -> RequestPolicy:
        """Reads a policy in the form of resource.k8s.io/v1. Raises ``ValueError`` if it is malformed."""
        policy = _fields(value, {"default"}, {"validValues", "validRange"})
        span = _fields({} if policy.get("validRange") is None else policy["validRange"], set(), {"min", "max", "step"})
        options = [] if policy.get("validValues") is None else policy["validValues"]
        if not isinstance(options, Sequence) or isinstance(options, str):
            raise ValueError("Expected `array` as validValues")
        made = cls(
            default=_read_quantity(policy["default"]),
            **{k: _read_quantity(v) for k, v in span.items() if v is not None},
            valid_values=[_read_quantity(v) for v in options],
        )
        made.json()  # raises if the values contradict each other
        return made

    def json(self) -> dict[str, Any]:
        """Returns the policy in the form of resource.k8s.io/v1."""
        if not isinstance(self.valid_values, tuple):
            raise TypeError(f"a RequestPolicy's valid_values is {shown(self.valid_values)}: use a list of amounts")
        span = _quantity_texts(min=self.min, max=self.max, step=self.step)
        if span and self.valid_values:
            raise ValueError("a RequestPolicy has a range (min, max, step) or valid_values: use one of them")
        if span and self.min is None:
            raise ValueError("a RequestPolicy with max or step needs min, from which steps are counted")
        if self.step is not None and self.step <= Quantity(0):
            raise ValueError(f"a RequestPolicy's step must be greater than zero, not {self.step}")
        out: dict[str, Any] = {"default": Quantity(self.default).text}
        if self.valid_values:
            out["validValues"] = [Quantity(v).text for v in self.valid_values]
        return out | ({"validRange": span} if span else {})


class Capacity(Immutable):
    """An amount that a device has: ``Capacity("80Gi")``.

    Args:
        value: text such as ``80Gi``, a whole number, or a :class:`Quantity`.
        policy: the amounts that claims may request; only for devices with ``allow_multiple_allocations``. Without a
            policy a claim may request any amount. A claim without a request then gets the full capacity, so no other
            claim can share the device.
    """

    __slots__ = ("value", "policy")  # noqa: RUF023 - the order of the arguments of _set

    value: Quantity
    policy: RequestPolicy | None

    def __init__(self, value: Amount, policy: RequestPolicy | None = None) -> None:
        self._set(_quantity(value), policy)

    @classmethod
    def from_json(cls, value: object) -> Capacity:
        """Reads a capacity in the form of resource.k8s.io/v1, or a plain quantity.

        Raises ``ValueError`` for anything else.
        """
        if not isinstance(value, Mapping):
            return cls(_read_quantity(value))
        fields = _fields(value, {"value"}, {"requestPolicy"})
        policy = fields.get("requestPolicy")
        return cls(_read_quantity(fields["value"]), None if policy is None else RequestPolicy.from_json(policy))

    def json(self) -> dict[str, Any]:
        """Returns the capacity in the form of resource.k8s.io/v1."""
        if not isinstance(self.policy, RequestPolicy | None):
            raise TypeError(f"its policy is {shown(self.policy)}: use a RequestPolicy")
        return {"value": Quantity(self.value).text} | ({"requestPolicy": self.policy.json()} if self.policy else {})


def _fields(value: object, needed: set[str], known: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"Expected `object`, got {value!r}")
    if missing := needed - value.keys():
        raise ValueError(f"Object missing required field `{min(missing)}`")
    if unknown := value.keys() - needed - known:
        raise ValueError(f"Object contains unknown field `{min(unknown)}`")
    return value


def _read_quantity(value: object) -> Quantity:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"Expected a quantity such as `80Gi`, got {value!r}")
    return Quantity(value)


class NodeResource(Immutable):
    """The amount of a node's resource, such as ``cpu``, that a device uses, and the overhead of each use (KEP-5517).

    Args:
        per_device: the amount of the node's resource that each allocated device uses.
        capacity: instead of ``per_device``, the name of a capacity of the device. Each consumed unit of this capacity
            uses ``per_unit`` of the node's resource. Only for devices with ``allow_multiple_allocations``, because
            claims consume no capacity of other devices, and the scheduler then ends with an error.
        per_unit: required with ``capacity``.
        per_pod: an additional amount for a pod that uses the device.
        per_container: an additional amount for each container of such a pod.

    A claim for a device with ``per_device`` or ``capacity`` can be used by one pod only. Arguments that contradict each
    other, and invalid amounts, are faults of the device.
    """

    __slots__ = ("per_device", "capacity", "per_unit", "per_pod", "per_container")  # noqa: RUF023 - the order of _set

    per_device: Quantity | None
    capacity: str
    per_unit: Quantity | None
    per_pod: Quantity | None
    per_container: Quantity | None

    def __init__(
        self,
        *,
        per_device: Amount | None = None,
        capacity: str = "",
        per_unit: Amount | None = None,
        per_pod: Amount | None = None,
        per_container: Amount | None = None,
    ) -> None:
        device, unit, pod, container = map(_optional, (per_device, per_unit, per_pod, per_container))
        self._set(device, capacity, unit, pod, container)

    def json(self) -> dict[str, Any]:
        """Returns the value in the form of resource.k8s.io/v1 of Kubernetes 1.37."""
        if bool(self.capacity) != (self.per_unit is not None):
            raise ValueError("a NodeResource's capacity and per_unit must be used together")
        if self.per_device is not None and self.capacity:
            raise ValueError("a NodeResource has per_device or capacity, not both")
        mapping = {"capacityKey": self.capacity} if self.capacity else {}
        mapping |= _quantity_texts(capacityMultiplier=self.per_unit, deviceMultiplier=self.per_device)
        overhead = _quantity_texts(perPod=self.per_pod, perContainer=self.per_container)
        if not mapping and not overhead:
            raise ValueError("a NodeResource needs per_device, capacity with per_unit, per_pod or per_container")
        return ({"mapping": mapping} if mapping else {}) | ({"overhead": overhead} if overhead else {})


def _quantity_texts(**amounts: Quantity | None) -> dict[str, str]:
    return {name: Quantity(q).text for name, q in amounts.items() if q is not None}
