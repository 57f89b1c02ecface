"""The types of JSON objects, for annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = dict[str, Any]
"""A JSON object."""
ReadOnlyJSON = Mapping[str, Any]
"""A JSON object that its reader does not change."""
JSONValue = Any
"""Any value of JSON: an object, a list, a string, a number, a boolean or null."""
