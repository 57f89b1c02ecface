"""A driver's options reach the driver's processes in tests, in ``dra dev`` and after a rolling update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import DriverNode, controller_on, node_with, plugin_on
from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, PreparedDevice
from dra_kubeletplugin.errors import SettingsError
from tests.helpers.dev_process import run_dev

HOST = "virtual-machine"


@dataclass(frozen=True)
class TrayOptions:
    trays: Annotated[int, "how many trays"] = 2
    label: str = "plain"
    excluded: tuple[str, ...] = ()
    doubled: bool = True


class Tray(Driver):
    name = "tray.example.com"
    options = TrayOptions()

    def devices(self) -> list[Device]:
        names = [f"tray-{i}" for i in range(self.options.trays * (1 + self.options.doubled))]
        return [Device(name) for name in names if name not in self.options.excluded]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"LABEL": self.options.label})) for d in claim.devices]


OPTIONS = TrayOptions(trays=3, label="a=b c", excluded=("tray-0", "tray-2"), doubled=False)


@pytest.mark.parametrize("process", [False, True])
async def test_the_driver_has_the_options_of_the_test_also_in_a_child_process(
    process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLED", "1")  # An object overrides the environment.
    async with node_with(Tray, host=HOST, process=process, options=OPTIONS) as node:
        assert [d["name"] for s in await node.api.slices() for d in s["spec"]["devices"]] == ["tray-1"]
        assert node.env(await node.run_pod())["LABEL"] == "a=b c"


async def label(node: DriverNode[Tray], pod: str) -> str:
    found = node.env(await node.run_pod(pod))["LABEL"]
    await node.delete_pod(pod)
    return found


async def test_options_stay_after_a_restart_and_change_only_with_new_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRAYS", "1")
    async with node_with(Tray, host=HOST, options={"label": "first"}) as node:
        assert node.driver.options == TrayOptions(trays=1, label="first")
        await node.restart()
        assert await label(node, "one") == "first"
        await node.upgrade(options=replace(OPTIONS, label="second"))
        assert await label(node, "two") == "second"
        with pytest.raises(SettingsError, match="options: Tray has no option 'tray', did you mean 'trays'"):
            await node.upgrade(options={"tray": 3})
        assert await label(node, "three") == "second"


async def test_plugin_and_controller_have_separate_options() -> None:
    async with (
        LocalCluster(("a",)) as cluster,
        plugin_on(cluster, Tray, "a", options={"trays": 5}) as plugin,
        controller_on(cluster, Tray, options=TrayOptions(label="controller")) as controller,
    ):
        assert plugin.driver.options.trays == 5  # type: ignore[attr-defined]
        assert controller.driver.options.label == "controller"  # type: ignore[attr-defined]


FILE = """
from dataclasses import dataclass

from dra_kubeletplugin import ContainerEdits, Device, Driver, Nodes, Pool, Role


@dataclass(frozen=True)
class Options:
    trays: int = 1
    only: tuple[str, ...] = ()
    spare: bool = False


class {name}(Driver):
    name = "{lower}.example.com"
    options = Options()

    def pools(self):
        names = [*(f"{lower}-{{i}}" for i in range(self.options.trays + self.options.spare)), *self.options.only]
        if self.role is Role.CONTROLLER:
            return [Pool("{lower}-all", [Device("all-" + n) for n in names], nodes=Nodes.all())]
        return [Pool(self.settings.node_name, [Device(n) for n in names])]

    def prepare(self, claim):
        return []
"""


@pytest.mark.full
@pytest.mark.kubectl
def test_dev_passes_flags_to_each_driver_that_declares_them_in_every_role(tmp_path: Path) -> None:
    for name in ("Left", "Right"):
        text = FILE.format(name=name, lower=name.lower())
        (tmp_path / f"{name}.py").write_text(text if name == "Left" else text.replace("only", "extra"))
    files = [str(tmp_path / f"{name}.py") for name in ("Left", "Right")]
    flags = ["--trays", "2", "--only=x, y", "--spare", "--extra", "z"]
    with run_dev(tmp_path, *files, "--controller", *flags) as dev:
        found = set(dev.kubectl("get", "resourceslices", "-o", "jsonpath={..devices[*].name}").split())
    wanted = {"left-0", "left-1", "left-2", "x", "y", "right-0", "right-1", "right-2", "z"}
    assert found == wanted | {f"all-{name}" for name in wanted}
