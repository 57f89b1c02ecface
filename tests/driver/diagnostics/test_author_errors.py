"""Whatever form an author's code has: what worked is not refused, and what fails is told in a sentence of his own fault."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

import dra_kubeletplugin
from dra_kubeletplugin import Config, CounterSet, Device, Driver, Pool
from dra_kubeletplugin.devices.health_report_errors import HealthReportErrors
from dra_kubeletplugin.devices.pool_state import PoolState, updated_pool
from dra_kubeletplugin.driver import Health
from dra_kubeletplugin.driver.class_validation import check
from dra_kubeletplugin.driver.diagnostics.author_errors import replacement_message
from dra_kubeletplugin.driver.loading import load_driver
from dra_kubeletplugin.errors import DriverError
from dra_kubeletplugin.testing.health_override import with_health_overrides

DRIVER = """
from dra_kubeletplugin import Driver
class Made(Driver):
    name = "made.example.com"
    def devices(self): return []
    def prepare(self, claim): return []
"""


@pytest.fixture(autouse=True)
def modules_as_before() -> Iterator[None]:
    before, path = dict(sys.modules), list(sys.path)
    yield
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]
    sys.path[:] = path


# --- where a driver is found ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_vendor", "No module named 'no_such_vendor'"),
        ("import os\nos.pathh", "did you mean 'path'"),
        ("int('x')", "ValueError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_what_a_package_above_fails_at_is_reported_and_not_that_there_is_no_such_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "odd_package").mkdir()
    (tmp_path / "odd_package/__init__.py").write_text(text)
    (tmp_path / "odd_package/driver.py").write_text(DRIVER)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DriverError, match=r"importing odd_package\.driver raised") as e:
        load_driver("odd_package.driver:Made")
    assert said in str(e.value)
    assert "no module odd_package" not in str(e.value)


@pytest.mark.parametrize("name", ["CounterConsumption", "plugn", "Inventry"])
def test_a_name_that_is_not_public_is_not_proposed_for_one_that_is_not_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / "odd.py"
    path.write_text(f"from dra_kubeletplugin import {name}")
    with pytest.raises(DriverError, match=f"cannot import name '{name}'") as e:
        load_driver(str(path))
    _, meant, proposed = str(e.value).partition("did you mean '")
    assert not meant or proposed.partition("'")[0] in dra_kubeletplugin.__all__


@pytest.mark.parametrize("target", ["argparse.jso", "argparse.jso:Made", "os.path.jon:Made"])
def test_a_module_that_is_no_package_has_no_modules_to_be_meant(target: str) -> None:
    with pytest.raises(DriverError, match="no module") as e:
        load_driver(target)
    assert "did you mean" not in str(e.value)


def test_a_package_whose_files_are_links_is_named_as_its_author_named_it(tmp_path: Path) -> None:
    """As a ConfigMap is mounted: each file leads into a folder of another name."""
    kept = tmp_path / "mounted" / "..2024_11_22"
    kept.mkdir(parents=True)
    (kept / "__init__.py").touch()
    (kept / "beside.py").write_text("HERE = 1")
    (kept / "driver.py").write_text("from .beside import HERE" + DRIVER)
    for name in ("__init__.py", "beside.py", "driver.py"):
        (tmp_path / "mounted" / name).symlink_to(kept / name)
    assert load_driver(str(tmp_path / "mounted/driver.py")).__module__ == "mounted.driver"
    (tmp_path / "linked").symlink_to("mounted")
    assert load_driver(str(tmp_path / "linked")).__module__ == "linked.driver"


@pytest.mark.parametrize("name", ["gpu-1.0", "gpu.d"])
def test_a_folder_whose_name_no_package_can_have_is_loaded_all_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "driver.py").write_text(DRIVER)
    assert load_driver(str(tmp_path / name)).name == "made.example.com"
    (tmp_path / name / "driver.py").write_text("from . import beside")
    with pytest.raises(DriverError, match=f"rename .*{name}, this is not a valid package name"):
        load_driver(str(tmp_path / name))


@pytest.mark.parametrize("name", ["colorsys", "installed"])
def test_a_package_never_takes_the_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of one that is imported later, too: that would be ours then."""
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
    if name == "installed":  # is the same package, as it was when it was installed
        assert load_driver(str(tmp_path / name)).__module__ == "installed.driver"


