"""Files are split into documents as kubectl splits them. Text that kubectl ignores silently is reported."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dra_devkit.yaml import stream
from dra_kubeletplugin.base.yaml import dump

MARK = "\ufeff"
JSON = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "%s"}}'
A, B, C = (f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n" for name in "abc")
FLOW = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"

ACCEPTED: dict[
    str, tuple[str, str]
] = {  # text, and the names of the objects that kubectl 1.36.3, `annotate --local`, and this package find
    "two": (f"{A}---\n{B}", "ab"),
    "a mark before the file": (f"{MARK}{A}---\n{B}", "ab"),
    "two marks before the file": (f"{MARK}{MARK}{A}", "a"),
    "a mark before the file and ---": (f"{MARK}---\n{B}", "b"),
    "a mark before a later document": (f"{A}---\n{MARK}{B}", "ab"),
    "a mark before a comment": (f"{A}---\n{MARK}# c\n{B}", "ab"),
    "a mark and nothing else": (f"{A}---\n{MARK}", "a"),
    "a mark in a text": (f"{A}data: {{x: '{MARK}y'}}\n", "a"),
    "a mark in a comment": (f"{A}# {MARK}\n", "a"),
    "--- and a comment": (f"{A}--- # c\n{B}", "ab"),
    "--- and a comment at once": (f"{A}---#c\n{B}", "ab"),
    "--- and spaces": (f"{A}---  \t\f\xa0\n{B}", "ab"),
    "--- in a block": (f"{A}data:\n  x: |\n    y\n    ---\n---\n{B}", "ab"),
    "nothing but ---": ("---\n---\n\n---\n" + A + "---\n---", "a"),
    "comments alone": (f"# x\n---\n{A}---\n# y\n", "a"),
    "null": (f"null\n---\n~\n---\n{A}", "a"),
    "... and ---": (f"{A}...\n---\n{B}", "ab"),
    "... at the end": (f"{A}... # x\n# y\n", "a"),
    "line ends of Windows": (f"{A}---\n{B}".replace("\n", "\r\n"), "ab"),
    "line ends of old": (A.replace("\n", "\r"), "a"),
    "JSON and JSON": (JSON % "a" + JSON % "b", "ab"),
    "JSON in lines": (f"\n {JSON % 'a'}\n{JSON % 'b'}\n", "ab"),
    "JSON after a mark": (f"{MARK}{JSON % 'a'}\n{JSON % 'b'}", "ab"),
    "YAML and JSON": (f"{A}---\n{JSON % 'b'}", "ab"),
    "an alias": (f"{A}data: &d {{x: z}}\nbinaryData: *d\n", "a"),
    "a key twice": (f"{A}metadata: {{name: b}}\n", "b"),
    "a list": (f"apiVersion: v1\nkind: List\nitems:\n- {JSON % 'a'}\n- {JSON % 'b'}\n", "ab"),
    "a list of a kind": ("apiVersion: v1\nkind: ConfigMapList\nitems: [{metadata: {name: a}}]\n", "a"),
    "a list of nothing": (f"apiVersion: v1\nkind: List\nitems:\n---\n{B}", "b"),
}
NEWER: dict[str, tuple[str, str]] = {  # objects that kubectl 1.32 does not find
    "JSON with a comma too many": (JSON.replace("}}", ",}}") % "a", "a"),
    "JSON and a comment": (f"{JSON % 'a'} # c\n", "a"),
    "JSON and ---": (f"{JSON % 'a'} ---\n{B}", "ab"),
    "JSON and YAML": (f"{JSON % 'a'}\n{B}---\n{C}", "abc"),
    "JSON and JSON after a mark": (f"{JSON % 'a'}\n{MARK}{JSON % 'b'}", "ab"),
}
REJECTED: dict[str, tuple[str, str]] = {  # text that kubectl rejects too, and the start of the reported sentence
    "--- and an object": (f"{A}---\n{B}--- {FLOW}\n", ":8:4: '{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}' follows '---'"),
    "----": (f"{A}----\n{B}", ":4:4: '-' follows '---', which begins a document only on a line of its own"),
    "--- in a text": (f"{A}data: {{x: 'a\n\n--- x\n b'}}\n", ":6:4: 'x' follows '---'"),
    "--- alone in a text": (f"{A}data: {{x: 'a\n---\n b'}}\n", ":5:1: not valid YAML: a quote that is not closed"),
    "a mark before ---": (f"{A}{MARK}---\n{B}", ":4:1: a byte order mark inside a document"),
    "a mark before a key": (f"apiVersion: v1\n{MARK}kind: ConfigMap\nmetadata: {{name: a}}\n", ":2:1: a byte order mark inside a document"),
    "a mark at the end": (f"{A}{MARK}\n", ":4:1: a byte order mark inside a document"),
    "a mark after a comment": (f"# x\n{MARK}kind: ConfigMap\napiVersion: v1\n", ":2:1: a byte order mark inside a document"),
    "three marks": (f"{MARK * 3}{A}", ":1:1: a byte order mark inside a document"),
    "two marks before a later document": (f"{A}---\n{MARK}{MARK}{B}", ":5:1: a byte order mark inside a document"),
    "a directive": (f"{A}---\n%YAML 1.1\n---\n{B}", ":5:1: kubectl does not accept YAML directives: remove the line"),
    "JSON and JSON and ---": (f"{JSON % 'a'}{JSON % 'b'}\n---\n{C}", ":2:1: not JSON, but all text before it is JSON: Expecting value"),
    "JSON and a bracket": (f"{JSON % 'a'}\n{JSON % 'b'}\n}}", ":3:1: not JSON, but all text before it is JSON: Expecting value"),
    "JSON and a comma": (f"{JSON % 'a'},\n{JSON % 'b'}", ":1:69: not JSON, but all text before it is JSON: Expecting value"),
    "UTF-16 without a mark": ("a\0", ":1:2: the character U+0000 is not allowed in YAML"),
    "text": ("hello\n", ":1: text in place of an object with apiVersion and kind"),
    "a list in a list": (f"kind: List\nitems:\n- {{kind: List, items: [{JSON % 'a'}]}}\n", ":3: List: this list is inside another list"),
    "an object of items": ("kind: List\nitems: {a: 1}\n", ":2: List: items: an object in place of a list"),
}  # fmt: skip
IGNORED: dict[str, tuple[str, str]] = {  # text that kubectl ignores silently, and its line
    "after ...": (f"{A}...\n# c\n{B}", ":6:1"),
    "no YAML after ...": (f"{A}...\n: [ x\n", ":5:1"),
    "after an object": (f"# c\n{FLOW}\n{FLOW}\n", ":3:1"),
    "JSON after JSON in YAML": (f"{A}---\n{JSON % 'b'}\n{JSON % 'c'}", ":6:1"),
    "after --- with line ends of old": (f"{A}---\n{B}".replace("\n", "\r"), ":1:"),
}


def read_names(text: str | bytes, folder: Path) -> tuple[str, list[str]]:
    """Returns the names of the objects in a text, and the faults without the file's name."""
    from dra_devkit.yaml import manifests

    path = folder / "f.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    faults: list[str] = []
    found = manifests.read([path], faults)
    names = "".join(m.value["metadata"]["name"] for m in found if not m.faults)
    return names, [
        t.removeprefix(str(path)) for t in faults + [m.sentence(m.located(f)) for m in found for f in m.faults]
    ]


