"""Opaque parameters of one request or of one entry, read by a fresh reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_kubeletplugin import Config
from dra_kubeletplugin.driver.config.parameters import Parameters, Resolved


def resolve(entries: Sequence[Mapping[str, Any]], kinds: Sequence[type[Config]], driver: str, request: str) -> Resolved:
    """Returns the configuration of one request and its source."""
    return Parameters(kinds, driver).resolve(entries, request)


def validate(parameters: object, kinds: Sequence[type[Config]], driver: str, where: str) -> None:
    Parameters(kinds, driver).validate(parameters, where)


def decode(parameters: object, kinds: Sequence[type[Config]], driver: str) -> Config | None:
    """Returns the typed parameters of one entry."""
    entry = {"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}}
    return Parameters(kinds, driver).resolve([entry], "r")[0]