def test_a_file_that_is_not_python_s_is_reported(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("a driver")
    with pytest.raises(DriverError, match="is not a Python file"):
        load_driver(str(tmp_path / "README.md"))


# --- names of an author's own --------------------------------------------------------------------


def _made(*bases: type, **written: Any) -> type[Driver]:
    own = {"name": "made.example.com", "devices": lambda self: [], "prepare": lambda self, claim: []}
    return type("Made", (*bases, Driver), {**own, "__module__": __name__, **written})


class _Vendor:
    def healthx(self) -> bool:
        return True


def _with_one_more(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(self: Any, claim: Any) -> Any:
        return method(self, "session", claim)

    return called


class _Callable:
    def __call__(self, *args: object) -> list[object]:
        return []


@pytest.mark.parametrize(
    "driver",
    [
        _made(healthy=lambda self: True),
        _made(recovered=lambda self: 1, started=lambda self: 1, unprepared=lambda self: 1),
        _made(healthz=lambda self: True, devices=lambda self: self.healthz() and []),
        _made(healthz=staticmethod(lambda: True), sick=property(lambda self: self.healthz())),
        _made(configs={"a": 1}, devices=lambda self: list(self.configs)),
        _made(subsystem="vfio", prepare=lambda self, claim: [lambda: self.subsystem]),
        _made(_Vendor),
        _made(prepare=_with_one_more(lambda self, session, claim: [])),
        _made(prepare=_Callable()),
    ],
)
def test_names_that_are_an_author_s_own_are_no_mistakes(driver: type[Driver]) -> None:
    check(driver)


class _Checked(Config):
    model: str = ""

    def check_all(self) -> None: ...
    def checkx(self) -> None: ...
    def used(self) -> None:
        self.checkx()


def test_a_config_s_own_methods_are_no_mistakes() -> None:
    check(_made(config=_Checked))


class _Older(Config):
    API_VERSION = "made.example.com/v1"


class _Newer(Config):
    API_VERSION = "made.example.com/v2"
    OLDER: ClassVar[list[type[Config]]] = [_Older]
    TABLE: ClassVar = {"a": 1}

    @classmethod
    def convert_from(cls, older: Config) -> Self:
        return cls()


def test_what_a_config_declares_as_the_class_s_own_is_no_default_of_a_field() -> None:
    check(_made(config=_Newer))
    with pytest.raises(DriverError, match=r"odd\.sizes = \[1\] would be one object"):
        type(Config)("odd", (Config,), {"__annotations__": {"sizes": list[int]}, "sizes": [1], "TABLE": {"a": 1}})


@pytest.mark.parametrize("written", [{"helth": lambda self: {}}, {"unprepar": lambda self, claim: None}])
def test_what_nobody_names_is_still_reported(written: dict[str, Any]) -> None:
    with pytest.raises(DriverError, match="never called, did you mean"):
        check(_made(**written))


# --- what fails ----------------------------------------------------------------------------------


def test_a_list_that_is_still_to_be_collected_is_reported_with_the_way() -> None:
    async def later() -> AsyncIterator[int]:
        yield 1

    assert "async for" in replacement_message(later(), "Device")


def test_a_vendor_s_line_is_not_the_author_s_where_his_environment_is_within_his_folder(tmp_path: Path) -> None:
    vendor = tmp_path / ".venv/lib/python3/site-packages"
    vendor.mkdir(parents=True)
    (vendor / "odd_vendor.py").write_text("def ask(): return {}['no']")
    own = f"import sys\nsys.path.append({str(vendor)!r})\nimport odd_vendor\nodd_vendor.ask()\n"
    (tmp_path / "driver.py").write_text(own)
    with pytest.raises(DriverError, match=r"driver\.py:4\)"):
        load_driver(str(tmp_path / "driver.py"))


async def test_a_health_of_any_kind_of_method_is_reported_with_what_others_state() -> None:
    async def asked(health: Any) -> Any:
        made = with_health_overrides(_made(health=health), lambda _: {"b": Health(False)})()
        answer: Awaitable[Any] = made.health()  # type: ignore[assignment]
        return await answer

    report = {"a": Health(True)}
    for health in (staticmethod(lambda: report), classmethod(lambda cls: report), lambda self: report):
        assert (await asked(health)).keys() == {"a", "b"}


@pytest.mark.parametrize("raised", ["asyncio.CancelledError", "GeneratorExit", "type('Odd', (BaseException,), {})"])
def test_an_import_that_raises_anything_is_reported(tmp_path: Path, raised: str) -> None:
    (tmp_path / "driver.py").write_text(f"import asyncio\nraise {raised}")
    with pytest.raises(DriverError, match=r"driver\.py:2\)"):
        load_driver(str(tmp_path / "driver.py"))


def test_rooms_of_the_package_are_there_once_it_is_imported() -> None:
    asked = (
        "import dra_kubeletplugin as d; d.errors.PermanentError, d.host.Host, d.cdi.Hook, d.driver.Claim, d.resourceapi"
    )
    subprocess.run([sys.executable, "-c", asked], check=True)


# --- thousands -----------------------------------------------------------------------------------


@pytest.fixture
def sought(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names for which the nearest was looked for: each takes milliseconds among hundreds, and all else waits."""
    import difflib

    found: list[str] = []
    real = difflib.get_close_matches

    def counted(word: str, *args: Any) -> list[str]:
        found.append(word)
        return real(word, *args)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    return found


def test_a_report_of_thousands_of_strangers_is_taken_in_no_time(sought: list[str]) -> None:
    odd, known = HealthReportErrors(), {f"gpu-{i}" for i in range(200)}
    report = {f"gpu-{i}-x" for i in range(1000)}
    odd.log_unknown_names(report, known)
    odd.log_unknown_names(report, known)
    assert odd.notes[-1] == "health() returned 980 more invalid entries"
    assert len(odd.notes) == 21
    assert 0 < len(sought) < 20


def test_a_card_that_has_gone_is_not_taken_for_another_one_that_is_reported_too() -> None:
    odd = HealthReportErrors()
    odd.log_unknown_names({"card-1", "card-2"}, {"card-1"})
    assert odd.notes == ["health() returned card-2, which is not a device of this node: the entry is ignored"]
    odd.log_unknown_names({"card-l"}, {"card-1"})
    assert odd.notes[0].endswith("did you mean 'card-1'?")


def test_thousands_of_devices_that_draw_from_nothing_are_judged_in_no_time(sought: list[str]) -> None:
    devices = [Device(f"d{i}", consumes_counters={f"card-{i}x": {"m": "1"}}) for i in range(500)]
    sets = [CounterSet(f"card-{i}", {"m": "1"}) for i in range(8)]
    state = updated_pool(PoolState("node"), Pool("node", devices, sets), "node", {})
    assert len(state.rejected) == len(devices)
    assert 0 < len(sought) < 20
