"""The effects of unplugging a function of a described host."""

from __future__ import annotations

from pathlib import Path

from dra_devkit.hosts import described

ADDRESS = "0000:17:00.0"
FUNCTION = {"address": ADDRESS, "vendor": 0x10EE, "device": 0x5000, "classes": {"fpga": {"fpga0": {"dev": "240:0"}}}}


def test_class_devices_of_a_function_without_a_described_driver_are_removed_and_not_added_again(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", {"functions": [FUNCTION]})
    before = (root / ".uevents").read_text()
    described.remove_function(root, ADDRESS)
    events = (root / ".uevents").read_text().removeprefix(before)
    assert events.splitlines() == ["remove fpga fpga0", f"remove pci {ADDRESS}"]
    assert not (root / "class/fpga/fpga0").is_symlink()


def test_the_driver_of_an_unplugged_function_is_unbound(tmp_path: Path) -> None:
    root = described.build(tmp_path / "sys", {"functions": [{**FUNCTION, "driver": "xclmgmt"}]})
    before = (root / ".uevents").read_text()
    described.remove_function(root, ADDRESS)
    events = (root / ".uevents").read_text().removeprefix(before)
    assert events.splitlines() == ["remove fpga fpga0", f"unbind pci {ADDRESS}", f"remove pci {ADDRESS}"]
    assert not (root / "bus/pci/drivers/xclmgmt" / ADDRESS).is_symlink()
