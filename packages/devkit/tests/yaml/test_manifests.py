"""Each command reports a mistake in a file with the same sentence and the same line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dra_devkit.yaml.manifests import ManifestError
from dra_tools import from_files
from packages.devkit.tests.command_runner import Dra
from tests.helpers.manifests import CLAIM

COMMANDS = {
    "validate": ["validate"],
    "simulate": ["simulate", "-f"],
    "explain": ["explain", "-f"],
    "dev": ["dev", "--apply"],
}
MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n"

# Documents that are no objects. Every command rejects them.
NO_OBJECTS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "no YAML": (f"{MAP}---\na: [\n", (":6:1: not valid YAML: a value is missing, or a '[' or '{' is not closed",)),
    "a tab": (f"{MAP}data:\n\ta: b\n", (":5:1: not valid YAML: a tab: YAML is indented with spaces",)),
    "no colon": (f"{MAP}data\na: b\n", (":5:1: not valid YAML: a key without ':' after it, or a text that continues in the next line without quotes",)),
    "a template": (f"{MAP}data: {{{{ .Values.a }}}}\n", (":4:8: not valid YAML: a key is not text; a Helm template with {{ }} must be rendered first",)),
    "an alias": (f"{MAP}data: {{a: *b}}\n", (":4:11: not valid YAML: an alias without an anchor in this document: put a text that begins with * in quotes",)),
    "an alias of itself": (f"{MAP}data: &d {{a: *d}}\n", (":4:7: not valid YAML: an alias is inside its own anchor",)),
    "a separator": (f"{MAP}---x\n{CLAIM}", (":4:4: 'x' follows '---', which begins a document only on a line of its own",)),
    "ignored text": (f"{MAP}...\n{CLAIM}", (":5:1: kubectl ignores this text: begin a document with '---' on a line of its own",)),
    "a mark": (f"{MAP}---\n# c\n\ufeff{CLAIM}", (":6:1: a byte order mark inside a document, which kubectl reads as text: delete it",)),
    "no UTF-8": (MAP.encode() + b"# \xe9\n", (":4: byte 0xe9 is not UTF-8: save the file as UTF-8",)),
    "a control character": (f"{MAP}data: {{a: \x01}}\n", (":4:11: the character U+0001 is not allowed in YAML",)),
    "depth": (f"{MAP}data: {'[' * 300}\n", (":4:206: not valid YAML: nested too deeply: more than 200 levels",)),
    "JSON": ('{"kind": "List", "items": []}\n{"kind": "List", "items": []}\n{"c": }', (":3:7: not JSON, but all text before it is JSON: Expecting value",)),
    "text": (f"{MAP}---\nhello\n", (":5: text in place of an object with apiVersion and kind",)),
    "a list": ("- a: 1\n", (":1: a list in place of an object with apiVersion and kind",)),
    "a number": ("3\n", (":1: 3 in place of an object with apiVersion and kind",)),
    "no object in a list": ("kind: List\nitems:\n- a\n-\n", (
        ":3: text in place of an object with apiVersion and kind", ":4: nothing in place of an object with apiVersion and kind")),
    "a list in a list": ("kind: List\nitems:\n- kind: ConfigMapList\n  items: []\n", (
        ":3: ConfigMapList: this list is inside another list, so kubectl does not split it: put its items into the outer list",)),
    "items": ("kind: List\nitems: {}\n", (":2: List: items: an object in place of a list",)),
    "no apiVersion": (MAP.replace("apiVersion: v1\n", ""), (":1: ConfigMap m: apiVersion: missing",)),
    "no kind, no name": ("apiVersion: v1\nmetadata: {}\n", (":1: kind: missing", ":2: metadata.name: missing")),
    "nearly a kind": (MAP.replace("kind", "kinf"), (":2: m: kinf: unknown field, did you mean 'kind'?",)),
    "a kind that is a number": (MAP.replace("ConfigMap", "3"), (":2: 3 m: kind: 3 in place of text",)),
    "nothing of metadata": ("apiVersion: v1\nkind: ConfigMap\nmetadata:\n", (":3: ConfigMap: metadata: nothing in place of an object",)),
    "several at once": ("3\n---\na: [\n", (":1: 3 in place of an object with apiVersion and kind",
                                           ":4:1: not valid YAML: a value is missing, or a '[' or '{' is not closed")),
}  # fmt: skip

# Objects that a server would reject. `dra explain` only warns, because a cluster may contain them.
REJECTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "a key twice": (f"{MAP}---\n{CLAIM}kind: ResourceClaim\n", (
        ":15: ResourceClaim c: the key 'kind' was already used in line 6: one of the values is lost",)),
    "a key twice in JSON": ('{"apiVersion": "v1", "kind": "ConfigMap",\n "metadata": {"name": "m"},\n "kind": "ConfigMap"}\n', (
        ":3: ConfigMap m: the key 'kind' was already used in line 1: one of the values is lost",)),
    "a field": (CLAIM.replace("count", "cuont"), (
        ":10: ResourceClaim c: spec.devices.requests[0].exactly.cuont: unknown field, did you mean 'count'?",)),
    "a type": (CLAIM.replace("count: 1", "count: '1'"), (
        ":10: ResourceClaim c: spec.devices.requests[0].exactly.count: the text '1' in place of a whole number: write it without quotes",)),
    "a type in a later item": (f"kind: List\nitems:\n- {MAP.strip().replace(chr(10), chr(10) + '  ')}\n  data: {{a: 1}}\n", (
        ":6: ConfigMap m: data.a: 1 in place of text: write it in quotes",)),
    "a rule": (CLAIM.replace("name: r", "name: R"), (
        ":7: ResourceClaim c: spec.devices.requests[0].name: Invalid value: \"R\": a lowercase RFC 1123 label must consist of lower case "
        "alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for "
        "validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",)),
    "a version": (CLAIM.replace("k8s.io/v1", "k8s.io/v3"), (
        ":1: ResourceClaim c: apiVersion: 'resource.k8s.io/v3' has no ResourceClaim: use resource.k8s.io/v1, resource.k8s.io/v1beta2, "
        "resource.k8s.io/v1beta1",)),
    "a kind": (CLAIM.replace("ResourceClaim", "ResourceClaims"), (
        ":2: ResourceClaims c: kind: resource.k8s.io/v1 has no 'ResourceClaims', did you mean 'ResourceClaim'?",)),
}  # fmt: skip
MISTAKES = NO_OBJECTS | REJECTED


def run_command(command: str, path: Path, dra: Dra) -> tuple[int, list[str]]:
    """Runs a command. Returns the exit code and, of each sentence with the file's name, the part after the name."""
    out, err, code = dra(*COMMANDS[command], path, code=None)
    lines = [line for line in (out + err).splitlines() if not line.startswith("ok ")]
    return code, [
        re.sub(rf"^.*?{re.escape(str(path))}|( \[DRA-E\d+\])$", "", line) for line in lines if str(path) in line
    ]


