"""`python -m bench.functions`: measures the time to read 1,024 virtual functions, and its floor, the system calls alone.

It uses a described host in memory, whose files are about as fast as sysfs. The figures are user and system CPU time, the best of five,
because other programs may run on the machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dra_devkit.hosts import described
from dra_kubeletplugin import Host

CARDS, EACH = 8, 128
AIM = 150.0  # milliseconds to find them with all attributes
FILES = ("vendor", "device", "class", "numa_node")
LINKS = ("physfn", "iommu_group")


def machine(folder: Path) -> Host:
    cards = [
        {
            "address": f"0000:{0x10 + i:02x}:00.0",
            "vendor": 0x15B3,
            "device": 0x101D,
            "class": 0x020000,
            "driver": "mlx5_core",
            "numa": i % 2,
            "iommu_group": i,
            "link": {"speed": 16.0, "width": 16},
            "vfs": {
                "total": EACH,
                "device": 0x101E,
                "enabled": EACH,
                "driver": "mlx5_core",
                "iommu_group": 100 + EACH * i,
            },
        }
        for i in range(CARDS)
    ]
    return Host(described.build(folder / "sys", {"functions": cards}))


def bare(host: Host) -> int:
    """The floor: reads each function's links and files, and builds no objects."""
    links = f"{host.sysfs}/bus/pci/devices"
    names = os.listdir(links)  # noqa: PTH208
    for name in names:
        os.readlink(f"{links}/{name}")  # noqa: PTH115
        for file in FILES:
            fd = os.open(f"{links}/{name}/{file}", os.O_RDONLY | os.O_CLOEXEC)
            os.read(fd, 4096)
            os.close(fd)
        for link in LINKS:
            try:
                os.readlink(f"{links}/{name}/{link}")  # noqa: PTH115
            except FileNotFoundError:
                continue
    return len(names)


def milliseconds(what: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        what()
        best = min(best, time.process_time() - started)
    return best * 1000


def main() -> int:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        host = machine(Path(folder))
        assert len(host.pci()) == bare(host) == CARDS * (EACH + 1)
        floor = milliseconds(lambda: bare(host))
        rows: dict[str, Callable[[], object]] = {
            "found": host.pci,
            "found, with every attribute": lambda: [fn.attributes() for fn in host.pci()],
            "as validated devices": lambda: [fn.device() for fn in host.pci()],
            "functions of another vendor": lambda: host.pci(vendor=0x10EE),
            "functions of a driver without functions": lambda: host.pci(driver="vfio-pci"),
        }
        print(
            f"{CARDS * EACH} virtual functions of {CARDS} cards, milliseconds of CPU; the bare reads take {floor:.0f}\n"
        )
        print("| | ms | to the floor |\n|---|---|---|")
        took = {name: milliseconds(what) for name, what in rows.items()}
        for name, value in took.items():
            print(f"| {name} | {value:.1f} | {value / floor:.1f} |")
    return int(took["found, with every attribute"] > AIM)


if __name__ == "__main__":
    raise SystemExit(main())
