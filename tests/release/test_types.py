"""With `py.typed`, strict type checkers accept a driver that uses the installed wheel, and no public value is Any."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.release.installation import Environment, run

DRIVER = '''
"""A driver and a test of another project."""

from typing import assert_type

from dra_kubeletplugin import Claim, Config, ContainerEdits, Device, Driver, Health, PreparedClaim, PreparedDevice, Quantity, run
from dra_devkit.testing import Node


class CardConfig(Config):
    KIND = "CardConfig"
    API_VERSION = "card.example.com/v1"
    clock_mhz: int = 200


class Cards(Driver):
    name = "card.example.com"
    config = CardConfig

    def devices(self) -> list[Device]:
        return [function.device() for function in self.host.pci(vendor=0x10EE)]

    def health(self) -> dict[str, Health]:
        return {"card": Health(False, "hot")}

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        assert_type(claim.uid, str)
        return [device.prepared(ContainerEdits(env={"CARD": device.name})) for device in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        assert_type(claim.namespace, str)


def test_card(node: Node[Cards]) -> None:
    assert_type(node.driver, Cards)
    assert_type(node.env("pod"), dict[str, str])
    card = node.published()["card"]
    assert_type(card.capacity["memory"].value, Quantity)
    assert_type(card.consumes_counters["card"]["memory"], str)


if __name__ == "__main__":
    run(Cards)
'''


@pytest.fixture
def consumer(installed: Environment, tmp_path: Path) -> Path:
    folder = tmp_path / "consumer"
    folder.mkdir()
    (folder / "card.py").write_text(DRIVER.lstrip())
    return folder


def mypy(installed: Environment, consumer: Path) -> str:
    options = ("--strict", "--disallow-any-expr", "--disallow-any-unimported", "--no-incremental")
    return run(
        sys.executable, "-m", "mypy", *options, "--python-executable", installed.path("python"), "card.py", cwd=consumer
    )


def test_strict_mypy_reports_no_error(installed: Environment, consumer: Path) -> None:
    assert "Success" in mypy(installed, consumer)


def test_without_py_typed_mypy_ignores_the_types_of_the_package(installed: Environment, consumer: Path) -> None:
    (installed.packages / "dra_kubeletplugin/py.typed").unlink()
    with pytest.raises(AssertionError, match=r"missing library stubs or py\.typed marker"):
        mypy(installed, consumer)


@pytest.mark.skipif(not shutil.which("pyright"), reason="needs pyright on the PATH: pip install 'pyright[nodejs]'")
def test_strict_pyright_reports_no_error(installed: Environment, consumer: Path) -> None:
    config = {"venvPath": str(installed.folder.parent), "venv": installed.folder.name, "typeCheckingMode": "strict"}
    (consumer / "pyrightconfig.json").write_text(json.dumps(config))
    assert "0 errors, 0 warnings" in run("pyright", "card.py", cwd=consumer)
