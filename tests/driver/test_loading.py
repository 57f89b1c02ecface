"""A driver is validated before it starts. Errors name the class, the attribute and the rule, and contain no traceback."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest

from dra_kubeletplugin import Claim, Config, Device, Driver, PermanentError, PreparedDevice, Quantity, Role
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.driver import attach, load_driver, make
from dra_kubeletplugin.driver.contract import DriverProcess
from dra_kubeletplugin.errors import DriverError
from dra_kubeletplugin.host import Host


class ValidDriver(Driver):
    name = "x.example.com"

    def devices(self) -> list[Device]:
        return []

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return []


def driver_class(**attributes: Any) -> type[Driver]:
    return type("D", (ValidDriver,), attributes)


class Unsupported:
    pass


class WrongDefault(Config):
    depth: int = "many"  # type: ignore[assignment]


class WrongChoice(Config):
    mode: Literal["Fast", "Safe"] = "fast"  # type: ignore[assignment]


class NumberedVersion(Config):
    API_VERSION = 3  # type: ignore[assignment]


class InvalidOlder(Config):
    OLDER = (int,)  # type: ignore[assignment]


class CheckOfClaim(Config):
    def check(self, claim: object) -> None: ...  # type: ignore[override]


class UnsupportedField(Config):
    unsupported: Unsupported | None = None


class Nested(Config):
    unsupported: list[Unsupported] = msgspec.field(default_factory=list)


class Outer(Config):
    again: Outer | None = None
    nested: dict[str, Nested] | None = None


class AmbiguousUnion(Config):
    either: Nested | Outer | None = None


class ValidConfig(Config):
    LIMIT: ClassVar[int] = 3
    maximum: ClassVar[int] = 3
    limit: Quantity = Quantity("1Gi")
    unset: Annotated[int, msgspec.Meta(ge=1)] = 0  # A default that a claim cannot set is allowed.
    tags: dict[str, list[str]] = msgspec.field(default_factory=dict)


def raising(error: BaseException) -> Any:
    def init(self: Any) -> None:
        raise error

    return init


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (ValidDriver(), "is not a subclass of Driver: pass the class"),
        ("driver.py", "'driver.py' is not a subclass of Driver"),
        (type("D", (Driver,), {"prepare": ValidDriver.prepare}), "D has no `devices` method"),
        (type("D", (Driver,), {"devices": ValidDriver.devices}), "D has no `prepare` method"),
        (driver_class(prepare=lambda self: []), r"D.prepare\(self\) cannot be called as prepare\(claim\): too many"),
        (driver_class(unprepare=lambda self, claim, force: None), r"unprepare\(claim\): missing a required argument: 'force'"),
        (driver_class(devices=lambda self, host: []), r"D.devices\(self, host\) cannot be called as devices\(\): missing"),
        (driver_class(pools=staticmethod(lambda: [])), r"D.pools is staticmethod, not a method: write `def pools\(self\)`"),
        (driver_class(name=3), "D.name is 3: set it to text"),
        (driver_class(devices=[]), r"D.devices is list, not a method: write `def devices\(self\)`"),
        (driver_class(config=[ValidConfig, int]), "D.config is <class 'int'>: set it to a subclass of Config"),
        (driver_class(config=ValidConfig()), "D.config is ValidConfig"),
        (driver_class(config="Acme"), r"D.config is 'Acme': set it to a subclass of Config"),
        (driver_class(config=NumberedVersion), "NumberedVersion.API_VERSION is 3: set it to text"),
        (driver_class(config=InvalidOlder), "InvalidOlder.OLDER is <class 'int'>: set it to a subclass"),
        (driver_class(config=CheckOfClaim), r"CheckOfClaim.check\(self, claim.* cannot be called as check\(\)"),
        (driver_class(config=WrongDefault), "WrongDefault.depth = 'many' does not match the field's type: Expected `int`, got `str`"),
        (driver_class(config=WrongChoice), "WrongChoice.mode = 'fast' does not match the field's type"),
        (driver_class(config=UnsupportedField), "UnsupportedField, the config of D, cannot be read from JSON: unsupported is of type Unsupported"),
        (driver_class(config=Outer), "Outer, the config of D, cannot be read from JSON: unsupported is of type Unsupported"),
        (driver_class(config=AmbiguousUnion), "AmbiguousUnion, the config of D, cannot be read from JSON: If a type union contains"),
        (driver_class(metadata="false"), r"\.metadata is 'false': set it to True or False"),
        (driver_class(privileged="false"), r"\.privileged is 'false': set it to True or False"),
        (driver_class(priviledged=True), r"\.priviledged is never used, did you mean `privileged`\?"),
        (driver_class(__init__=lambda self, sdk: None), r"D\(\) raised TypeError.*'sdk': the framework creates the driver without arguments"),
        (driver_class(__init__=lambda self: self.host.pci()), r"self.host is set after __init__, use it in start\(\) or later"),
        (driver_class(__init__=raising(OSError("no SDK"))), r"D\(\) raised OSError: no SDK \(.*py:\d+\): move code that may fail to start"),
        (driver_class(__init__=raising(SystemExit(0))), r"D\(\) raised SystemExit: 0"),
    ],
)  # fmt: skip
def test_an_invalid_class_is_rejected_before_the_driver_starts(cls: Any, message: str) -> None:
    with pytest.raises(DriverError, match=message):
        make(cls)


def test_an_error_that_init_raises_on_purpose_is_unchanged() -> None:
    with pytest.raises(PermanentError, match="no licence"):
        make(driver_class(__init__=raising(PermanentError("no licence"))))


@pytest.mark.parametrize(
    "cls",
    [
        driver_class(config=ValidConfig),
        driver_class(config=(ValidConfig,)),
        driver_class(prepare=lambda self, *args, **kwargs: []),
        driver_class(prepare=lambda self, claim, retries=3: []),
        type("D", (Driver,), {"pools": lambda self: [], "prepare": ValidDriver.prepare}),
    ],
)
def test_a_valid_class_is_accepted(cls: type[Driver]) -> None:
    assert isinstance(make(cls), cls)


def test_a_controller_needs_no_prepare() -> None:
    make(type("D", (Driver,), {"pools": lambda self: []}), Role.CONTROLLER)


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\ndef f():\n    return 1 / 0\n\nf()\n", r"ZeroDivisionError: division by zero \(.*driver.py:4\)"),
        ("raise SystemExit(0)\n", r"SystemExit: 0 \(.*driver.py:1\)"),
        ("import other\n", r"ValueError: wrong \(.*other.py:1\)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_reported_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "driver.py").write_text(text)
    (tmp_path / "other.py").write_text("raise ValueError('wrong')\n")
    with pytest.raises(DriverError, match=f"importing {re.escape(str(tmp_path))}/driver.py raised .*{message}"):
        load_driver(str(tmp_path / "driver.py"))


def test_a_module_whose_own_import_fails_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_driver_x.py").write_text("import nosuch_sdk\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DriverError, match=r"importing acme_driver_x raised .*'nosuch_sdk' \(.*acme_driver_x.py:1\)"):
        load_driver("acme_driver_x:D")
    for missing in ("acme_driver_y:D", "acme_driver_x.sub:D", "/nosuch", ".:D", ""):
        with pytest.raises(DriverError):
            load_driver(missing)


# --- packages -----------------------------------------------------------------------------------

CLASS = """
from dra_kubeletplugin import Driver
from {package} import parts
from .parts import NAME

