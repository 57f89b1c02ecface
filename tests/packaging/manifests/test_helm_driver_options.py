"""A chart that was written for a driver: Helm judges the driver's own options as the driver's process would."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver import load_driver, read_options
from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.packaging.manifests.driver_options import options_schema
from tests.packaging.manifests.rendering import CHART, LEAST, ROOT

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
    """With the driver and its chart."""
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


def of_its_process(folder: Path) -> dict[str, list[str]]:
    """The texts that the driver takes, by variable."""
    npu = load_driver(str(folder / "npu.py"))
    variables = [name.upper() for name in vars(npu.options)]

    def taken(variable: str, text: str) -> bool:
        try:
            read_options(npu, {}, {variable: text})
        except SettingsError:
            return False
        return True

    return {v: [text for text in TEXTS if taken(v, text)] for v in variables}


def test_the_schema_takes_the_texts_that_the_driver_takes_and_no_others(folder: Path) -> None:
    import jsonschema  # takes a second, which a run without this test saves

    judge = jsonschema.Draft7Validator(options_schema(load_driver(str(folder / "npu.py")), ["SHUTDOWN_GRACE_PERIOD"]))
    taken = of_its_process(folder)
    texts = [t for t in TEXTS if not t.endswith("\n")]  # there Python's `$`, by which this judges, is not Go's
    assert {v: [t for t in texts if judge.is_valid({v: t})] for v in taken} == {
        v: [t for t in taken[v] if t in texts] for v in taken
    }


@pytest.mark.full
@pytest.mark.helm
def test_helm_takes_the_texts_that_the_driver_takes_and_no_others(folder: Path) -> None:
    taken = of_its_process(folder)
    for i in range(max(map(len, taken.values()))):
        done = helm(folder, {v: texts[min(i, len(texts) - 1)] for v, texts in taken.items()})
        assert done.returncode == 0, done.stderr
    judged = {v: [t for t in TEXTS if t not in texts] for v, texts in taken.items()}
    for i in range(max(map(len, judged.values()))):
        wrong = {v: texts[min(i, len(texts) - 1)] for v, texts in judged.items() if texts}
        said = helm(folder, dict(wrong)).stderr
        assert {v for v in wrong if f"at '/options/{v}':" in said} == wrong.keys(), said


@pytest.mark.cases(3)
@pytest.mark.helm
@pytest.mark.parametrize("command", ["template", "lint"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"NPU_MODE": "fats"}, "at '/options/NPU_MODE': value must be one of 'fast', 'safe', ''"),
        ({"NPU_COUNT": "four"}, "at '/options/NPU_COUNT': 'four' does not match pattern"),
        ({"NPU_COUNT": 4}, "at '/options/NPU_COUNT': got number, want string"),
        ({"NPU_MOD": "fast"}, "at '/options': additional properties 'NPU_MOD' not allowed"),
        ({"NODE_NAME": "n"}, "NODE_NAME"),  # the manifests' own
    ],
)
def test_each_way_to_use_the_chart_judges(folder: Path, command: str, options: dict[str, object], says: str) -> None:
    done = helm(folder, options, command)
    assert done.returncode != 0
    assert says in done.stdout + done.stderr


@pytest.mark.helm
def test_options_of_the_framework_stay_beside_those_of_the_driver(folder: Path) -> None:
    done = helm(folder, {"NPU_MODE": "safe", "SHUTDOWN_GRACE_PERIOD": "5s"})
    assert done.returncode == 0, done.stderr
    assert {"NPU_MODE": "safe", "SHUTDOWN_GRACE_PERIOD": "5s"} in [
        d["data"] for d in yaml.safe_load_all(done.stdout) if d and d["kind"] == "ConfigMap"
    ]


def test_a_driver_without_options_and_a_chart_for_every_driver_take_any_name(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(DRIVER.replace("    options = NpuOptions()\n", ""))
    assert main(["deploy", "--shared-dir", str(tmp_path), "--driver", str(tmp_path / "plain.py")]) == 0
    made = json.loads((tmp_path / "helm/dra-driver/values.schema.json").read_text())
    assert made == json.loads((CHART / "values.schema.json").read_text())


def test_a_driver_that_cannot_be_loaded_is_reported_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "--shared-dir", str(tmp_path / "build"), "--driver", str(tmp_path / "none.py")]) == 2
    assert "none.py" in capsys.readouterr().err
    assert not (tmp_path / "build").exists()


@pytest.mark.helm
def test_the_page_shows_what_helm_states(folder: Path) -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    shown = re.search(r'```text title="helm install"\n(.*?)```', page, re.DOTALL)
    assert shown
    said = helm(folder, {"NPU_MODE": "fats", "NPU_MOD": "fast", "NPU_COUNT": "four"}).stderr
    assert [line for line in shown[1].splitlines() if line not in said.splitlines()] == []
