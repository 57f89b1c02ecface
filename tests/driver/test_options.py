"""A driver declares options in its class. Flags, environment variables and objects set them, and errors name the wrong option."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from dra_kubeletplugin import Claim, Device, Driver, PreparedDevice, cli
from dra_kubeletplugin.base.settings import ControllerSettings
from dra_kubeletplugin.cli.shell.parsing import Parser
from dra_kubeletplugin.driver import as_flags, check, declared, make, read_options
from dra_kubeletplugin.driver.options import COMMAND_FLAGS
from dra_kubeletplugin.errors import DriverError, SettingsError


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


@dataclass(frozen=True)
class RackOptions:
    LIMIT: ClassVar[int] = 9
    shelves: Annotated[int, "how many shelves, 100% of them"] = 4
    address: str = ""
    scale: Annotated[float, "of the measurement"] = 1.5
    spare: bool = False
    watched: Annotated[bool, "monitored continuously"] = True
    folder: Path = Path("/run/rack")
    socket: Annotated[Path | None, "of the daemon"] = None
    speed: Speed = Speed.SLOW
    mode: Literal["Fast", "Safe"] = "Fast"
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.shelves > self.LIMIT:
            raise ValueError(f"shelves is {self.shelves}: give {self.LIMIT} at most")


class Rack(Driver):
    """Shelves in a rack."""

    name = "rack.example.com"
    options = RackOptions()

    def __init__(self) -> None:
        self.initial_shelves = self.options.shelves

    def devices(self) -> list[Device]:
        return [Device(f"shelf-{i}") for i in range(self.options.shelves)]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return []


class Plain(Driver):
    name = "plain.example.com"

    def devices(self) -> list[Device]:
        return []

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return []


OPTION_TEXTS: list[tuple[str, str, object]] = [
    ("shelves", "7", 7),
    ("shelves", "-0x4", -4),
    ("address", "[::1]:9", "[::1]:9"),
    ("scale", "2", 2.0),
    ("spare", "yes", True),
    ("watched", "0", False),
    ("folder", "here", Path("here")),
    ("socket", "/run/s", Path("/run/s")),
    ("speed", "fast", Speed.FAST),
    ("mode", "Safe", "Safe"),
    ("only", "a, b,", ("a", "b")),
]


@pytest.mark.parametrize(("name", "text", "value"), OPTION_TEXTS)
def test_a_flag_overrides_the_variable_and_a_variable_overrides_the_default(
    name: str, text: str, value: object
) -> None:
    default = getattr(RackOptions(), name)
    assert getattr(read_options(Rack, {}, {}), name) == default
    assert getattr(read_options(Rack, {}, {name.upper(): ""}), name) == default
    assert getattr(read_options(Rack, {}, {name.upper(): text}), name) == value
    assert getattr(read_options(Rack, {name: text}, {name.upper(): "?"}), name) == value
    assert getattr(read_options(Rack, {name: value}, {name.upper(): "?"}), name) == value


@pytest.mark.parametrize(
    "options",
    [
        RackOptions(),
        RackOptions(3, "a=b c", -0.25, True, False, Path("/x y"), Path("-"), Speed.FAST, "Safe", ("a", "-b")),
    ],
)
def test_options_as_an_object_are_equal_to_options_as_flags(options: RackOptions) -> None:
    """Flags carry the options to the driver's process in tests and in `dra dev`."""
    args = argparse.Namespace(**vars(parsed(as_flags(Rack, options))))
    assert read_options(Rack, own_options(args), {"SHELVES": "8", "SPARE": "1"}) == options


def parsed(flags: list[str]) -> argparse.Namespace:
    from dra_kubeletplugin.cli.shell.driver_options import add_own_options

    parser = Parser()
    add_own_options(parser, [Rack])
    args: argparse.Namespace = parser.parse_args(flags)
    return args


def own_options(args: argparse.Namespace) -> dict[str, Any]:
    from dra_kubeletplugin.cli.shell.driver_options import given_own

    return given_own(args, Rack)


