"""Error classes of the API client: one for each status that callers distinguish, named as in client-go's ``apierrors``.

All are subclasses of :class:`ApiError`, so ``except ApiError`` also catches failures of the network and of the server.
"""

from __future__ import annotations

from typing import Any

from ..errors import ApiError


class BadRequestError(ApiError):
    """The API server cannot decode the request, or a field has a wrong type."""

    status = 400


class UnauthorizedError(ApiError):
    """The API server does not accept the credentials."""

    status = 401


class ForbiddenError(ApiError):
    """The account lacks a permission, or admission rejects the object."""

    status = 403


class NotFoundError(ApiError):
    """The object does not exist, or the server does not serve its resource."""

    status = 404


class ConflictError(ApiError):
    """The object changed since it was read, or its UID is not the UID in the request: it was deleted and created again."""

    status = 409


class AlreadyExistsError(ConflictError):
    """An object with this name exists already."""


class GoneError(ApiError):
    """The resource version or the continue token is too old: list again."""

    status = 410


class InvalidError(ApiError):
    """The object breaks a rule of its type."""

    status = 422


CLASSES: tuple[type[ApiError], ...] = (
    BadRequestError,
    UnauthorizedError,
    ForbiddenError,
    NotFoundError,
    ConflictError,
    AlreadyExistsError,
    GoneError,
    InvalidError,
)
_BY_STATUS = {cls.status: cls for cls in CLASSES if cls is not AlreadyExistsError}


def api_error(message: str, status: int, details: dict[str, Any] | None = None) -> ApiError:
    """Returns an error of the class for ``status``; an :class:`ApiError` if ``status`` has no class.

    Args:
        details: the Status object of the response.
    """
    found = _BY_STATUS.get(status, ApiError)
    if found is ConflictError and (details or {}).get("reason") == "AlreadyExists":
        found = AlreadyExistsError
    error = found(message, details=details)
    error.status = status
    return error
