"""The YAML loader reads values as kubectl does, and reports texts that try to crash or block parsers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dra_devkit.yaml import loader, stream
from dra_kubeletplugin.base.yaml import dump
from packages.devkit.tests.command_runner import Dra
from tests.tools.tree import modules

KUBECTL_VALUES: list[tuple[str, Any]] = [  # from kubectl 1.32, `annotate --local`, for a value within opaque.parameters
    ("y", True), ("Y", True), ("n", False), ("yes", True), ("yEs", "yEs"), ("on", True), ("off", False), ("TRUE", True), ("~", None),
    ("NULL", None), ("=", "="), ("12:30:45", "12:30:45"), ("1:30", "1:30"), ("0440", 288), ("0o17", 15), ("0X1f", 31), ("-0b11", -3),
    ("1_000", 1000), ("+1", 1), ("1e3", 1000), ("1.", 1), ("1.e3", 1000), (".5", 0.5), ("-.5", -0.5), ("08", 8), ("0_8", 8), ("1__0", 10),
    ("_1", "_1"), ("685_230.15", 685230.15), ("190:20:30.15", "190:20:30.15"), ("2001-01-01", "2001-01-01"), ("1e400", "1e400"),
    ("9" * 30, 1e30), ("1.0", 1), ("-0", 0), ("-0x1F", -31), ("0x1_F", 31), ("0b", "0b"), ("0b12", "0b12"), ("0o8", "0o8"), ("1_", 1),
    ("<<", "<<"), ("1.2.3", "1.2.3"), ("!!binary aGFsbG8=", "hallo"), ("!Foo bar", "bar"), ("!!str 1", "1"), ("!!int '1'", 1),
    ("!!float 1", 1), ("!!bool 'true'", True), ("!!null ''", None), ("!!set {a}", {"a": None}), ("!!omap [a: b]", [{"a": "b"}]),
    ("!!python/name:os.system ''", ""), (".Nan", ".Nan"), ("{1: a}", {"1": "a"}), ("{1.5: a}", {"1.5": "a"}), ("{on: a}", {"true": "a"}),
    ("{0x10: a}", {"16": "a"}), ("{1e3: a}", {"1000": "a"}), ("{.inf: a}", {".inf": "a"}), ("{2001-01-01: a}", {"2001-01-01": "a"}),
    ("{<<: [{a: 1},{a: 3, b: 4}], a: 2}", {"a": 2, "b": 4}),
]  # fmt: skip
REJECTED = (".inf", "-.Inf", "+.INF", ".nan", "{null: a}", "{? [a] : b}", "{<<: 1}", "!!int a")


@pytest.mark.parametrize(("text", "value"), KUBECTL_VALUES)
def test_a_value_is_read_as_kubectl_reads_it(text: str, value: Any) -> None:
    (part,) = loader.parts(f"a: {text}\n")
    assert json.dumps(part.value["a"]) == json.dumps(value)


@pytest.mark.parametrize("text", REJECTED)
def test_a_value_that_kubectl_rejects_is_rejected_with_its_line(text: str) -> None:
    with pytest.raises(yaml.MarkedYAMLError) as error:
        list(loader.parts(f"b: 1\na: {text}\n"))
    assert error.value.problem_mark is not None
    assert error.value.problem_mark.line == 1


ALIAS_BOMB = "".join(f"- &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True))
HOSTILE = {
    "brackets": "[" * 100_000,
    "items": "- " * 100_000,
    "complex keys": "? " * 100_000,
    "values": "? a\n" + ": " * 100_000,
    "blocks": "\n".join(" " * i + "a:" for i in range(2000)),
    "aliases": "- &a [1, 2]\n" + ALIAS_BOMB,
    "aliases merged": "- &a {a: 1}\n" + "".join(f"- &{b} {{x: *{a}, y: *{a}, z: *{a}, w: *{a}}}\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)),
    "itself": "a: &a {b: *a}\n",
    "itself as a key": "? &a [*a]\n: b\n",
    "merged with itself": "&a {<<: *a}\n",
    "a long number": "a: " + "9" * 100_000,
}  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.parametrize("which", HOSTILE)
def test_a_hostile_text_is_an_error_without_a_traceback(which: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(HOSTILE[which])
    for command in ("validate", "simulate"):  # in child processes, because such a text could crash them
        words = [sys.executable, "-m", "dra_kubeletplugin.cli", command, str(tmp_path / "a.yaml")]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode in {1, 2}, (command, done.stderr[-500:])
        assert "Traceback" not in done.stderr


def test_aliases_may_repeat_a_million_characters() -> None:
    text = "x" * 998  # with the list and the value itself, an alias repeats 1000
    (part,) = loader.parts(f"- &a [{text}]\n" + "- *a\n" * 1000)
    assert part.value == [[text]] * 1001
    with pytest.raises(yaml.MarkedYAMLError, match="aliases repeat more than 1000000 characters"):
        list(loader.parts(f"- &a [{text}]\n" + "- *a\n" * 1001))
    with pytest.raises(yaml.MarkedYAMLError, match="aliases repeat more than 1000000 characters"):
        list(loader.parts(f"- &a {text}\n" + "- *a\n" * 1002))


@pytest.mark.full
def test_a_value_without_aliases_may_have_any_size() -> None:
    (part,) = loader.parts(f"a: [{'1, ' * 300_000}]\nb: {'x' * 2_000_000}\n")
    assert len(part.value["a"]) == 300_000


# --- properties ---------------------------------------------------------------------------------------

WORDS = st.text(st.sampled_from("0123456789_+-.eExXoObBaAfFyYnN:<=~ "), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)


@given(WORDS)
@example("+_")
def test_any_word_is_a_json_value_or_an_error(word: str) -> None:
    try:
        found = [part.value for part in loader.parts(word)]
    except yaml.YAMLError:
        return
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert not any(isinstance(v, float) and not math.isfinite(v) for v in found)


@given(st.dictionaries(st.text(), VALUES), st.booleans(), st.sampled_from([None, 2, "\t"]))
def test_json_is_read_unchanged_with_any_strings(value: Any, ascii: bool, indent: int | str | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    assert [part.value for part in stream.parts(f"{text}\n{text}")] == [value, value]


WRITTEN = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text() | WORDS, WRITTEN))
@example({"1e3": "y", "08": "0o17", "n": "12:30", "=": "<<"})
def test_dumped_yaml_is_read_unchanged_by_kubernetes_and_by_pyyaml(value: Any) -> None:
    text = dump(value)
    (part,) = loader.parts(text)
    assert (part.value, part.duplicate_keys) == (value, [])
    assert yaml.safe_load(text) == value


def test_no_other_code_writes_yaml() -> None:
    assert [p for p in modules() if "safe_dump(" in p.read_text()] == []


# --- duplicate keys -----------------------------------------------------------------------------------

OBJECT = "apiVersion: v1\n{0}kind: ConfigMap\n{0}metadata: {{name: {1}}}\n{0}data: {{a: b}}\n{0}"
LIST = (
    "apiVersion: v1\nkind: List\nitems:\n- " + OBJECT.format("  ", "x") + "data: {c: d}\n- " + OBJECT.format("  ", "z")
)


def test_a_duplicate_key_in_a_list_is_reported_for_its_item(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "a.yaml").write_text(LIST.rstrip() + "\n")
    wrong, ok = dra("validate", tmp_path / "a.yaml", code=1).out.splitlines()
    assert wrong.startswith(f"wrong {tmp_path}/a.yaml:8: ConfigMap x: the key 'data' was already used in line 7")
    assert ok.startswith("ok ConfigMap z")


def test_duplicate_items_are_reported_and_the_last_ones_are_validated(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "a.yaml").write_text(
        "apiVersion: v1\nkind: List\nitems: []\nitems:\n- " + OBJECT.format("  ", "x").rstrip()
    )
    assert "ConfigMap x: the key 'items' was already used in line 3" in dra("validate", tmp_path / "a.yaml", code=1).out


def test_a_key_that_overrides_a_merged_key_is_no_duplicate(tmp_path: Path, dra: Dra) -> None:
    labels = "metadata:\n  name: a\n  labels: &l {x: 'y'}\n  annotations:\n    <<: *l\n    x: 1\n"
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: ConfigMap\n" + labels)
    (line,) = dra("validate", tmp_path / "a.yaml", code=1).out.splitlines()
    assert "a.yaml:8: ConfigMap a: metadata.annotations.x: 1 in place of text: write it in quotes" in line


def test_a_field_without_a_value_is_not_reported_as_misspelled(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata:\n")
    assert dra("validate", tmp_path / "a.yaml", code=1).out.strip().endswith("metadata: nothing in place of an object")