@pytest.mark.cases(66)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("which", MISTAKES)
def test_every_command_reports_a_mistake_with_the_same_sentence(
    which: str, command: str, tmp_path: Path, dra: Dra
) -> None:
    text, sentences = MISTAKES[which]
    path = tmp_path / "m.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, found = run_command(command, path, dra)
    assert sorted(found) == sorted(sentences)
    if command == "explain" and which in REJECTED and which != "a version":
        assert code == 3, "the file has no pods"
    elif command == "validate":
        assert code in {1, 2}
    else:
        assert code == 2


@pytest.mark.parametrize("which", NO_OBJECTS)
def test_the_library_reports_the_same_sentence(which: str, tmp_path: Path) -> None:
    text, sentences = NO_OBJECTS[which]
    path = tmp_path / "m.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ManifestError) as e:
        from_files([path])
    assert sorted(e.value.faults) == sorted(f"{path}{s}" for s in sentences)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("which", ["no file", "a folder without manifests", "a file as a folder"])
def test_every_command_reports_an_unreadable_path_with_the_same_sentence(
    which: str, command: str, tmp_path: Path, dra: Dra
) -> None:
    (tmp_path / "m").write_text(MAP)
    path, sentence = {
        "no file": (tmp_path / "none.yaml", ": No such file or directory"),
        "a folder without manifests": (tmp_path, ": no file in it ends in .yaml, .yml, .json"),
        "a file as a folder": (tmp_path / "m/a.yaml", ": Not a directory"),
    }[which]
    is_empty = which == "a folder without manifests" and command == "validate"
    assert run_command(command, path, dra) == (3 if is_empty else 2, [sentence])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_kustomization_file_is_reported(command: str, tmp_path: Path, dra: Dra) -> None:
    path = tmp_path / "kustomization.yaml"
    path.write_text("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
    _, (sentence,) = run_command(command, path, dra)
    assert sentence.endswith("it is a file of kustomize: use the output of `kubectl kustomize`")


def test_an_object_that_a_server_has_accepted_is_not_validated_again(tmp_path: Path, dra: Dra) -> None:
    """The server may be newer than the schema of this package."""
    path = tmp_path / "m.yaml"
    path.write_text(MAP.replace("name: m", "name: m, uid: u") + "fieldOfTomorrow: 1\n")
    assert run_command("explain", path, dra) == (3, []), "the file has no pods"
