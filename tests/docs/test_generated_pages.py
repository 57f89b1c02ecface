"""Generated files are current, and other pages name only files, options and examples that exist."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import yaml

from dra_devkit.hosts import described, schema
from tests.tools.tree import SOURCES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(generate: ModuleType) -> Mapping[str, str]:
    found: Mapping[str, str] = generate.files()
    return found


def test_every_generated_file_is_current(files: Mapping[str, str]) -> None:
    assert [path for path, text in files.items() if (ROOT / path).read_text() != text] == [], "run `make docs`"


def test_every_error_has_its_own_code_and_a_help_text(generate: ModuleType) -> None:
    found = generate.reference_pages.error_classes()
    codes = [c.code for c in found]
    assert len(set(codes)) == len(codes)
    assert all(len(c.help) > 10 for c in found)


def test_the_example_of_a_described_host_is_valid_and_has_every_key(generate: ModuleType, tmp_path: Path) -> None:
    example = yaml.safe_load(generate.example())
    described.build(tmp_path / "host", schema.parse(example))
    keys = set(re.findall(r"^\| `([^`]+)` \|", (DOCS / "hosts.md").read_text(), re.MULTILINE))

    def found(value: object, place: str) -> set[str]:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return set().union(*(found(v, f"{place}[]") for v in value))
        if not isinstance(value, dict):
            return set()
        if place == "numa_nodes":
            return set().union(*(found(v, "numa_nodes{}") for v in value.values()))
        out = {f"{place}.{k}".lstrip(".") for k in value}
        return out.union(
            *(found(v, f"{place}.{k}".lstrip(".")) for k, v in value.items() if f"{place}.{k}".lstrip(".") in keys)
        )

    free_form = {
        f"{k}."
        for k in (
            "functions[].classes",
            "functions[].nodes",
            "functions[].proc",
            "functions[].attributes",
            "nodes",
            "proc",
            "files",
        )
    }  # In these mappings, authors choose the keys.
    assert {k for k in found(example, "") if not any(k.startswith(f) for f in free_form)} == keys


def test_the_proposals_page_names_existing_paths_and_all_examples() -> None:
    text = (DOCS / "proposals.md").read_text()
    roots = [ROOT, *SOURCES]
    for path in re.findall(r"`([a-z_/]+(?:/|\.py))`", text):
        assert any((root / path).exists() for root in roots), path
    for path in re.findall(r"`(drivers/\w+)`", text):
        assert (ROOT / path).is_dir(), path
    examples = {p.name[:2] for p in (ROOT / "examples").glob("[0-9]*")}
    named = {f"{n:02}" for n in range(1, 9)}  # "examples 01 to 08"
    assert "examples 01 to 08" in text
    named |= set(re.findall(r"\bexamples? (\d\d)\b", text)) | set(
        re.findall(r"\(KEP-\d{4}, (?:example )?(\d\d)\)", text)
    )
    assert named == examples, "each example belongs to a proposal"


def test_the_security_page_agrees_with_the_manifests() -> None:
    """The page repeats users and capabilities of the manifests, and it is not generated."""
    templates = ROOT / "packages/devkit/src/dra_devkit/packaging/manifests/source/templates"
    page = (DOCS / "security.md").read_text()
    for part in ("controller", "webhook"):
        assert f"| {part} | 65532 |" in page
        assert "runAsNonRoot: true\n          runAsUser: 65532" in (templates / f"{part}.yaml").read_text()
    assert "automountServiceAccountToken: true" not in (templates / "webhook.yaml").read_text()
    plugin = (templates / "plugin.yaml").read_text()
    for words in (
        "runAsUser: 0",
        "readOnlyRootFilesystem: true",
        "features.privileged }}\n          privileged: true\n          {{- else }}\n          allowPrivilegeEscalation: false",
        "capabilities: {drop: [ALL]}",
    ):
        assert words in plugin
    mounted = re.findall(r"hostPath:\n +path: (.+)|hostPath: \{path: (\S+),", plugin)
    assert {a or b for a, b in mounted} == {
        "{{ .Values.kubeletRoot }}/plugins_registry",
        "{{ .Values.kubeletRoot }}/plugins",
        "{{ .Values.kubeletRoot }}/pod-resources",
        "{{ .Values.cdiRoot | quote }}",
        "/dev",
    }


def test_the_compatibility_page_names_the_tested_python_versions() -> None:
    page = (DOCS / "compatibility.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    oldest = re.search(r'requires-python = ">=(\d\.\d+)"', project)
    tested = re.search(r"^PYTHONS=\((\S+) (\S+)\)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert oldest and tested
    assert tested[1] == oldest[1]
    assert f"| Python | {tested[1]} to {tested[2]}," in page
    assert (ROOT / "src/dra_kubeletplugin/py.typed").exists()


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda p: p.name)
def test_snippets_are_valid_in_their_language(page: Path) -> None:
    for kind, text in re.findall(
        r"^```(python|yaml|json)[^\n]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
    ):
        if kind == "python":
            compile(text, page.name, "exec")
        elif kind == "yaml":
            assert list(yaml.safe_load_all(text))
        else:
            json.loads(text)


def test_the_parameters_of_the_security_page_reject_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (DOCS / "security.md").read_text(), re.DOTALL)
    (tmp_path / "security_page_config.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = importlib.import_module("security_page_config").FpgaConfig
    assert msgspec.convert({"image": "crypto"}, config).image == "crypto"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"image": "/etc/shadow"}, config)
