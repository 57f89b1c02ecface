"""The drivers and parameters of docs/parameters.md work as described, and a server accepts its manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from msgspec import Meta

from dra_devkit.json_schema import json_schema
from dra_devkit.localcluster.apiserver import manifest_validation
from dra_devkit.packaging.manifests import values_validation
from dra_devkit.packaging.manifests.source_reader import load_source
from dra_devkit.testing import ClaimSpec, OpaqueConfig, Request, node_with
from dra_kubeletplugin import Config
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.driver.attachment import config_kinds
from dra_kubeletplugin.driver.config.objects import KINDS
from dra_kubeletplugin.errors import ConfigError
from tests.helpers.parameters import resolve

PAGE = (Path(__file__).parents[2] / "docs/parameters.md").read_text()
DRIVER = "clocks.example.com"


def entry(source: str, version: str, **fields: object) -> dict[str, object]:
    parameters = {"apiVersion": f"{DRIVER}/{version}", "kind": "ClockConfig", **fields}
    return {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}


def test_the_driver_of_the_page_reads_both_versions(tmp_path: Path) -> None:
    found = re.search(r"```python\n# clocks.py\n(.*?)```", PAGE, re.DOTALL)
    assert found
    (tmp_path / "clocks.py").write_text(found[1])
    driver = load_driver(str(tmp_path / "clocks.py"))()
    kinds = config_kinds(driver)
    config, _ = resolve([entry("FromClaim", "v1alpha1", mhz=3000)], kinds, DRIVER, "r")
    assert config == kinds[0](speed="High")
    entries = [entry("FromClass", "v1", speed="High"), entry("FromClaim", "v1", burst=True)]
    with pytest.raises(ConfigError, match="burst needs speed High"):
        resolve(entries, kinds, DRIVER, "r")


async def test_the_driver_of_the_page_receives_parameters_for_each_type_of_device(tmp_path: Path) -> None:
    found = re.search(r"```python\n# cards.py\n(.*?)```", PAGE, re.DOTALL)
    assert found
    (tmp_path / "cards.py").write_text(found[1])
    driver = load_driver(str(tmp_path / "cards.py"))
    parameters = [{"apiVersion": "cards.example.com/v1", "kind": "PartConfig", "cores": 2}]
    claim = ClaimSpec(Request(count=3), config=[OpaqueConfig(driver.name, p) for p in parameters])
    async with node_with(driver) as node:
        env = node.env(await node.run_pod(claim=claim))
    assert env["PartConfig"].endswith("'cores': 2} for part-0")
    assert env["GpuConfig"].endswith("'timeSlice': 'Short'} for gpu-0 gpu-1")


def test_the_deployment_values_of_the_page_are_valid() -> None:
    source = load_source()
    required = {"name": "clocks", "namespace": "clocks", "driverName": DRIVER, "image": "clocks:1"}
    texts = re.findall(r"```yaml\n(features: .*?)```", PAGE, re.DOTALL)
    assert texts
    for text in texts:
        errors = list(values_validation.value_errors(source, required | yaml.safe_load(text)))
        assert [e for e in errors if e.path != "webhookCABundle"] == []  # The page shortens the bundle.


def test_dra_validate_prints_the_sentences_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, name in (
        ("python", "clocks.py"),
        ("yaml", "claims.yaml"),
        ("python", "fans.py"),
        ("yaml", "fans.yaml"),
    ):
        found = re.search(rf"```{language}\n(# {name}\n.*?)```", PAGE, re.DOTALL)
        assert found
        (tmp_path / name).write_text(found[1])
    for name, driver in (("claims.yaml", "clocks.py"), ("fans.yaml", "fans.py")):
        assert main(["validate", name, "--driver", driver]) == 1
        output = capsys.readouterr().out
        assert f"```text\n{output}```" in PAGE


def test_the_schema_contains_the_rules_of_fields(tmp_path: Path) -> None:
    """The schema contains each keyword of the table, and for the driver of the page also the values."""
    found = re.search(r"```python\n# fans.py\n(.*?)```", PAGE, re.DOTALL)
    assert found
    (tmp_path / "fans.py").write_text(found[1])
    [kind] = config_kinds(load_driver(str(tmp_path / "fans.py")))
    fields = json_schema(kind)["properties"]
    assert {k: fields["rpm"][k] for k in ("minimum", "maximum", "multipleOf")} == {
        "minimum": 600,
        "maximum": 4800,
        "multipleOf": 100,
    }
    assert (fields["zones"]["minItems"], fields["zones"]["items"]) == (1, {"enum": ["front", "rear"]})

    class EveryRule(Config):
        a: Annotated[float, Meta(gt=0, lt=1)]
        b: Annotated[str, Meta(max_length=16, pattern="^[a-z]+$")]
        c: Annotated[Mapping[str, int], Meta(max_length=2)]
        d: Annotated[Sequence[int], Meta(max_length=2)]

    shown = str(json_schema(EveryRule))
    table = PAGE.partition("| rule | in the class |")[2].partition("\n\n")[0]
    keywords = set(re.findall(r"`([a-z]+[A-Z]\w+|pattern)`", table)) - {"multipleOf"}
    assert len(keywords) >= 6
    assert [k for k in keywords if repr(k) not in shown] == []


def test_the_manifest_of_the_page_is_valid_and_covers_all_kinds_with_parameters() -> None:
    found = re.search(r"```yaml\n(apiVersion: .*?)```", PAGE, re.DOTALL)
    assert found
    manifest = yaml.safe_load(found[1])
    assert manifest["webhooks"][0]["clientConfig"].pop("caBundle") == "LS0tLS1C..."  # The page shortens the bundle.
    assert manifest_validation.object_errors(manifest) == []
    assert {k.lower() for k in KINDS} == {
        r.rstrip("s").replace("classe", "class") for r in manifest["webhooks"][0]["rules"][0]["resources"]
    }
