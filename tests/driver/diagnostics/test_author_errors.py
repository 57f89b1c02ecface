"""Valid drivers of any form are accepted. An error of the driver's code is one sentence with the author's file and line."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

import dra_kubeletplugin
from dra_devkit.testing.health_override import with_health_overrides
from dra_kubeletplugin import Config, CounterSet, Device, Driver, Pool
from dra_kubeletplugin.devices.health_policy import HealthPolicy
from dra_kubeletplugin.devices.health_report import unknown_names
from dra_kubeletplugin.devices.pool_state import PoolState, rendered_pool, updated_pool
from dra_kubeletplugin.driver import Health
from dra_kubeletplugin.driver.class_validation import check
from dra_kubeletplugin.driver.loading import load_driver
from dra_kubeletplugin.errors import DriverError

DRIVER = """
from dra_kubeletplugin import Driver
class Made(Driver):
    name = "made.example.com"
    def devices(self): return []
    def prepare(self, claim): return []
"""


@pytest.fixture(autouse=True)
def restore_modules() -> Iterator[None]:
    before, path = dict(sys.modules), list(sys.path)
    yield
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]
    sys.path[:] = path


# --- loading a driver ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_vendor", "No module named 'no_such_vendor'"),
        ("import os\nos.pathh", "did you mean 'path'"),
        ("int('x')", "ValueError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_an_error_in_the_parent_package_is_reported_and_not_a_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "example_package").mkdir()
    (tmp_path / "example_package/__init__.py").write_text(text)
    (tmp_path / "example_package/driver.py").write_text(DRIVER)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DriverError, match=r"importing example_package\.driver raised") as e:
        load_driver("example_package.driver:Made")
    assert message in str(e.value)
    assert "no module example_package" not in str(e.value)


@pytest.mark.parametrize("name", ["CounterConsumption", "plugn", "Inventry"])
def test_a_private_name_is_not_proposed_for_a_missing_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "driver.py"
    path.write_text(f"from dra_kubeletplugin import {name}")
    with pytest.raises(DriverError, match=f"cannot import name '{name}'") as e:
        load_driver(str(path))
    _, suggestion, proposed = str(e.value).partition("did you mean '")
    assert not suggestion or proposed.partition("'")[0] in dra_kubeletplugin.__all__


@pytest.mark.parametrize("target", ["argparse.jso", "argparse.jso:Made", "os.path.jon:Made"])
def test_no_submodule_is_proposed_for_a_module_that_is_no_package(target: str) -> None:
    with pytest.raises(DriverError, match="no module") as e:
        load_driver(target)
    assert "did you mean" not in str(e.value)


def test_a_package_whose_files_are_links_has_the_name_of_its_folder(tmp_path: Path) -> None:
    """Kubernetes mounts a ConfigMap in this form: each file is a link into a folder with another name."""
    data_folder = tmp_path / "mounted" / "..2024_11_22"
    data_folder.mkdir(parents=True)
    (data_folder / "__init__.py").touch()
    (data_folder / "sibling.py").write_text("HERE = 1")
    (data_folder / "driver.py").write_text("from .sibling import HERE" + DRIVER)
    for name in ("__init__.py", "sibling.py", "driver.py"):
        (tmp_path / "mounted" / name).symlink_to(data_folder / name)
    assert load_driver(str(tmp_path / "mounted/driver.py")).__module__ == "mounted.driver"
    (tmp_path / "linked").symlink_to("mounted")
    assert load_driver(str(tmp_path / "linked")).__module__ == "linked.driver"


@pytest.mark.parametrize("name", ["gpu-1.0", "gpu.d"])
def test_a_folder_with_an_invalid_package_name_is_loaded_without_relative_imports(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "driver.py").write_text(DRIVER)
    assert load_driver(str(tmp_path / name)).name == "made.example.com"
    (tmp_path / name / "driver.py").write_text("from . import sibling")
    with pytest.raises(DriverError, match=f"rename .*{name}, this is not a valid package name"):
        load_driver(str(tmp_path / name))


@pytest.mark.parametrize("name", ["colorsys", "installed"])
def test_a_package_never_replaces_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The rule also applies to an installed package that is imported later: that import would otherwise return the driver's package."""
    (tmp_path / "site/installed").mkdir(parents=True)
    (tmp_path / "site/installed/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "driver.py").write_text(DRIVER)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(DriverError, match=f"another module {name}"):
        load_driver(str(tmp_path / name))
    assert name not in sys.modules
    (tmp_path / "site/installed/driver.py").write_text("raise ValueError('the copy')")
    if name == "installed":  # The installed package now has the same modules, so it is the same package.
        assert load_driver(str(tmp_path / name)).__module__ == "installed.driver"


def test_a_file_that_is_no_python_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("a driver")
    with pytest.raises(DriverError, match="is not a Python file"):
        load_driver(str(tmp_path / "README.md"))


# --- the author's own names ---------------------------------------------------------------------


def _driver_class(*bases: type, **attributes: Any) -> type[Driver]:
    required = {"name": "made.example.com", "devices": lambda self: [], "prepare": lambda self, claim: []}
    return type("Made", (*bases, Driver), {**required, "__module__": __name__, **attributes})


class _Vendor:
    def healthx(self) -> bool:
        return True


def with_extra_argument(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(self: Any, claim: Any) -> Any:
        return method(self, "session", claim)

    return called


@pytest.mark.parametrize(
    "driver",
    [
        _driver_class(healthy=lambda self: True),
        _driver_class(recovered=lambda self: 1, started=lambda self: 1, unprepared=lambda self: 1),
        _driver_class(_Vendor),
        _driver_class(undo_reset=None),  # removes the step of a base class
        _driver_class(prepare=with_extra_argument(lambda self, session, claim: [])),
    ],
)
def test_the_author_s_own_method_names_are_not_reported(driver: type[Driver]) -> None:
    check(driver)


class _Checked(Config):
    model: str = ""

    def check_all(self) -> None: ...
    def checked(self) -> None: ...
    def checks(self, other: str) -> None: ...


def test_own_methods_of_a_config_are_not_reported() -> None:
    check(_driver_class(config=_Checked))


class _Older(Config):
    API_VERSION = "made.example.com/v1"


class _Newer(Config):
    API_VERSION = "made.example.com/v2"
    OLDER: ClassVar[list[type[Config]]] = [_Older]
    TABLE: ClassVar = {"a": 1}

    @classmethod
    def convert_from(cls, older: Config) -> Self:
        return cls()


def test_class_variables_of_a_config_are_not_defaults_of_fields() -> None:
    check(_driver_class(config=_Newer))


# --- failures ------------------------------------------------------------------------------------


def test_the_reported_line_is_the_author_s_although_the_virtual_environment_is_in_the_same_folder(
    tmp_path: Path,
) -> None:
    vendor = tmp_path / ".venv/lib/python3/site-packages"
    vendor.mkdir(parents=True)
    (vendor / "vendor_sdk.py").write_text("def query(): return {}['no']")
    own = f"import sys\nsys.path.append({str(vendor)!r})\nimport vendor_sdk\nvendor_sdk.query()\n"
    (tmp_path / "driver.py").write_text(own)
    with pytest.raises(DriverError, match=r"driver\.py:4\)"):
        load_driver(str(tmp_path / "driver.py"))


async def test_overrides_are_added_to_the_report_of_a_plain_and_an_async_health_method() -> None:
    async def health_of(health: Any) -> Any:
        driver = with_health_overrides(_driver_class(health=health), lambda _: {"b": Health(False)})()
        result: Awaitable[Any] = driver.health()  # type: ignore[assignment]
        return await result

    async def async_health(self: Driver) -> Any:
        return {"a": Health(True)}

    for health in (lambda self: {"a": Health(True)}, async_health):
        assert (await health_of(health)).keys() == {"a", "b"}


@pytest.mark.parametrize("raised", ["asyncio.CancelledError", "GeneratorExit", "type('Custom', (BaseException,), {})"])
def test_an_import_that_raises_anything_is_reported(tmp_path: Path, raised: str) -> None:
    (tmp_path / "driver.py").write_text(f"import asyncio\nraise {raised}")
    with pytest.raises(DriverError, match=r"driver\.py:2\)"):
        load_driver(str(tmp_path / "driver.py"))


def test_subpackages_are_attributes_of_the_imported_package() -> None:
    program = (
        "import dra_kubeletplugin as d; d.errors.PermanentError, d.host.Host, d.cdi.Hook, d.driver.Claim, d.resourceapi"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- many entries --------------------------------------------------------------------------------


def test_a_report_with_a_thousand_unknown_devices_proposes_few_names() -> None:
    """A search for a similar name takes milliseconds and blocks the event loop."""
    errors = unknown_names({f"gpu-{i}-x" for i in range(1000)}, {f"gpu-{i}" for i in range(200)})
    assert len(errors) == 1000
    assert 0 < sum("did you mean" in error for error in errors) < 20


def test_no_name_is_proposed_for_a_removed_device_if_the_report_contains_the_similar_name() -> None:
    assert unknown_names({"card-1", "card-2"}, {"card-1"}) == [
        "health() returned card-2, which is not a device of this node: the entry is ignored"
    ]
    (error,) = unknown_names({"card-l"}, {"card-1"})
    assert error.endswith("did you mean 'card-1'?")


def test_few_names_are_proposed_for_hundreds_of_devices_with_unknown_counter_sets() -> None:
    devices = [Device(f"d{i}", consumes_counters={f"card-{i}x": {"m": "1"}}) for i in range(500)]
    sets = [CounterSet(f"card-{i}", {"m": "1"}) for i in range(8)]
    state = updated_pool(PoolState("node"), Pool("node", devices, sets), "node", {})
    rejected = rendered_pool(state, HealthPolicy(), frozenset(), "node").rejected
    assert len(rejected) == len(devices)
    assert 0 < sum("did you mean" in reason for reason in rejected.values()) < 20
