"""Field errors in the API server's form: reason, path and message."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FieldError:
    """One cause of a rejection. ``reason`` is a Kubernetes cause type such as ``FieldValueInvalid``."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(path: str, detail: str = "") -> FieldError:
    return FieldError("FieldValueRequired", path, "Required value" + (f": {detail}" if detail else ""))


def invalid(path: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", path, f"Invalid value: {show(value)}: {detail}")


def invalids(path: str, value: Any, details: Iterable[str]) -> list[FieldError]:
    return [invalid(path, value, d) for d in details]


def too_long(path: str, limit: int) -> FieldError:
    return FieldError("FieldValueTooLong", path, f"Too long: may not be more than {limit} bytes")


def too_many(path: str, count: int, limit: int) -> FieldError:
    return FieldError("FieldValueTooMany", path, f"Too many: {count}: must have at most {limit} items")


def duplicate(path: str, value: Any) -> FieldError:
    return FieldError("FieldValueDuplicate", path, f"Duplicate value: {show(value)}")


def forbidden(path: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", path, f"Forbidden: {detail}")


def unsupported(path: str, value: Any, allowed: Iterable[str]) -> FieldError:
    listed = ", ".join(f'"{a}"' for a in sorted(allowed))
    return FieldError("FieldValueNotSupported", path, f"Unsupported value: {show(value)}: supported values: {listed}")


def show(value: Any) -> str:
    """Formats a value as the server does."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
