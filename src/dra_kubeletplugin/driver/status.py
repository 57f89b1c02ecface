"""The status of an allocated device, which a driver reports into ``status.devices[]`` of its ResourceClaim (KEP-4817)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..base.json_types import JSONValue
from ..errors import InvalidObjectError, clip, printable
from ..resourceapi.validation.field_errors import FieldError
from .data import plain_json

MAX_CONDITIONS = 8
MAX_STATUS_DATA_BYTES = 10_240
_MAX_MESSAGE = 32_768
_WAIT = 5.0  # seconds that a caller waits for a report to be written


@dataclass(frozen=True)
class Condition:
    """One condition of a device, as ``metav1.Condition``. The framework maintains ``lastTransitionTime``.

    Attributes:
        type: e.g. ``Ready`` or ``example.com/Attached``; unique in one status.
        status: True, False, or None for unknown.
        reason: one word in CamelCase, for programs.
        message: a sentence for people; cut at 32 KiB.

    Raises:
        InvalidObjectError: the API server would reject the condition.
    """

    type: str
    status: bool | None
    reason: str = "Reported"
    message: str = ""

    def __post_init__(self) -> None:
        from ..resourceapi.validation.device_status import (
            condition_faults,  # imported here: not every driver reports a status
        )

        if not all(isinstance(text, str) for text in (self.type, self.reason)):
            raise InvalidObjectError("Condition: type and reason must be text")
        if self.status is not None and not isinstance(self.status, bool):
            raise InvalidObjectError(
                f"Condition {printable(self.type)}: status must be True, False, or None for unknown"
            )
        _refuse(condition_faults, self.json(None, "now"), "Condition")

    def json(self, before: Mapping[str, Any] | None, time: str) -> dict[str, Any]:
        """Returns the condition as the claim contains it.

        Args:
            before: the same condition in the claim now; None if there is none.
            time: the current time, as RFC 3339 text. It becomes the transition time if the status changed.
        """
        status = {True: "True", False: "False", None: "Unknown"}[self.status]
        same = before is not None and before.get("status") == status
        return {
            "type": self.type,
            "status": status,
            "reason": self.reason,
            "message": clip(self.message, _MAX_MESSAGE),
            "lastTransitionTime": (before.get("lastTransitionTime") if same and before else None) or time,
        }


@dataclass(frozen=True, kw_only=True)
class NetworkData:
    """Network data of a device, for consumers of the claim.

    Attributes:
        interface_name: name of the interface in the pod, at most 256 bytes.
        ips: at most 16 addresses with prefix length, distinct and in canonical form, e.g. ``10.0.0.2/24``.
        hardware_address: e.g. a MAC address, at most 128 bytes.

    Raises:
        InvalidObjectError: the API server would reject the data.
    """

    interface_name: str = ""
    ips: Sequence[str] = ()
    hardware_address: str = ""

    def __post_init__(self) -> None:
        from ..resourceapi.validation.device_status import network_data  # imported here: only network drivers need it

        ips = tuple(self.ips) if isinstance(self.ips, Iterable) and not isinstance(self.ips, str) else (None,)
        if not all(isinstance(ip, str) for ip in ips):
            raise InvalidObjectError(f"NetworkData: ips is {printable(self.ips)!r}: use a list such as ['10.0.0.2/24']")
        object.__setattr__(self, "ips", ips)
        for name in ("interface_name", "hardware_address"):
            if not isinstance(getattr(self, name), str):
                raise InvalidObjectError(f"NetworkData: {name} is {printable(getattr(self, name))!r}, not text")
        _refuse(network_data, self.json(), "NetworkData")

    def json(self) -> dict[str, Any]:
        out = {"interfaceName": self.interface_name, "ips": list(self.ips), "hardwareAddress": self.hardware_address}
        return {k: v for k, v in out.items() if v}


@dataclass(frozen=True, kw_only=True)
class DeviceStatus:
    """The complete status that one writer reports for one device. It replaces the writer's previous status of that device.

    Attributes:
        conditions: at most 8, together with the conditions of other writers.
        data: the driver's own JSON object, at most 10 KiB, for readers of the claim.
        network_data: addresses of a network device.

    Raises:
        InvalidObjectError: the API server would reject the status.
    """

    conditions: Sequence[Condition] = ()
    data: JSONValue = None
    network_data: NetworkData | None = None

    def __post_init__(self) -> None:
        conditions = tuple(self.conditions)
        object.__setattr__(self, "conditions", conditions)
        types = [c.type for c in conditions if isinstance(c, Condition)]
        if len(types) != len(conditions):
            raise InvalidObjectError("DeviceStatus: each item of conditions must be a Condition")
        if len(types) > MAX_CONDITIONS or len(set(types)) != len(types):
            raise InvalidObjectError(
                f"DeviceStatus: conditions are {', '.join(types)}: use each type once, and at most {MAX_CONDITIONS} conditions"
            )
        if self.data is not None:
            try:
                object.__setattr__(self, "data", plain_json(self.data))
            except ValueError as e:
                raise InvalidObjectError(f"DeviceStatus: {e}") from None
            if (size := len(msgspec.json.encode(self.data))) > MAX_STATUS_DATA_BYTES:
                raise InvalidObjectError(f"DeviceStatus: data of {size} bytes is more than {MAX_STATUS_DATA_BYTES}")
            if not isinstance(self.data, dict):
                raise InvalidObjectError(
                    "DeviceStatus: data must be a dictionary, because the API server accepts only JSON objects"
                )

    def json(self, before: Mapping[str, Any], time: str) -> dict[str, Any]:
        """Returns the status fields of an entry of ``status.devices[]``, without the fields that identify the device.

        Args:
            before: the entry in the claim now; empty if there is none.
            time: the current time, as RFC 3339 text.
        """
        known = {c.get("type"): c for c in before.get("conditions") or []}
        out: dict[str, Any] = {}
        if self.conditions:
            out["conditions"] = [c.json(known.get(c.type), time) for c in self.conditions]
        if self.data is not None:
            out["data"] = self.data
        if self.network_data is not None:
            out["networkData"] = self.network_data.json()
        return out


@dataclass(frozen=True, eq=False)
class ReportedStatus:
    """A report that is being written. ``await`` it, or call :meth:`wait` in a thread.

    The result is True if the status is in the claim. It is False if the claim is gone, or if the write takes longer than 5 s and
    continues in the background. Nothing is raised.
    """

    _written: Future[bool] = field(repr=False)

    def __await__(self) -> Generator[Any, None, bool]:
        return self._until_written().__await__()

    async def _until_written(self) -> bool:
        done, _ = await asyncio.wait({asyncio.wrap_future(self._written)}, timeout=_WAIT)
        return bool(done) and self._written.result()

    def wait(self) -> bool:
        """Waits for the write and returns the result, as ``await`` does, for code in a thread. Never call it on the event loop."""
        try:
            return self._written.result(_WAIT)
        except TimeoutError:
            return False


ReportStatus = Callable[[tuple[str, str, str], DeviceStatus], ReportedStatus]  # the device: pool, name, share id


def _refuse(validate: Callable[[JSONValue, str], list[FieldError]], value: JSONValue, name: str) -> None:
    """Raises :class:`InvalidObjectError` with every fault that ``validate`` finds."""
    try:
        faults = [f"{fault.field}: {fault.message}" for fault in validate(value, name)]
    except UnicodeEncodeError as e:
        faults = [f"{name}: {e}"]
    if faults:
        raise InvalidObjectError(printable("; ".join(faults)))