@pytest.mark.parametrize("which", ACCEPTED | NEWER)
def test_a_file_is_split_as_kubectl_splits_it(which: str, tmp_path: Path) -> None:
    text, names = (ACCEPTED | NEWER)[which]
    assert read_names(text, tmp_path) == (names, [])


@pytest.mark.parametrize("which", REJECTED)
def test_text_that_kubectl_rejects_is_one_sentence_with_the_line(which: str, tmp_path: Path) -> None:
    text, sentence = REJECTED[which]
    (fault,) = read_names(text, tmp_path)[1]
    assert fault.startswith(sentence)


@pytest.mark.parametrize("which", IGNORED)
def test_text_that_kubectl_ignores_is_reported(which: str, tmp_path: Path) -> None:
    text, place = IGNORED[which]
    (fault,) = read_names(text, tmp_path)[1]
    assert fault.startswith(place)
    assert "kubectl ignores this text: begin a document with '---' on a line of its own" in fault


def test_utf_16_is_read_if_the_file_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-16-be"):
        text = f"{A}---\n{B}" if encoding == "utf-16" else f"{MARK}{A}---\n{B}"
        assert read_names(text.encode(encoding), tmp_path) == ("ab", [])


def test_lines_of_a_later_document_are_counted_from_the_start_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f"{A}---\n# c\n{B}kind: ConfigMap\n---\n{JSON % 'c'}\n")
    first, second, third = stream.read(path, [])
    assert [d.place("metadata.name").rpartition(":")[2] for d in (first, second, third)] == ["3", "8", "11"]
    assert second.faults == [
        (f"{path}:9", "the key 'kind' was already used in line 7: one of the values is lost"),
    ]