class {name}(Driver):
    name = NAME

    def devices(self):
        return parts.DEVICES

    def prepare(self, claim):
        return []
"""


def package(folder: Path, name: str, *classes: str) -> Path:
    """Creates a package like `dra new`, and does not install it."""
    source = folder / "src" / name
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    (source / "parts.py").write_text("NAME = 'x.example.com'\nDEVICES = []\n")
    text = "".join(CLASS.format(package=name, name=c) for c in classes or ("D",))
    (source / "driver.py").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("acme_a", ""),
        ("acme_b", ":D"),
        ("acme_c", "/src/acme_c"),
        ("acme_d", "/src/acme_d/driver.py"),
        ("acme_e", "/src/acme_e/driver.py:D"),
    ],
)
def test_a_package_is_found_by_its_folder_or_file_and_can_import_its_modules(
    name: str, below: str, tmp_path: Path
) -> None:
    folder = package(tmp_path / "acme-driver", name)
    cls = load_driver(f"{folder}{below}")
    assert (cls.__name__, cls.__module__) == ("D", f"{name}.driver")
    assert make(cls).devices() == []
    assert load_driver(str(folder)) is cls, "each path loads the same class"
    assert str(folder / "src") not in sys.path


def test_the_current_folder_can_be_the_folder_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package(tmp_path / "x", "acme_here"))
    assert load_driver(".").__module__ == "acme_here.driver"
    assert load_driver("src/acme_here/driver.py").__module__ == "acme_here.driver"


def test_a_module_in_a_package_is_named_with_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package(tmp_path, "acme_dotted", "D", "E") / "src"))
    assert load_driver("acme_dotted.driver:E").__name__ == "E"
    with pytest.raises(
        DriverError, match=r"has 2 subclasses of Driver: select one with acme_dotted.driver:D or acme_dotted.driver:E"
    ):
        load_driver("acme_dotted.driver")


def test_a_folder_with_no_driver_or_several_drivers_is_reported_with_its_content(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=f"{tmp_path} has neither src/PACKAGE/driver.py nor driver.py"):
        load_driver(str(tmp_path))
    package(package(tmp_path, "acme_one"), "acme_two")
    with pytest.raises(DriverError, match=r"has 2 drivers: select one of .*acme_one/driver.py, .*acme_two/driver.py"):
        load_driver(str(tmp_path))
    package(tmp_path / "two", "acme_three", "D", "E")
    with pytest.raises(DriverError, match=r"2 subclasses of Driver: select one with .*/two:D or .*/two:E"):
        load_driver(str(tmp_path / "two"))


@pytest.mark.parametrize("name", ["json", "dra_kubeletplugin", "sys"])
def test_a_package_with_the_name_of_an_imported_module_is_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=f"Python has already imported another module {name} .*: rename this package"):
        load_driver(str(package(tmp_path, name)))


def test_a_second_package_with_the_same_name_is_rejected(tmp_path: Path) -> None:
    load_driver(str(package(tmp_path / "one", "acme_same")))
    with pytest.raises(DriverError, match=r"another module acme_same .*one/src/acme_same/__init__.py"):
        load_driver(str(package(tmp_path / "two", "acme_same")))


def test_a_failing_import_in_a_package_is_reported_with_the_requested_file_and_the_line(tmp_path: Path) -> None:
    folder = package(tmp_path, "acme_failing")
    (folder / "src/acme_failing/parts.py").write_text("import nosuch_sdk\n")
    with pytest.raises(DriverError, match=r"importing .*acme_failing/driver.py raised .*nosuch_sdk.*parts.py:1"):
        load_driver(str(folder))
    (folder / "src/acme_failing/parts.py").write_text("NAME, DEVICES = 'x.example.com', []  # repaired\n")
    assert load_driver(str(folder)).name == "x.example.com"


def test_a_driver_with_metadata_files_needs_a_name_that_is_a_valid_cdi_vendor() -> None:
    """Otherwise the container runtime would reject the CDI vendor when a container starts."""
    with pytest.raises(DriverError, match=r"metadata needs a name that begins with a letter, not '0x\.example\.com'"):
        make(driver_class(name="0x.example.com", metadata=True))
    make(driver_class(name="0x.example.com"))
    make(driver_class(metadata=True))


def test_a_driver_may_keep_a_process_of_its_own_in_an_attribute() -> None:
    driver, rescans = ValidDriver(), list[str]()
    attach(driver, Host(), Settings(), Role.NODE, DriverProcess(lambda: rescans.append("rescan")))
    driver._process = "the vendor's daemon"  # type: ignore[attr-defined]
    driver.rescan()
    assert rescans == ["rescan"]
