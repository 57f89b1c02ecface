"""Every error that a user can meet, with a code and a help text.

All are subclasses of :class:`DraError`, and ``docs/errors.md`` lists them. If the prepare of a claim fails, the kubelet writes
:meth:`DraError.event` into an Event of the pod. Drivers raise :class:`RetryableError` if a retry may succeed, and
:class:`PermanentError` if only a change of claim, class or machine helps.

A message is one sentence of at most 1 KiB: what failed, where, and what to do. It contains no values that differ between attempts
(counters, times, addresses), because each new text is a new event. ``make docs`` writes ``docs/errors.md`` from this file.
"""

from __future__ import annotations

import re
from typing import ClassVar

MAX_MESSAGE_BYTES = 1024
_LONGEST = 65_536  # maximum characters of a foreign text that are processed; no message shows more
_SHOWN = 80
_MEMBERS, _DEPTH = 3, 3  # of nested exception groups: members and levels that are described
# Control characters except tab and newline, lone surrogates, and zero-width characters: direction marks, joiners, tags.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
# The memory address of an object, as in "<Card object at 0x7f0a...>" or "<function <lambda> at 0x7f0a...>".
_ADDRESS = re.compile(r"(<[^<>]{1,200}(?:<[^<>]{1,80}>[^<>]{0,200}){0,6}) at 0x[0-9a-fA-F]+")


def printable(text: object) -> str:
    """Returns ``str(text)`` with U+FFFD for characters that cannot be printed or encoded as UTF-8. Never raises.

    Newlines and tabs are kept. For an object whose ``__str__`` raises, the result is the name of its type.
    """
    return _UNPRINTABLE.sub("\ufffd", _text(text))


def shown(value: object) -> str:
    """Returns ``repr(value)`` on one printable line of at most 80 characters, without object addresses. Never raises."""
    try:
        return _line(steady(repr(value)))[:_SHOWN]
    except Exception:  # the __repr__ of an object of a vendor's library may raise
        return f"<{type(value).__name__} object>"


def kind_of(value: object) -> str:
    """Returns the name of a value's type, for a message about a wrong type."""
    return printable(type(value).__name__)


def describe(e: BaseException) -> str:
    """Returns ``TypeName: message`` on one printable line, without object addresses, also for groups. Never raises."""
    return _described(e, _DEPTH)


def clip(text: object, limit: int = MAX_MESSAGE_BYTES) -> str:
    """Returns ``text`` on one printable line, cut to ``limit`` bytes of UTF-8 with an ellipsis. Never raises."""
    if isinstance(text, str) and len(text) <= limit and text.isascii() and text.isprintable() and " " not in text:
        return text  # most values, without the work for the others
    line = _line(_text(text))
    raw = line.encode()
    if len(raw) <= limit:
        return line
    return raw[: max(limit - 3, 0)].decode(errors="ignore") + "..."


def _described(e: BaseException, depth: int) -> str:
    text, name = _line(steady(_text(e))), _line(type(e).__name__)
    if isinstance(e, BaseExceptionGroup) and depth:
        members = [_described(m, depth - 1) for m in e.exceptions[:_MEMBERS]]
        text += f" [{'; '.join(members)}{'; ...' if len(e.exceptions) > _MEMBERS else ''}]"
    return f"{name}: {text}" if text and text != name else name


def _text(value: object) -> str:
    try:
        return str(value)[:_LONGEST]
    except Exception:  # the __str__ of an exception of a vendor's library may raise
        return type(value).__name__


def steady(text: str) -> str:
    """Returns ``text`` without the addresses of objects, which differ in each process."""
    return _ADDRESS.sub(r"\1", text)


def _line(text: str) -> str:
    return _UNPRINTABLE.sub("\ufffd", " ".join(text.split()))


