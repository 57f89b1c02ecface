"""docs/parameters.md: its driver reads what it says, and its manifest is one that a server takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.driver.config.objects import KINDS
from dra_kubeletplugin.errors import ConfigError
from dra_kubeletplugin.localcluster.apiserver import offline
from dra_kubeletplugin.packaging.manifests import values_validation
from dra_kubeletplugin.packaging.manifests.source_reader import load
from tests.helpers.parameters import resolve

PAGE = (Path(__file__).parents[2] / "docs/parameters.md").read_text()
DRIVER = "clocks.example.com"


def entry(source: str, version: str, **fields: object) -> dict[str, object]:
    parameters = {"apiVersion": f"{DRIVER}/{version}", "kind": "ClockConfig", **fields}
    return {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}


def test_the_driver_of_the_page_reads_versions_and_layers(tmp_path: Path) -> None:
    found = re.search(r"```python\n# clocks.py\n(.*?)```", PAGE, re.DOTALL)
    assert found
    (tmp_path / "clocks.py").write_text(found[1])
    driver = load_driver(str(tmp_path / "clocks.py"))()
    kinds = driver.config_kinds()
    config, _ = resolve([entry("FromClaim", "v1alpha1", mhz=3000)], kinds, DRIVER, "r")
    assert config == kinds[0](speed="High")
    layers = [entry("FromClass", "v1", speed="High"), entry("FromClaim", "v1", burst=True)]
    assert resolve(layers, kinds, DRIVER, "r") == (kinds[0](speed="High", burst=True), "FromClaim")
    with pytest.raises(ConfigError, match="burst needs speed High"):
        resolve(layers[1:], kinds, DRIVER, "r")


def test_the_values_of_the_page_are_right() -> None:
    source = load()
    least = {"name": "clocks", "namespace": "clocks", "driverName": DRIVER, "image": "clocks:1"}
    for text in re.findall(r"```yaml\n(features: .*?)```", PAGE, re.DOTALL):
        said = list(values_validation.faults(source, least | yaml.safe_load(text)))
        assert [s for s in said if not s.startswith("webhookCABundle: ")] == []  # it is cut short there


def test_the_sentences_of_the_page_are_what_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, name in (("python", "clocks.py"), ("yaml", "claims.yaml"), ("yaml", "layers.yaml")):
        found = re.search(rf"```{language}\n(# {name}\n.*?)```", PAGE, re.DOTALL)
        assert found
        (tmp_path / name).write_text(found[1])
    for name in ("claims.yaml", "layers.yaml"):
        assert main(["validate", name, "--driver", "clocks.py"]) == 1
        said = capsys.readouterr().out
        assert f"```text\n{said}```" in PAGE


def test_the_manifest_of_the_page_is_right_and_covers_all_that_has_parameters() -> None:
    found = re.search(r"```yaml\n(apiVersion: .*?)```", PAGE, re.DOTALL)
    assert found
    manifest = yaml.safe_load(found[1])
    assert manifest["webhooks"][0]["clientConfig"].pop("caBundle") == "LS0tLS1C..."  # it is cut short there
    assert offline.faults(manifest) == []
    assert {k.lower() for k in KINDS} == {
        r.rstrip("s").replace("classe", "class") for r in manifest["webhooks"][0]["rules"][0]["resources"]
    }
