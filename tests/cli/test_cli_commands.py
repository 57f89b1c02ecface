"""Tests every command that the parser knows: help, wrong arguments, output documents and exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import command_reference
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import cli
from dra_kubeletplugin.cli import commands, main
from dra_kubeletplugin.cli.shell import output
from dra_kubeletplugin.cli.shell.exit_codes import MEANINGS, Exit

ROOT = Path(__file__).parents[2]
GPU = str(ROOT / "drivers/gpu_example")
COMMANDS = commands()
ALL = pytest.mark.parametrize("command", COMMANDS)
WITH_OUTPUT = [c for c, p in COMMANDS.items() if "-o" in p.flags and "text" in (p.flags["-o"].choices or ())]


@pytest.mark.parametrize("command", cli.COMMANDS.values(), ids=lambda c: f"{c.package}.{c.target}")
def test_every_command_has_the_function_that_runs_it(command: cli.Command) -> None:
    """Strings name the function. A rename of a module or function does not change these strings."""
    assert callable(command.load())


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as e:
        code = int(e.code or 0)
    captured = capsys.readouterr()
    assert code in MEANINGS
    return code, captured.out, captured.err


@pytest.mark.cases(36)
@ALL
@pytest.mark.parametrize("width", [20, 80, 200])
def test_help_lists_every_option_at_any_width(
    command: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = run(capsys, *command.split(), "--help")
    assert (code, err) == (0, "")
    assert f"dra {command}".split() == out.split()[1 : 2 + len(command.split())]
    assert not [o for o in COMMANDS[command].flags if o not in out]


@pytest.mark.cases(12)
@ALL
def test_an_unknown_option_is_rejected_with_the_nearest_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in [o for o in COMMANDS[command].flags if len(o) > 5]:
        wrong = option[:-2] + option[-1] + option[-2] + "x"
        code, out, err = run(capsys, *command.split(), wrong)
        assert (code, out, err.count("\n")) == (Exit.USAGE, "", 1)
        near = re.search(r"there is no option (\S+), did you mean '(\S+)'\?", err)
        assert near, err
        assert near[1] == wrong
        assert near[2] in COMMANDS[command].flags
    code, out, err = run(capsys, *command.split(), "--qqqqqq=1")
    assert (code, out, err) == (Exit.USAGE, "", f"dra: there is no option --qqqqqq; see dra {command} --help\n")


@pytest.mark.cases(12)
@ALL
def test_an_abbreviated_option_is_rejected(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in COMMANDS[command].flags:
        if len(option) > 6 and option[:-1] not in COMMANDS[command].flags:
            assert run(capsys, *command.split(), option[:-1])[0] == Exit.USAGE


@ALL
def test_an_invalid_choice_is_reported_with_the_valid_choices(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for action in COMMANDS[command].arguments:
        if action.option_strings and action.choices:
            code, out, err = run(capsys, *command.split(), action.option_strings[0], "qqqqqq")
            assert (code, out, err.count("\n")) == (Exit.USAGE, "", 1)
            assert f"'qqqqqq' is not one of {', '.join(map(str, action.choices))}" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "dra: a COMMAND is needed; see dra --help"),
        (["-o", "json", "claims"], "dra: a command precedes its options: did you mean `dra claims -o`?"),
        (["dev", "-o", "json", "status"], "dra: there is no option -o; see dra dev --help"),
        (["--oops"], "dra: there is no option --oops; see dra --help"),
        (["exlpain", "pod/a", "-n", "default"], "dra: there is no command 'exlpain', did you mean 'explain'?"),
        (["explian", "claims"], "dra: there is no command 'explian', did you mean 'explain'?"),
        (["dev", "driver.py", "kill-driver"], "dra: kill-driver is a verb, so write it directly after `dra dev`: dra dev kill-driver [DRA-E001]"),
        (["inspekt"], "dra: there is no command 'inspekt', did you mean 'inspect'?"),
        (["reboot-node"], "dra: reboot-node is a verb of `dra dev`: did you mean `dra dev reboot-node`?"),
        (["completion", "fsh"], "dra: SHELL: 'fsh' is not one of bash, zsh, fish, objects, pods, nodes, namespaces, devices, drivers, did you mean 'fish'?"),
        (["validate"], "dra: the following arguments are required: FILE; see dra validate --help"),
        (["dev", "api-delay"], "dra: the following arguments are required: SECONDS; see dra dev api-delay --help"),
        (["dev", "--nodes", "two"], "dra: --nodes: invalid int value: 'two'; see dra dev --help"),
        (["new", "--kind"], "dra: --kind: expected one argument; see dra new --help"),
        (["schema", "a.py", "b.py"], "dra: 'b.py' is an unexpected argument; see dra schema --help"),
        (["explain", "pod/a", "--", "-o", "json"], "dra: '-o' is an unexpected argument; see dra explain --help"),
        (["claims", "--yes"], "dra: --yes is only for `dra claims forget UID` [DRA-E001]"),
        (["claims", "list", "uid"], "dra: a UID is only for `dra claims forget UID` [DRA-E001]"),
        (["inspect", "--controller"], "dra: --controller needs a DRIVER [DRA-E001]"),
        (["inspect", "--describe-host", "-o", "json"], "dra: --output json: --describe-host always prints YAML: remove --output [DRA-E001]"),
        (["validate", "x", "--driver-name", "y"], "dra: --driver-name is for one driver: use --driver once [DRA-E001]"),
        (["doctor", "--no-host", "--host-root", "/h"], "dra: --host-root is about this machine: do not combine it with --no-host [DRA-E001]"),
        (["explain", "-f", "x", "--context", "y"], "dra: --context is for a cluster and cannot be combined with --file [DRA-E001]"),
        (["simulate", "-f", str(ROOT / "examples"), "--allocatable", "cpu=1"], "dra: --allocatable is for described hosts: add --host and --driver [DRA-E001]"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_reported_in_one_sentence(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *words) == (Exit.USAGE, "", f"{expected}\n")


def test_the_commands_page_has_every_exit_code_and_every_documented_output() -> None:
    assert set(command_reference.SHAPES) == set(WITH_OUTPUT) - {c for c in WITH_OUTPUT if c.startswith("dev ")}
    page = (ROOT / "docs/commands.md").read_text()
    assert page == command_reference.page(), "run `make docs`"
    shown = " ".join((ROOT / "docs/commands.md").read_text().split())
    for code, meaning in MEANINGS.items():
        assert f"| {code.value} | {meaning}".replace("| head", "\\| head") in shown


def test_a_command_loads_only_its_own_package() -> None:
    """The other packages take half a second, for which a tab of the completion cannot wait."""
    script = (
        "import sys; from dra_kubeletplugin.cli import main; main(['completion', 'nodes', '--line', '\\'']); "
        "print('dra_devkit' in sys.modules, 'dra_tools' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True False\n"


def test_the_help_of_all_commands_loads_none_of_their_libraries() -> None:
    script = (
        "import sys; from dra_kubeletplugin.cli import main; main(['--help']); "
        "print([m for m in ('asyncio', 'msgspec', 'grpc', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "conformance" in done.stdout
    assert done.stdout.endswith("\n[]\n")


# --- arguments in any order --------------------------------------------------------------------------------


@given(st.permutations(["-o json", "--driver-name=x.example.com", "forget", "uid-1", "--yes", "--lock-timeout 1s"]))
def test_options_can_be_anywhere_between_positional_arguments(words: list[str]) -> None:
    """The action precedes the UID. Options can be before, between and after them, in any order."""
    places = iter(["forget", "uid-1"])
    ordered = [next(places) if w in {"forget", "uid-1"} else w for w in words]
    found = COMMANDS["claims"].parse_args(" ".join(ordered).split())
    assert (found.action, found.uid, found.yes) == ("forget", "uid-1", True)
    assert (found.output, found.driver_name, found.lock_timeout) == ("json", "x.example.com", "1s")


def test_arguments_after_two_dashes_are_not_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-o").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
    assert run(capsys, "validate", "--", "-o")[:2] == (0, "ok ConfigMap a (-o:1)\n")


def test_the_value_of_an_option_is_not_read_as_a_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "dev", "--state-dir", "stop", "missing.py")
    assert code == Exit.USAGE
    assert "missing.py" in err


OWN = """
from dataclasses import dataclass
from dra_kubeletplugin import Driver