class DraError(Exception):
    """Base of all errors of this package."""

    code: ClassVar[str] = "DRA-E000"
    reason: ClassVar[str] = "INTERNAL"
    help: ClassVar[str] = "A fault inside the framework; report it with the log lines around this text."
    faults: tuple[str, ...] = ()  # one sentence for each fault, if there are several

    @property
    def message(self) -> str:
        return printable(self)

    def event(self) -> str:
        """Returns the text that the kubelet writes into an Event: reason, sentence and code, on one line of at most 1 KiB. Never raises.

        The same fault produces the same bytes, so that Kubernetes aggregates repeated events. The operation id differs per attempt
        and is only in the log.
        """
        tail = f" [{clip(self.code, 64)}]"
        head = f"{clip(self.reason, 64)}: {steady(self.message)}"
        return clip(head, MAX_MESSAGE_BYTES - len(tail.encode())) + tail


class SettingsError(DraError):
    """One or more options are invalid; ``faults`` contains a sentence for each, an ``OptionFault`` for a value."""

    code = "DRA-E001"
    reason = "INVALID_SETTINGS"
    help = "Every faulty option is named with its flag and environment variable. Correct them all and start again."

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


class SocketError(DraError):
    """A socket of the plugin cannot be served at its path."""

    code = "DRA-E002"
    reason = "SOCKET"
    help = (
        "Another plugin may be alive on the path (stop it, or set POD_UID to turn rolling update on), "
        "the folder may be missing or not writable, or the path exceeds the 107 bytes that Linux allows."
    )


class DriverError(DraError):
    """The driver class breaks the contract that ``Driver`` documents."""

    code = "DRA-E003"
    reason = "DRIVER"
    help = "Correct the driver; the message names the class, the attribute and the rule."


class InvalidObjectError(DraError):
    """An object that the API server would reject; the message contains the field's path."""

    code = "DRA-E004"
    reason = "INVALID"
    help = "The rules are those of resource.k8s.io in Kubernetes 1.34 to 1.37. Change the named field."


class InvalidSpecError(DraError):
    """A CDI spec that a container runtime would reject."""

    code = "DRA-E005"
    reason = "INVALID_CDI"
    help = "See the CDI specification 1.1.0 for the named field."


