"""vfio-pci of a described host makes a device and a device node for each function that is bound to it."""

from __future__ import annotations

import threading
from pathlib import Path

from dra_devkit.hosts import described, kernel, recording
from dra_kubeletplugin.host import Host

CARDS = [f"0000:{bus}:00.0" for bus in range(17, 25)]


def machine(folder: Path) -> Host:
    functions = [
        {
            "address": a,
            "vendor": 0x10EE,
            "device": 0x5000,
            "driver": "xclmgmt",
            "iommu_group": i,
            "classes": {"fpga": {f"fpga{i}": None}},
        }
        for i, a in enumerate(CARDS)
    ]
    return Host(described.build(folder / "sys", {"functions": functions}))


def bind(host: Host, address: str) -> None:
    host.write(f"bus/pci/devices/{address}/driver_override", kernel.VFIO)
    host.write("bus/pci/drivers/xclmgmt/unbind", address)
    host.write("bus/pci/drivers_probe", address)


def devices(host: Host, address: str) -> list[str]:
    return sorted(p.name for p in (host.sysfs / "bus/pci/devices" / address / "vfio-dev").glob("*"))


def nodes(host: Host) -> list[str]:
    return sorted(p.name for p in (host.dev / "vfio/devices").iterdir())


def test_a_function_has_its_vfio_device_only_while_vfio_pci_has_it(tmp_path: Path) -> None:
    host = machine(tmp_path)
    for address in CARDS[:3]:
        bind(host, address)
    assert [devices(host, a) for a in CARDS[:4]] == [["vfio0"], ["vfio1"], ["vfio2"], []]
    numbers = (host.sysfs / "class/vfio-dev/vfio1/dev").read_text().strip()
    assert (host.dev / "vfio/devices/vfio1").read_text().strip() == f"c {numbers}"
    host.write("bus/pci/drivers/vfio-pci/unbind", CARDS[1])
    assert (devices(host, CARDS[1]), nodes(host)) == ([], ["vfio0", "vfio2"])
    bind(host, CARDS[3])
    assert devices(host, CARDS[3]) == ["vfio1"], "the lowest free number, as the kernel chooses it"
    described.remove_function(host.sysfs, CARDS[0])
    assert nodes(host) == ["vfio1", "vfio2"]
    described.reboot(host.sysfs)
    assert not (host.dev / "vfio/devices").exists()


def test_functions_that_are_bound_at_once_have_separate_devices(tmp_path: Path) -> None:
    host = machine(tmp_path)
    threads = [threading.Thread(target=bind, args=(host, address)) for address in CARDS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(d for a in CARDS for d in devices(host, a)) == nodes(host) == [f"vfio{i}" for i in range(len(CARDS))]


def test_a_record_of_a_machine_does_not_describe_the_devices_of_vfio_pci(tmp_path: Path) -> None:
    host = machine(tmp_path)
    bind(host, CARDS[0])
    function = next(f for f in recording.record(host).functions if f.address == CARDS[0])
    assert (function.driver, function.classes) == (kernel.VFIO, {})