def test_many_values_are_not_rejected_as_an_alias_bomb(tmp_path: Path) -> None:
    """The text is like the output of `kubectl get -o yaml` for a large cluster."""
    item = f"- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: a}}, data: {{{', '.join(f'k{i}: v' for i in range(50))}}}}}\n"
    assert read_names("kind: List\nitems:\n" + item * 1500, tmp_path) == ("a" * 1500, [])


@pytest.mark.full
@pytest.mark.kubectl
def test_kubectl_accepts_and_rejects_the_texts_of_this_file() -> None:
    version = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, check=True)
    newer = int(re.sub(r"\D", "", json.loads(version.stdout)["clientVersion"]["minor"])) >= 36

    def run_kubectl(text: str) -> tuple[bool, str]:
        words = ["kubectl", "annotate", "--local", "-f", "-", "-o", "jsonpath={.metadata.name}", "a=b"]
        done = subprocess.run(words, input=text.encode(), capture_output=True, check=False)
        return done.returncode == 0, done.stdout.decode()

    for text, names in (ACCEPTED | (NEWER if newer else {})).values():
        assert run_kubectl(text) == (True, names), text
    for which, (text, _) in REJECTED.items():
        if which != "two marks before a later document" or newer:
            assert not run_kubectl(text)[0], text
    for text, _ in IGNORED.values():
        ok, names = run_kubectl(text)
        assert ok and names in {"a", "ab"}, text


# --- comparison with simple models -----------------------------------------------------------------------------

LINES = st.sampled_from(
    ["---", "--- # c", "--- ", "--- x", "----", "...", "# c", "", "a: 1", "b: [2]", "{c: 3}", f"{MARK}d: 4", "'q'", " e: 5", "- 6",
     "%YAML 1.1", "[", "f:", "\tg: 7"]
)  # fmt: skip


def chunks_of(text: str) -> tuple[list[tuple[int, str]], bool]:
    """Models kubectl's reader: returns the chunks of a text with their first lines, and whether the text ends with an error."""
    out: list[tuple[int, str]] = []
    buffer = ""
    first = 0
    for number, line in enumerate(io.StringIO(text, newline="\n")):
        if line.startswith("---"):
            rest = line[3:].strip()
            if rest and rest[0] != "#":
                return out, True
            if buffer:
                out.append((first, buffer))
                buffer, first = "", number + 1
                continue
        buffer += line
    return [*out, (first, buffer)], False


def model(text: str) -> tuple[list[tuple[int, Any]], bool]:
    """Returns the first lines and values of the documents, with all values as text, and whether a fault follows them."""
    chunks, fault = chunks_of(text)
    out: list[tuple[int, Any]] = []
    for first, chunk in chunks:
        chunk = chunk.removeprefix(MARK)
        if any(line.startswith(MARK) for line in chunk.split("\n")):
            return out, True
        loader = yaml.CBaseLoader(chunk)  # Like kubectl, libyaml reads only to the end of a document.
        try:
            if not loader.check_node():
                continue
            node = loader.get_node()
            if value := loader.construct_document(node):
                out.append((first + node.start_mark.line, value))
            if loader.check_node():
                return out, True
        except yaml.YAMLError:
            return out, True
    return out, fault