def test_an_item_that_flags_cannot_express_is_reported() -> None:
    with pytest.raises(SettingsError, match=r"options.only \('a,b',\): items with commas"):
        as_flags(Rack, RackOptions(only=("a,b",)))


def test_an_options_object_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELVES", "8")
    assert make(Rack, options=RackOptions()).devices() == make(Rack, options={"shelves": 4}).devices()
    assert len(make(Rack).devices()) == 8  # type: ignore[arg-type]


def test_options_are_set_before_init_and_differ_between_driver_instances() -> None:
    drivers = [make(Rack, options={"shelves": n}) for n in (2, 3)]
    assert [(d.initial_shelves, d.options.shelves) for d in drivers] == [(2, 2), (3, 3)]  # type: ignore[attr-defined]
    assert Rack.options == RackOptions()


def test_a_driver_that_its_own_class_creates_has_the_defaults() -> None:
    assert Rack().initial_shelves == 4


def test_a_subclass_may_have_other_defaults() -> None:
    tall = type("Tall", (Rack,), {"options": RackOptions(shelves=9)})
    assert make(tall, options={"spare": True}).options == RackOptions(shelves=9, spare=True)  # type: ignore[attr-defined]


def test_a_driver_without_options_may_set_an_attribute_named_options() -> None:
    class DriverWithAttribute(Plain):
        def __init__(self) -> None:
            self.options = 3

    assert make(DriverWithAttribute).options == 3  # type: ignore[attr-defined]


