"""The errors that the server returns as Status objects."""

from __future__ import annotations

from collections.abc import Sequence

from dra_kubeletplugin.base.json_types import JSON


class StatusError(Exception):
    """The server rejected a request. Has an HTTP status code, a reason of meta/v1 and a message."""

    def __init__(self, code: int, reason: str, message: str, details: JSON | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.details = code, reason, details or {}


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def no_resource() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message)


def invalid(kind: str, group: str, name: str, causes: Sequence[tuple[str, str, str]]) -> StatusError:
    """Returns an Invalid error.

    Args:
        causes: reason, field and message of each error. The text contains a repeated error only once.
    """
    listed = list(dict.fromkeys(f"{field}: {message}" for _, field, message in causes))
    text = listed[0] if len(listed) == 1 else "[" + ", ".join(listed) + "]"
    details: JSON = {"name": name, "group": group, "kind": kind}
    details["causes"] = [{"reason": r, "message": m, "field": f} for r, f, m in causes]
    qualified = f"{kind}.{group}" if group else kind
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details)