def as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): as_text(v) for k, v in value.items()}
    return [as_text(v) for v in value] if isinstance(value, list) else "" if value is None else str(value)


@given(st.lists(LINES, max_size=12), st.booleans(), st.booleans())
@example(["a: 1", "---", "---", f"{MARK}d: 4"], True, True)
@example(["{c: 3}", "[", "\tg: 7"], False, False)
def test_any_lines_are_split_as_the_line_by_line_model_splits_them(
    lines: list[str], windows: bool, ended: bool
) -> None:
    text = ("\r\n" if windows else "\n").join([*lines, ""] if ended else lines)
    found: list[tuple[int, Any]] = []
    fault = False
    try:
        for part in stream.parts(text):
            node = part.node
            assert node is not None
            if part.value is not None:
                found.append((part.first_line + node.start_mark.line, as_text(part.value)))
    except stream.StreamFault:
        fault = True
    assert (found, fault) == model(text)


VALUES = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.integers(-99, 99) | st.text("xyz ", max_size=5), min_size=1
)
GAPS = st.lists(st.sampled_from(["", "# c", "  # c"]), max_size=2)


@given(
    st.lists(st.tuples(VALUES, st.booleans(), st.sampled_from(["", "...\n", "# c\n"]), st.booleans(), GAPS), min_size=1, max_size=5),
    st.sampled_from(["---\n", "--- # c\n", "---\t\n"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)  # fmt: skip
def test_written_documents_are_read_with_their_lines(
    written: list[tuple[dict[str, Any], bool, str, bool, list[str]]], separator: str, end: str, encoding: str
) -> None:
    text, lines = "", []
    for value, as_json, after, marked, gap in written:
        text += separator if text else ""
        text += MARK if marked else ""
        text += "".join(f"{line}\n" for line in gap)
        lines.append(text.count("\n") + 1)
        text += f" {json.dumps(value)}\n" if as_json and len(written) > 1 and lines[1:] else dump(value)
        text += after
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        path.write_bytes(text.replace("\n", end).encode(encoding))
        faults: list[str] = []
        found = stream.read(path, faults)
        places = [int(d.place().rpartition(":")[2]) for d in found]
    assert (faults, [d.value for d in found], places) == ([], [w[0] for w in written], lines)


@given(st.lists(VALUES, max_size=4), st.sampled_from(["", " ", "\n", "\r\n\t"]), st.booleans())
def test_json_documents_are_read_in_order_and_yaml_may_follow_only_the_first(
    values: list[dict[str, Any]], gap: str, tail: bool
) -> None:
    text = gap.join(map(json.dumps, values)) + ("\n---\nz: 1\n" if tail else "")
    found, fault = [], False
    try:
        found += [p.value for p in stream.parts(text)]
    except stream.StreamFault:
        fault = True
    if len(values) > 1 and tail:
        assert fault
    else:
        assert (found, fault) == ([*values, *([{"z": 1}] if tail else ())], False)


@given(
    st.binary(max_size=40)
    | st.text(st.sampled_from("-.{}[]\"':,#&*!|> \t\r\n\ufeff\u2028\x85ab1\\%é"), max_size=40).map(str.encode)
)
@example(b"{}" * 2 + b"[" * 100_000)
@example(b"- " * 100_000)
@example(b"a: 1e400")
@example(b'{"a": 1e400}{}')
def test_any_bytes_are_documents_and_at_most_one_sentence_with_a_line(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        path.write_bytes(raw)
        faults: list[str] = []
        found = stream.read(path, faults)
        assert len(faults) <= 1
        assert all(re.match(rf"{re.escape(str(path))}:\d+(:\d+)?: [^\n]+\Z", f) for f in faults), faults
        assert all(re.fullmatch(rf"{re.escape(str(path))}:\d+", d.place()) for d in found)