WRONG: list[tuple[dict[str, object], str]] = [
    ({"shelves": "four"}, "--shelves 'four' is not a whole number such as 4 or 0x10ee"),
    ({"shelves": 2.5}, "options.shelves 2.5 is not a whole number"),
    ({"shelves": True}, "options.shelves True is not a whole number"),
    ({"shelves": 12}, "the options of Rack: shelves is 12: give 9 at most"),
    ({"scale": "inf"}, "--scale 'inf' is not a number such as 2.5"),
    ({"spare": "2"}, "--spare '2' is neither 1 nor 0"),
    ({"folder": ""}, "--folder '' is not a path such as /run/npu"),
    ({"speed": "fats"}, "--speed 'fats' is not one of slow, fast, did you mean 'fast'?"),
    ({"mode": "fast"}, "--mode 'fast' is not one of Fast, Safe, did you mean 'Fast'?"),
    ({"only": ["a"]}, "options.only ['a'] is not a tuple of strings"),
    ({"address": "\udcff"}, "is not valid UTF-8"),
    ({"shelfs": 3}, "options: Rack has no option 'shelfs', did you mean 'shelves'?"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_an_invalid_option_is_reported(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as e:
        make(Rack, options=options)
    assert message in str(e.value)


def test_all_invalid_options_are_reported_together() -> None:
    with pytest.raises(SettingsError) as e:
        read_options(Rack, {"shelfs": "1", "scale": "x", "mode": 3}, {"SPARE": "maybe"})
    assert [fault.split(" is ")[0] for fault in e.value.faults] == [
        "options: Rack has no option 'shelfs', did you mean 'shelves'?",
        "--scale 'x'",
        "SPARE 'maybe'",
        "options.mode 3",
    ]


def test_options_of_another_type_or_for_a_driver_without_options_are_rejected() -> None:
    with pytest.raises(SettingsError, match=r"options 3: pass RackOptions\(...\), or a mapping of names to values"):
        make(Rack, options=3)
    with pytest.raises(SettingsError, match="Plain declares no options"):
        make(Plain, options=RackOptions())
    with pytest.raises(SettingsError, match="options: Plain has no option 'shelves': it declares no options"):
        make(Plain, options={"shelves": 3})


def options_class(hint: Any, default: Any, name: str = "size") -> Any:
    return dataclasses.make_dataclass("Opts", [(name, hint, default)], frozen=True)()


@dataclass(frozen=True)
class Untyped:
    size: int = 3
    depth = 4


@dataclass
class Mutable:
    size: int = 3


@dataclass(frozen=True)
class Misspelled:
    where: Pth = Path("/x")  # type: ignore[name-defined] # noqa: F821


@dataclass(frozen=True)
class Conflicting:
    old: bool = True
    no_old: bool = False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RackOptions, "D.options is the class RackOptions: use an instance, RackOptions()"),
        ({"size": 3}, "D.options is {'size': 3}: set it to an instance of a frozen dataclass"),
        (lambda self: 3, "set it to an instance of a frozen dataclass"),
        (Mutable(), "Mutable can be changed while the driver runs: write @dataclass(frozen=True)"),
        (Untyped(), "Untyped.depth has no type, so it cannot be set: write `depth: int = ...`"),
        (Misspelled(), "the types of Misspelled cannot be read: name 'Pth' is not defined, did you mean 'Path'?"),
        (options_class(dict, {}.copy), "Opts.size is of type dict, which has no command-line form: use str, int, float, bool, Path"),
        (options_class(tuple[int, ...], ()), "Opts.size is of type tuple[int, ...], which has no command-line form"),
        (options_class(int | str, 3), "Opts.size is of type int | str, which has no command-line form"),
        (options_class(int, "3"), "Opts.size = '3' is not a whole number: the default must match the field's type"),
        (options_class(int, None), "Opts.size = None is not a whole number: the default must match the field's type"),
        (options_class(Speed, "fast"), "Opts.size = 'fast' is not one of slow, fast: the default must match the field's type"),
        (options_class(int, 3, "Size"), "Opts.Size cannot become a flag: use lower case and single _ in the name"),
        (options_class(int, 3, "size_"), "Opts.size_ cannot become a flag"),
        (options_class(str, "", "node_name"), "Opts.node_name: --node-name is an option of `dra` itself: rename it, for example to rack_node_name"),
        (options_class(str, "", "lease_duration"), "--lease-duration is an option of `dra` itself"),
        (options_class(str, "", "host"), "--host is an option of `dra` itself"),
        (options_class(str, "", "pod_namespace"), "POD_NAMESPACE is a variable of the framework"),
        (options_class(str, "", "path"), "Opts.path: PATH is a variable that other programs set: rename it, for example to rack_path"),
        (options_class(str, "", "kubernetes_server"), "KUBERNETES_SERVER is a variable that other programs set"),
        (Conflicting(), "Conflicting.no_old: --no-old already switches `old` off: remove the field"),
    ],
)  # fmt: skip
def test_an_invalid_declaration_is_rejected_with_the_class(options: Any, message: str) -> None:
    with pytest.raises(DriverError) as e:
        check(type("D", (Plain,), {"name": "rack.example.com", "options": options}))
    assert message in str(e.value)


def test_an_init_that_sets_options_is_rejected() -> None:
    class DriverWithAttribute(Rack):
        def __init__(self) -> None:
            self.options = RackOptions(shelves=1)

    with pytest.raises(
        DriverError, match=r"DriverWithAttribute.__init__\(\) sets self.options, which the framework sets"
    ):
        make(DriverWithAttribute)


def test_a_failing_check_of_options_is_reported_with_its_line() -> None:
    @dataclass(frozen=True)
    class FailingCheck:
        size: int = 0

        def __post_init__(self) -> None:
            if self.size:
                raise KeyError("no such size")

    with pytest.raises(
        DriverError, match=r"FailingCheck.__post_init__\(\) raised KeyError: 'no such size' \(.*\.py:\d+\)"
    ):
        read_options(type("D", (Plain,), {"options": FailingCheck()}), {"size": "1"}, {})


def test_a_driver_cannot_declare_an_option_with_the_flag_of_a_command() -> None:
    """The list in driver/options.py must contain the flags of all commands."""
    commands = cli.commands()
    flags = {flag for name, c in cli.COMMANDS.items() if c.driver_options for flag in commands[name].flags} | {
        "--version"
    }
    names = {flag[2:].replace("-", "_") for flag in flags if flag.startswith("--")}
    for name in sorted(names):
        with pytest.raises(DriverError, match=r"is an option of `dra` itself"):
            declared(type("D", (Plain,), {"options": options_class(str, "", name)}))
    settings = {f.name for f in dataclasses.fields(ControllerSettings)}
    assert names - settings - {"sysfs_root", "dev_root"} == COMMAND_FLAGS


