"""The errors that the server returns as Status objects."""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError


class StatusError(Exception):
    """The server rejected a request. Has an HTTP status code, a reason of meta/v1 and a message."""

    def __init__(self, code: int, reason: str, message: str, details: JSON | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.details = code, reason, details or {}


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def no_resource(missing: str = "") -> StatusError:
    """Returns the error for a path that is not served. ``missing`` is a resource that Kubernetes has and the local cluster has not."""
    more = f": the local cluster does not have {missing}" if missing else ""
    return StatusError(404, "NotFound", f"the server could not find the requested resource{more}")


def not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message)


def unknown_object(plural: str, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{plural} "{name}" not found', {"name": name, "kind": plural})


def invalid_object(kind: str, group: str, name: str, *faults: FieldError) -> StatusError:
    """Returns the error with all faults of an object. The text contains a repeated fault only once."""
    listed = list(dict.fromkeys(map(str, faults)))
    text = listed[0] if len(listed) == 1 else "[" + ", ".join(listed) + "]"
    details: JSON = {"name": name, "group": group, "kind": kind}
    details["causes"] = [{"reason": f.reason, "message": f.message, "field": f.field} for f in faults]
    qualified = f"{kind}.{group}" if group else kind
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details)
