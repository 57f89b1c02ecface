"""Tests a chart that was written for a driver: Helm validates the driver's options like the driver's process."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dra_devkit.packaging.manifests.option_validation import options_schema
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver import load_driver, read_options
from dra_kubeletplugin.errors import SettingsError
from packages.devkit.tests.command_runner import Dra
from packages.devkit.tests.packaging.manifests.rendering import CHART, LEAST, ROOT

DRIVER = """
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from dra_kubeletplugin import Driver


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


@dataclass(frozen=True)
class NpuOptions:
    npu_mode: Annotated[Literal["fast", "safe"], "how it runs"] = "fast"
    npu_speed: Speed = Speed.SLOW
    npu_level: Literal[1, 2] = 1
    npu_count: Annotated[int, "how many"] = 4
    npu_most: int | None = None
    npu_scale: float = 1.5
    npu_spare: bool = False
    npu_folder: Path = Path("/run/npu")
    npu_name: str = ""
    npu_only: tuple[str, ...] = ()


class Npu(Driver):
    name = "npu.example.com"
    options = NpuOptions()
"""
TEXTS = (
    "", " ", "x", "fast", "Fast", "safe", "slow", "0", "1", "2", "-3", "+4", "08", "0x10ee", "0X1", "-0xff", "1.5", "1.", ".5", ".", "-1e3",
    "1e", "1_000", " 1", "1 ", "9" * 18, "9" * 19, "true", "TRUE", "tRuE", "yes", "on", "off", "No", "truee", "nan", "inf", "٣", "a,b", "a\nb",
    "1\n", "/run/npu",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the driver and its chart."""
    (tmp_path / "npu.py").write_text(DRIVER)
    assert main(["deploy", "--shared-dir", str(tmp_path / "build"), "--driver", str(tmp_path / "npu.py")]) == 0
    return tmp_path


def helm(folder: Path, options: dict[str, object], command: str = "template") -> subprocess.CompletedProcess[str]:
    (folder / "values.yaml").write_text(json.dumps(LEAST | {"options": options}))
    name = [] if command == "lint" else ["npu"]
    return subprocess.run(
        ["helm", command, *name, "build/helm/dra-driver", "-f", "values.yaml"],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def valid_texts(folder: Path) -> dict[str, list[str]]:
    """Returns the texts that the driver accepts, by variable."""
    npu = load_driver(str(folder / "npu.py"))
    variables = [name.upper() for name in vars(npu.options)]

    def is_valid(variable: str, text: str) -> bool:
        try:
            read_options(npu, {}, {variable: text})
        except SettingsError:
            return False
        return True

    return {v: [text for text in TEXTS if is_valid(v, text)] for v in variables}


def test_the_schema_accepts_exactly_the_texts_that_the_driver_accepts(folder: Path) -> None:
    import jsonschema  # imported here, because the import takes a second

    validator = jsonschema.Draft7Validator(
        options_schema(load_driver(str(folder / "npu.py")), ["SHUTDOWN_GRACE_PERIOD"])
    )
    valid = valid_texts(folder)
    # With a newline at the end, `$` of Python, which this library uses, differs from `$` of Go.
    texts = [t for t in TEXTS if not t.endswith("\n")]
    assert {v: [t for t in texts if validator.is_valid({v: t})] for v in valid} == {
        v: [t for t in valid[v] if t in texts] for v in valid
    }


@pytest.mark.full
@pytest.mark.helm
def test_helm_accepts_exactly_the_texts_that_the_driver_accepts(folder: Path) -> None:
    valid = valid_texts(folder)
    for i in range(max(map(len, valid.values()))):
        done = helm(folder, {v: texts[min(i, len(texts) - 1)] for v, texts in valid.items()})
        assert done.returncode == 0, done.stderr
    invalid = {v: [t for t in TEXTS if t not in texts] for v, texts in valid.items()}
    for i in range(max(map(len, invalid.values()))):
        wrong = {v: texts[min(i, len(texts) - 1)] for v, texts in invalid.items() if texts}
        errors = helm(folder, dict(wrong)).stderr
        assert {v for v in wrong if f"at '/options/{v}':" in errors} == wrong.keys(), errors


@pytest.mark.cases(3)
@pytest.mark.helm
@pytest.mark.parametrize("command", ["template", "lint"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"NPU_MODE": "fats"}, "at '/options/NPU_MODE': value must be one of 'fast', 'safe', ''"),
        ({"NPU_COUNT": "four"}, "at '/options/NPU_COUNT': 'four' does not match pattern"),
        ({"NPU_COUNT": 4}, "at '/options/NPU_COUNT': got number, want string"),
        ({"NPU_MOD": "fast"}, "at '/options': additional properties 'NPU_MOD' not allowed"),
        ({"NODE_NAME": "n"}, "NODE_NAME"),  # set by the manifests themselves
    ],
)
def test_helm_template_and_lint_reject_invalid_options(
    folder: Path, command: str, options: dict[str, object], expected: str
) -> None:
    done = helm(folder, options, command)
    assert done.returncode != 0
    assert expected in done.stdout + done.stderr


@pytest.mark.helm
def test_the_chart_accepts_options_of_the_framework_and_of_the_driver_together(folder: Path) -> None:
    done = helm(folder, {"NPU_MODE": "safe", "SHUTDOWN_GRACE_PERIOD": "5s"})
    assert done.returncode == 0, done.stderr
    assert {"NPU_MODE": "safe", "SHUTDOWN_GRACE_PERIOD": "5s"} in [
        d["data"] for d in yaml.safe_load_all(done.stdout) if d and d["kind"] == "ConfigMap"
    ]


def test_the_chart_of_a_driver_without_options_has_the_schema_of_the_shared_chart(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(DRIVER.replace("    options = NpuOptions()\n", ""))
    assert main(["deploy", "--shared-dir", str(tmp_path), "--driver", str(tmp_path / "plain.py")]) == 0
    written = json.loads((tmp_path / "helm/dra-driver/values.schema.json").read_text())
    assert written == json.loads((CHART / "values.schema.json").read_text())


def test_a_driver_that_cannot_be_loaded_is_reported_and_nothing_is_written(tmp_path: Path, dra: Dra) -> None:
    assert "none.py" in dra("deploy", "--shared-dir", tmp_path / "build", "--driver", tmp_path / "none.py", code=2).err
    assert not (tmp_path / "build").exists()


@pytest.mark.helm
def test_the_page_shows_messages_that_helm_prints(folder: Path) -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    shown = re.search(r'```text title="helm install"\n(.*?)```', page, re.DOTALL)
    assert shown
    output = helm(folder, {"NPU_MODE": "fats", "NPU_MOD": "fast", "NPU_COUNT": "four"}).stderr
    assert [line for line in shown[1].splitlines() if line not in output.splitlines()] == []
