"""Names and forms that a driver's class may have, and names that are refused because they are nearly the framework's."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from dra_kubeletplugin import Config, Driver
from dra_kubeletplugin.driver.class_validation import check
from dra_kubeletplugin.errors import DriverError


class PlainDriver(Driver):
    name = "gpu.example.com"

    def devices(self) -> list[Any]:
        return []

    def prepare(self, claim: Any) -> list[Any]:
        return []


def test_the_class_shows_only_what_authors_use() -> None:
    """A completion in an editor lists these names."""
    called = "bind checks devices health pools prepare recover start stop unbind unprepare"
    offered = "hardware_lock metrics rescan update_metadata"
    data = "config gates_off metadata name privileged processes role subsystems unhealthy_taint"
    names = {name for name in dir(Driver) if not name.startswith("_")}
    assert names == {*called.split(), *offered.split(), *data.split()}


@pytest.mark.parametrize(
    "name", ["state", "restart", "is_healthy", "unhealthy", "heal", "smart", "cover", "healthy", "stopped", "starting"]
)
def test_a_method_with_an_everyday_name_is_the_authors_own(name: str) -> None:
    check(type("Named", (PlainDriver,), {name: lambda self: None}))


@pytest.mark.parametrize("name", ["prepared", "rebind", "bound"])
def test_a_method_of_a_claim_with_an_everyday_name_is_the_authors_own(name: str) -> None:
    check(type("Named", (PlainDriver,), {name: lambda self, claim: None}))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("strat", "start"), ("chekcs", "checks"), ("recvoer", "recover"), ("healt_h", "health")],
)
def test_a_misspelt_method_is_refused_with_the_name_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(DriverError, match=rf"{name}\(\) is never called, did you mean `{meant}`"):
        check(type("Misspelt", (PlainDriver,), {name: lambda self: None}))


@pytest.mark.parametrize("value", [("pci", ""), (1,), [("pci", "net")]])
def test_a_subsystem_without_a_name_is_refused(value: object) -> None:
    with pytest.raises(DriverError, match=r"Named.subsystems is .*: each must be the name of a subsystem"):
        check(type("Named", (PlainDriver,), {"subsystems": value}))


@pytest.mark.parametrize(
    ("value", "kind"), [(None, "NoneType"), (functools.cache(len), "_lru_cache_wrapper"), (property(len), "property")]
)
def test_a_check_of_parameters_that_is_no_method_is_refused(value: object, kind: str) -> None:
    config = type("Params", (Config,), {"check": value})
    with pytest.raises(DriverError, match=rf"Params.check is {kind}, not a method: define it with `def`"):
        check(type("Wrong", (PlainDriver,), {"config": config}))