@dataclass(frozen=True)
class Options:
    level: int = 1
    fast: bool = False
    slow: bool = False

class Own(Driver):
    name = "own.example.com"
    options = Options()
    def devices(self):
        return []
    def prepare(self, claim):
        return []
"""


def test_options_of_a_driver_follow_the_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    host = ("inspect", "--host", "virtual-machine")
    assert run(capsys, *host, "own.py", "--level", "3", "--no-slow", "-o", "json")[0] == Exit.SUCCESS
    assert "Kubernetes '9' is not supported" in run(capsys, "dev", "--kubernetes", "9", "own.py", "--level=3")[2]
    code, _, err = run(capsys, *host, "--level", "3", "own.py")
    assert (code, err) == (Exit.USAGE, "dra: there is no option --level, did you mean '--help'?\n")


# --- documents ------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


@dataclasses.dataclass
class Document:
    some_field: Any
    a_map: Any = None


TEXTS = st.text(alphabet=st.characters(exclude_categories=[]) | st.sampled_from("\udc80\x1b\x85\u2028:#- \n"))
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXTS
    | st.binary()
    | st.just(Colour.RED)
    | st.just(Path("/a")),
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner) | st.builds(Document, inner, inner),
    max_leaves=10,
)


@given(ANYTHING, st.booleans())
def test_json_and_yaml_of_any_value_are_equal_and_have_no_control_characters(value: object, unicode: bool) -> None:
    value = Document(value)
    plain = output.document(value)
    as_json, as_yaml = (output.encoded(value, form, unicode=unicode) for form in ("json", "yaml"))
    assert json.loads(as_json, parse_constant=pytest.fail) == plain
    assert yaml.safe_load(as_yaml) == plain
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", as_json + as_yaml)
    if not unicode:
        assert (as_json + as_yaml).isascii()


def _manifest(tmp_path: Path, text: str) -> str:
    (tmp_path / "m.yaml").write_text(text)
    return str(tmp_path / "m.yaml")


POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, image: x, resources: {claims: [{name: d}]}}]
  resourceClaims: [{name: d, resourceClaimName: none}]
"""
EXAMPLES: dict[str, Callable[[Path], list[str]]] = {
    "inspect": lambda tmp: ["inspect", "--host", "virtual-machine"],
    "inspect, a driver": lambda tmp: ["inspect", GPU, "--host", "virtual-machine"],
    "validate": lambda tmp: ["validate", _manifest(tmp, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")],
    "validate, wrong": lambda tmp: ["validate", _manifest(tmp, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Ä}\n")],
    "explain, one": lambda tmp: ["explain", "p", "-f", _manifest(tmp, POD)],
    "explain, all": lambda tmp: ["explain", "-f", _manifest(tmp, POD)],
    "explain, none": lambda tmp: ["explain", "-f", _manifest(tmp, "apiVersion: v1\nkind: Node\nmetadata: {name: node}\n")],
    "simulate": lambda tmp: ["simulate", "-f", _manifest(tmp, POD), "--host", "virtual-machine=2", "--driver", GPU],
    "doctor": lambda tmp: ["doctor", "--no-host"],
    "gather": lambda tmp: ["gather", "--no-host", str(tmp / f"{len(list(tmp.iterdir()))}.tar.gz")],
    "new": lambda tmp: ["new", f"acme-{len(list(tmp.iterdir()))}", "--kind", "sdk", "-C", str(tmp)],
    "deploy": lambda tmp: ["deploy", "--shared-dir", str(tmp), "--check"],
    "conformance, list": lambda tmp: ["conformance", "list", "SLC"],
    "claims": lambda tmp: ["claims", "--kubelet-root", str(_records(tmp))],
}  # fmt: skip


def _records(tmp: Path) -> Path:
    """Creates a kubelet's folder with the folder of a driver that has no records."""
    (tmp / "plugins/x.example.com/claims").mkdir(parents=True, exist_ok=True)
    return tmp


def shape(command: str) -> dict[str, Any]:
    """Returns the JSON Schema of the documented output of a command."""

    def renamed(schema: Any) -> Any:
        if isinstance(schema, dict):
            out = {k: renamed(v) for k, v in schema.items()}
            if "properties" in out:
                out["properties"] = {output.camel(k): v for k, v in out["properties"].items()}
                out |= {"required": list(out["properties"]), "additionalProperties": False}
            return out
        return [renamed(v) for v in schema] if isinstance(schema, list) else schema

    schemas, components = msgspec.json.schema_components(
        command_reference.SHAPES[command], ref_template="#/$defs/{name}", schema_hook=lambda kind: {"type": "string"}
    )
    return {"anyOf": [renamed(s) for s in schemas], "$defs": {k: renamed(v) for k, v in components.items()}}


@pytest.mark.parametrize("case", EXAMPLES)
def test_json_and_yaml_have_the_documented_fields_and_the_code_of_the_text(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import jsonschema  # imported here, because the import takes a second

    monkeypatch.delenv("KUBECONFIG", raising=False)
    code, text, _ = run(capsys, *EXAMPLES[case](tmp_path))
    code_of_json, as_json, _ = run(capsys, *EXAMPLES[case](tmp_path), "-o", "json")
    command, *rest = EXAMPLES[case](tmp_path)
    code_of_yaml, as_yaml, _ = run(capsys, command, "-o", "yaml", *rest)
    assert (code_of_json, code_of_yaml) == (code, code)
    assert code in {Exit.SUCCESS, Exit.NEGATIVE, Exit.UNKNOWN}
    document = json.loads(as_json)
    jsonschema.validate(document, shape(command))
    if command not in {"gather", "new"}:  # these two create something new in each run
        assert yaml.safe_load(as_yaml) == document
    devices = [d["name"] for pool in document.get("pools", []) for d in pool["devices"]]
    names = devices or [
        o.get("object") or o["address"] for key in ("objects", "functions") for o in document.get(key, [])
    ]
    assert not [name for name in names if name not in text], "the text output has the same names"


def test_every_documented_output_is_tested() -> None:
    tested = {case.partition(",")[0] for case in EXAMPLES}
    tested_with_a_cluster = {
        "top",
        "cleanup",
    }  # in packages/tools/tests/commands/top/test_screen.py and tests/plugin/test_node_processes.py
    assert tested | tested_with_a_cluster == set(command_reference.SHAPES)


# --- processes ------------------------------------------------------------------------------------------


def dra(
    *words: str, module: str = "dra_kubeletplugin", redirect: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    script = f'exec "$@" {redirect}'
    argv = ["bash", "-c", script, "bash", sys.executable, "-m", module, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, env={**os.environ, **env}, check=False)


@pytest.mark.cases(2)
@pytest.mark.parametrize("form", output.FORMS)
@pytest.mark.parametrize(
    ("redirect", "reason"),
    [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")],
    ids=["closed", "full"],
)
def test_output_that_cannot_be_written_is_reported(redirect: str, reason: str, form: str) -> None:
    done = dra("inspect", "--host", "virtual-machine", "-o", form, redirect=redirect)
    assert (done.returncode, done.stdout, done.stderr) == (
        Exit.USAGE,
        "",
        f"dra: the output cannot be written: {reason}\n",
    )


@pytest.mark.parametrize("words", [["validate", "/no/file"], ["claims"], ["no-command"], ["simulate", "/no/file"]])
def test_an_error_that_cannot_be_printed_is_in_the_exit_code(words: list[str]) -> None:
    assert dra(*words, redirect=">/dev/null 2>/dev/full").returncode == Exit.USAGE


@pytest.mark.parametrize("redirect", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_command_works_with_closed_streams_that_it_does_not_need(redirect: str) -> None:
    done = dra("inspect", "--host", "virtual-machine", "-o", "json", redirect=redirect)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["functions"]


@pytest.mark.parametrize("form", output.FORMS)
def test_an_ascii_terminal_gets_equivalent_ascii_output(tmp_path: Path, form: str) -> None:
    file = _manifest(tmp_path, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: grün}\n")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = dra("validate", file, "-o", form, **plain)
    assert (done.returncode, done.stderr, done.stdout.isascii()) == (Exit.NEGATIVE, "", True)
    if form != output.TEXT:
        assert yaml.safe_load(done.stdout)["objects"][0]["object"] == "ConfigMap grün"


def test_both_modules_run_the_command() -> None:
    for words in (["--version"], ["claims", "--help"], ["clams"]):
        one, two = dra(*words), dra(*words, module="dra_kubeletplugin.cli")
        assert (one.returncode, one.stdout, one.stderr) == (two.returncode, two.stdout, two.stderr)
        assert "__main__" not in one.stdout + one.stderr


# --- commands of other packages -----------------------------------------------------------------------------


def with_package(folder: Path, module: str) -> dict[str, str]:
    """Returns the environment with an installed package whose module ``zeta`` defines commands."""
    info = folder / "zeta-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zeta\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dra.commands]\nzeta = zeta\n")
    (folder / "zeta.py").write_text(module)
    return os.environ | {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("module", ["import zeta_gone\n", "raise SystemExit(0)\n", "1 / 0\n"])
def test_a_broken_package_takes_no_command_of_another_package(module: str, tmp_path: Path) -> None:
    env = with_package(tmp_path, module)

    def dra(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dra_kubeletplugin", *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    other = dra("explain", "--help")  # a command loads only its own package
    assert (other.returncode, other.stderr) == (0, "")
    assert "pod/NAME" in other.stdout
    listed = dra("--help")
    assert (listed.returncode, listed.stderr.count("\n")) == (0, 1), listed.stderr
    assert listed.stderr.startswith("dra: the commands of zeta cannot be loaded: ")


def test_a_package_adds_commands_and_replaces_none(tmp_path: Path) -> None:
    module = (
        "from dra_kubeletplugin.cli.shell.parsing import command\n"
        "@command('claims', 'of zeta', 'zeta:run')\ndef a(p): p.description = 'of zeta'\n"
        "@command('zeta', 'of zeta', 'zeta:run')\ndef b(p): p.description = 'of zeta'\n"
    )
    env = with_package(tmp_path, module)
    shown = {
        name: subprocess.run(
            [sys.executable, "-m", "dra_kubeletplugin", name, "--help"],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in ("claims", "zeta")
    }
    assert ("of zeta" in shown["claims"], "of zeta" in shown["zeta"]) == (False, True)