class ApiError(DraError):
    """The API server returned an error, or could not be reached (``status`` 0). ``kube/errors.py`` has a subclass for each status."""

    code = "DRA-E006"
    reason = "API"
    help = (
        "403 means that the service account lacks the named permission (deploy/ has the rules); "
        "0 means that the API server did not respond, or that a proxy responded: check the server, the network and the certificates."
    )

    status: int = 0

    def __init__(self, message: str, *, details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.details = details or {}

    @property
    def unreachable(self) -> bool:
        """Whether the server may be temporarily unavailable: no response, 429, or a server error."""
        return self.status in {0, 429} or self.status >= 500

    def names(self, name: str) -> bool:
        """Whether the error is about the object ``name``, and not about a path that the server does not know."""
        about = self.details.get("details")
        return bool(name) and isinstance(about, dict) and about.get("name") == name


class NotReadyError(DraError):
    """The plugin did not become ready in time; the text contains the causes."""

    code = "DRA-E007"
    reason = "NOT_READY"
    help = "The message has the lines of /readyz. Fix the cause in the first line."


class LeaseLostError(DraError):
    """This process no longer leads the controllers of its driver. It exits; its replacement takes part in the election again."""

    code = "DRA-E008"
    reason = "LEASE_LOST"
    help = (
        "The Lease could not be renewed in time, or another replica took it: see the API server and the preceding log line. "
        "Another replica leads; the kubelet restarts the container."
    )


class RecordsError(DraError):
    """The claim records cannot be read or written. ``denied`` is whether this process lacks the permission."""

    denied = False
    code = "DRA-E010"
    reason = "RECORDS_UNAVAILABLE"
    help = (
        "The records are in the folder claims of the driver's folder below <kubelet-root>/plugins. Look at free space, permissions "
        "and the disk. `dra claims` shows what is known of a damaged file that has no copy."
    )


class RecordsBusyError(RecordsError):
    """Another process holds the lock of the records for longer than the wait limit."""

    code = "DRA-E011"
    reason = "RECORDS_BUSY"
    help = "Another instance of the plugin is stopped or hangs while it writes. Delete its pod; the kubelet retries."


class ClaimError(DraError):
    """A fault of one claim. It never fails the other claims of the call."""

    code = "DRA-E100"
    reason = "CLAIM"
    help = "See the message."


class RetryableError(ClaimError):
    """Raise it in :meth:`Driver.prepare` for a fault that may pass without a change of the claim, the class or the machine."""

    code = "DRA-E101"
    reason = "RETRYABLE"
    help = "The driver expects that a retry succeeds. If it does not, search the plugin's log for this text."


class PermanentError(ClaimError):
    """Raise it in :meth:`Driver.prepare` or :meth:`Driver.bind` for a fault that lasts until claim, class or machine change."""

    code = "DRA-E102"
    reason = "PERMANENT"
    help = "Change what the message names, then delete and recreate the pod."


class DriverFailedError(ClaimError):
    """The driver raised an exception other than :class:`DraError`, or its method could not be called. The text contains the exception."""

    code = "DRA-E103"
    reason = "DRIVER_FAILED"
    help = (
        "A fault in the driver or its hardware. Search the plugin's log for this text. The log also has the traceback, "
        "if the error passed through several functions of the driver or has a cause."
    )


class ClaimNotFoundError(ClaimError):
    code = "DRA-E110"
    reason = "NOT_FOUND"
    help = "The claim was deleted. Pods of a deleted claim cannot start; delete the pod."


class ClaimReplacedError(ClaimError):
    code = "DRA-E111"
    reason = "REPLACED"
    help = "The claim was deleted and created again under the same name. Delete the pod, so that it is scheduled again."


class ClaimNotAllocatedError(ClaimError):
    code = "DRA-E112"
    reason = "NOT_ALLOCATED"
    help = "The scheduler has not allocated the claim, or it was deallocated. Look at the pod's scheduling events."


class WrongNodeError(ClaimError):
    code = "DRA-E113"
    reason = "WRONG_NODE"
    help = "The claim's devices belong to another node. Delete the pod, so that it is scheduled again."


class DeviceHeldError(ClaimError):
    code = "DRA-E114"
    reason = "DEVICE_HELD"
    help = (
        "An exclusive device is still prepared for the named claim. It is freed when that claim's pod has stopped. "
        "If that pod is gone for good, `dra claims` shows the record, and `dra claims forget UID` deletes it."
    )


class OverdrawnError(DeviceHeldError):
    """Too little of a counter, or of a shared device's capacity, is available."""

    code = "DRA-E130"
    reason = "OVERDRAWN"
    help = (
        "Partitions of one physical device, or shares of one device, would together exceed the device. Capacity is freed when "
        "the pods of the named claims have stopped. If such a pod is gone for good, `dra claims` shows the record, and "
        "`dra claims forget UID` deletes it."
    )


class DeviceGoneError(ClaimError):
    code = "DRA-E115"
    reason = "DEVICE_GONE"
    help = "The device left this node after it was allocated. Delete the pod, so that it is scheduled again."


class DeviceUnhealthyError(ClaimError):
    code = "DRA-E116"
    reason = "DEVICE_UNHEALTHY"
    help = "The driver reports the device as unhealthy, and the option UNHEALTHY_POLICY refuses such devices."


class ConfigError(ClaimError):
    """Opaque parameters that the driver's ``Config`` rejects."""

    code = "DRA-E117"
    reason = "INVALID_CONFIG"
    help = "Correct the named field in the DeviceClass or ResourceClaim (spec.devices.config[].opaque.parameters)."


class ApiUnavailableError(ClaimError):
    code = "DRA-E118"
    reason = "API_UNAVAILABLE"
    help = (
        "Before the first prepare of a claim, the plugin reads it from the API server. The kubelet retries; check the API server, and "
        "the plugin's token and permissions."
    )


class StillWorkingError(ClaimError):
    code = "DRA-E119"
    reason = "STILL_WORKING"
    help = "The work continues in the plugin; the kubelet's next call joins it. Nothing to do, unless it never ends."


class ClaimBusyError(ClaimError):
    code = "DRA-E120"
    reason = "CLAIM_BUSY"
    help = "Another operation on this claim is in progress, usually in another instance of the plugin. If it hangs, delete its pod."


class UndoFailedError(ClaimError):
    code = "DRA-E121"
    reason = "UNDO_FAILED"
    help = (
        "The rollback of an earlier prepare or unprepare failed; the plugin retries it. `dra claims` shows why; `dra claims forget UID` "
        'deletes the record and frees its devices, but runs no undo step. See "The driver fails to unprepare" in docs/troubleshooting.md.'
    )


class BadAnswerError(ClaimError):
    code = "DRA-E122"
    reason = "BAD_ANSWER"
    help = "The driver's result breaks a rule (an unknown device, a wrong CDI edit); the message names it."


class StoppingError(ClaimError):
    code = "DRA-E123"
    reason = "STOPPING"
    help = "The plugin is shutting down; the kubelet retries with the next instance."


class HostPathMissingError(ClaimError):
    code = "DRA-E124"
    reason = "HOST_PATH_MISSING"
    help = "The device node, mount source or hook is not on the host. Check the device's kernel driver and udev."


class RecordUnreadableError(ClaimError):
    code = "DRA-E125"
    reason = "RECORD_UNREADABLE"
    help = (
        "The plugin keeps one record unchanged, because its file is damaged or a newer plugin wrote it: then use that version. "
        "If the claim's pod is gone for good, `dra claims forget UID` deletes the record and frees its devices."
    )


class ClaimTakenError(ClaimError):
    code = "DRA-E126"
    reason = "TAKEN_OVER"
    help = "Another instance of the plugin has taken over this claim. The kubelet retries."


class DevicesUnknownError(ClaimError):
    code = "DRA-E127"
    reason = "DEVICES_UNKNOWN"
    help = "devices() of the driver has not succeeded yet, or the device's ResourceSlices cannot be used now. See /readyz and the log."


class HardwareUnknownError(ClaimError):
    """It is not known which hardware is in use: the records were lost, or the node has a new name."""

    code = "DRA-E128"
    reason = "HARDWARE_UNKNOWN"
    help = (
        "recover() fails or hangs, or a damaged record has no copy and the driver no recover(), or claims of the node's former name are "
        "still prepared. See /readyz and the log; the kubelet retries."
    )


class MetadataUpdateError(ClaimError):
    """Device metadata of a claim that is not prepared, or that has no metadata."""

    code = "DRA-E129"
    reason = "METADATA_NOT_UPDATED"
    help = "The claim is not prepared, or has no device metadata; the message says which. The update is dropped."


class HardwareLockedError(ClaimError):
    """The lock of a piece of hardware stayed in use until the wait limit."""

    code = "DRA-E131"
    reason = "HARDWARE_LOCKED"
    help = (
        "The message names the process that holds the lock. The kubelet retries. If that process hangs in the vendor's library, "
        "delete its pod: the kernel then releases the lock."
    )


class SharedStepError(ClaimError):
    """Another claim uses the shared state of a piece of hardware with other arguments."""

    code = "DRA-E132"
    reason = "SHARED_STEP"
    help = (
        "The claim is prepared when the pods of the named claim have stopped. The kubelet retries. "
        "For another card, create the pod again with a claim that selects that card: `dra explain POD` names it and the selector."
    )


class MetadataError(DraError):
    """A device metadata file (KEP-5304) that cannot be used; the message names the file and the fault."""

    code = "DRA-E140"
    reason = "DEVICE_METADATA"
    help = "The driver wrote the file: see its version and its log. A file of a newer Kubernetes needs a newer dra-kubeletplugin."


class QuestionError(DraError):
    """A command asked about an object that does not exist, a cluster without DRA, or a file without objects."""

    code = "DRA-E150"
    reason = "QUESTION"
    help = "The message names the requested object or file, and what exists instead."
