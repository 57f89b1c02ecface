"""The class of an error tells the caller which status the API server returned."""

from __future__ import annotations

import json

import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube.decoding import refusal
from dra_kubeletplugin.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
)
from dra_kubeletplugin.kube.http1 import HttpResponse


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (400, "BadRequest", BadRequestError),
        (401, "Unauthorized", UnauthorizedError),
        (403, "Forbidden", ForbiddenError),
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", AlreadyExistsError),
        (410, "Expired", GoneError),
        (422, "Invalid", InvalidError),
        (429, "TooManyRequests", ApiError),
        (500, "InternalError", ApiError),
    ],
)
@pytest.mark.parametrize("has_body", [True, False])
def test_each_status_has_its_class(status: int, reason: str, expected: type[ApiError], has_body: bool) -> None:
    body = json.dumps({"kind": "Status", "reason": reason, "message": "why"}).encode() if has_body else b""
    error = refusal(HttpResponse(status, {}, body), "GET /x")
    if expected is AlreadyExistsError and not has_body:
        expected = ConflictError
    assert type(error) is expected
    assert (error.status, error.code) == (status, "DRA-E006")
    assert error.unreachable == (status in {429, 500})


def test_the_error_for_an_existing_object_is_a_conflict() -> None:
    with pytest.raises(ConflictError):
        raise AlreadyExistsError("a")
    assert AlreadyExistsError("a").status == 409