# --- on a command line --------------------------------------------------------------------------


FILE = """
from dataclasses import dataclass
from typing import Annotated

from dra_kubeletplugin import Device, Driver, run


@dataclass(frozen=True)
class RackOptions:
    shelves: Annotated[int, "how many shelves"] = 4
    spare: Annotated[bool, "including the last one"] = False
    mode: Annotated[str, "of work"] = "x"


class Rack(Driver):
    name = "rack.example.com"
    options = RackOptions()

    def devices(self):
        return [Device(f"shelf-{i}") for i in range(self.options.shelves + self.options.spare)]

    def prepare(self, claim):
        return []


if __name__ == "__main__":
    run(Rack)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("SHELVES", "SPARE", "MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "rack.py").write_text(FILE)
    return str(tmp_path / "rack.py")


def published(words: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    assert cli.main(["inspect", *words]) == 0
    return capsys.readouterr().out.count("shelf-")


def test_flags_of_a_driver_follow_the_driver(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert published([file, "--shelves", "2"], capsys) == 2
    assert published([file, "--shelves=2", "--spare"], capsys) == 3
    assert published([file, "--spare"], capsys) == 5
    assert published(["--node-name", "n", file, "--no-spare"], capsys) == 4


def test_a_variable_is_read_by_every_command(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELVES", "3")
    assert published([file], capsys) == 3
    monkeypatch.setenv("SHELVES", "three")
    assert cli.main(["inspect", file]) == 2
    assert "dra: SHELVES 'three' is not a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "controller", "inspect", "dev"])
def test_the_help_of_a_driver_lists_its_options_in_a_separate_group(
    command: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as e:
        cli.main([command, file, "--help"])
    assert e.value.code == 0
    group = capsys.readouterr().out.partition("options of Rack:")[2]
    assert "--shelves SHELVES" in group
    assert "how many shelves (SHELVES; 4)" in group
    assert "--spare, --no-spare" in group


def test_the_help_with_an_unknown_driver_is_the_help_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        cli.main(["run", "DRIVER", "--help"])
    assert e.value.code == 0
    assert "cannot be listed: DRIVER: no module DRIVER" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "FILE", "--shelfes", "3"], "there is no option --shelfes, did you mean '--shelves'?"),
        (["run", "FILE", "--shelves"], "--shelves: expected one argument"),
        (["run", "FILE", "--shelves=x"], "dra: --shelves 'x' is not a whole number"),
        (["controller", "FILE", "--shelves=x"], "dra: --shelves 'x' is not a whole number"),
        (["dev", "FILE", "--shelves=x"], "dra: --shelves 'x' is not a whole number"),
        (["dev", "--shelves=3", "FILE"], "there is no option --shelves"),
        (["run", "none.py", "--shelves=3"], "none.py is not a file"),
        (["run", "FILE", "--nodename=3"], "there is no option --nodename, did you mean '--node-name'?"),
        (["run", "FILE", "FILE", "--shelves=3"], "is an unexpected argument"),
    ],
)
def test_an_invalid_command_line_is_reported_with_exit_code_2(
    words: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = cli.main([file if word == "FILE" else word for word in words])
    except SystemExit as e:
        code = e.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_faults_of_settings_and_options_are_reported_together(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", file, "--call-timeout=x", "--shelves=x"]) == 2
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["--call-timeout", "--shelves"]


def test_drivers_with_contradicting_flags_are_rejected(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.py").write_text(FILE.replace("bool", "int").replace("False", "1").replace("rack.", "other."))
    assert cli.main(["dev", file, str(tmp_path / "other.py"), "--shelves=2"]) == 2
    assert "dra: --spare needs a value for one of these drivers and none for another" in capsys.readouterr().err
